"""What a browser holds after signing in: the id of a token and a piece of its hash, signed, for twelve hours.

The token itself is never in a cookie. A session ends when its token is revoked, expires or is replaced, for the token
is looked up each time; signing out only makes the browser forget. What could be wrong: a stolen cookie works as long,
so it is `HttpOnly` and `SameSite=Lax`, and `Secure` where the server is reached by HTTPS.
"""

from __future__ import annotations

import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from itsdangerous import BadData, TimestampSigner

COOKIE = "ta_session"
MAX_AGE_S = 12 * 3600
_HASH_PART = 24
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Session:
    """A cookie whose signature and age are right; whether its token still is, the tokens know."""

    token_id: str
    hash_part: str

    def matches(self, token_hash: str) -> bool:
        """Whether the session was opened with the token of this hash."""
        return hmac.compare_digest(self.hash_part.encode(), token_hash[:_HASH_PART].encode())


class Sessions:
    """Makes and reads session cookies.

    Args:
        secret: what they are signed with; another secret ends every session.
    """

    def __init__(self, secret: bytes) -> None:
        """Keep the signer."""
        self._signer = TimestampSigner(secret, salt="traceanalyzer.session")

    @classmethod
    def open(cls, path: Path) -> Self:
        """Sessions signed with the secret in a file, which is made, readable by its owner only, where it is missing.

        Raises:
            OSError: the file cannot be made or read.
        """
        if not path.exists():
            _make_secret(path)
        return cls(path.read_bytes())

    def make(self, token_id: str, token_hash: str) -> str:
        """The value of a cookie for the token."""
        return self._signer.sign(f"{token_id}:{token_hash[:_HASH_PART]}").decode("ascii")

    def read(self, cookie: str) -> Session | None:
        """The session of a cookie; None where it is forged, damaged or older than twelve hours."""
        try:
            value = self._signer.unsign(cookie, max_age=MAX_AGE_S).decode("ascii")
        except (BadData, UnicodeError):
            return None
        token_id, _, hash_part = value.partition(":")
        return Session(token_id, hash_part)


def _make_secret(path: Path) -> None:
    """The file appears whole or not at all; where somebody else was faster, theirs stays."""
    beside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123 the mode
            file.write(secrets.token_bytes(_SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(beside, path)
        except FileExistsError:
            return
    finally:
        beside.unlink(missing_ok=True)
