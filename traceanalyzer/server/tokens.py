"""API tokens: `ta_<id>_<secret>`, of which the server keeps the SHA-256 of the secret.

The secret has 256 random bits, so a fast hash is enough: there is nothing to guess. It is compared in constant time,
and an unknown id costs the same comparison.

What could be wrong: expiry is by the machine's clock; while the clock is set back, an expired token is good again.
Revocation holds whatever the clock says.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence

from sqlalchemy import select, update

from traceanalyzer.errors import InputError
from traceanalyzer.network import TOKEN
from traceanalyzer.server.database.engine import Database, changed
from traceanalyzer.server.database.models import Token
from traceanalyzer.server.text import now_ms

SCOPES = ("upload", "read", "delete", "admin")
"""admin implies all others."""

_USED_EVERY_MS = 60_000
_NAME_CHARS = 100


def hashed(secret: str) -> str:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Tokens:
    """The tokens in one database."""

    def __init__(self, database: Database) -> None:
        """Nothing is read yet."""
        self._database = database
        self._guarded = False

    def make(
        self, name: str, scopes: Iterable[str], expires_s: float | None = None, now: int | None = None
    ) -> tuple[Token, str]:
        """A new token and its text, which nobody can read again later.

        Raises:
            InputError: the name cannot be shown, a scope is unknown, none is given, or the expiry is not in the future.
        """
        wanted = tuple(scope for scope in SCOPES if scope in (given := set(scopes)))
        unknown = given.difference(SCOPES)
        if unknown or not wanted:
            raise InputError(
                f"no such scope: {', '.join(sorted(map(ascii, unknown)))}" if unknown else "a token needs a scope",
                f"one or more of {', '.join(SCOPES)}",
            )
        if not name.strip() or len(name) > _NAME_CHARS or not name.isprintable():
            raise InputError(f"a token's name has 1 to {_NAME_CHARS} characters, all of which can be seen")
        if expires_s is not None and not 0 < expires_s < 100 * 366 * 86400:
            raise InputError("a token expires after now and within 100 years")
        at = now_ms() if now is None else now
        secret = secrets.token_urlsafe(32)
        token = Token(
            id=secrets.token_hex(6),
            name=name.strip(),
            hash=hashed(secret),
            scopes=",".join(wanted),
            created_at=at,
            expires_at=None if expires_s is None else at + int(expires_s * 1000),
        )
        with self._database.session() as session:
            session.add(token)
        return token, f"ta_{token.id}_{secret}"

    def check(self, text: str, now: int | None = None) -> Token | None:
        """The token with this text, unless it is unknown, wrong, revoked or expired. Its use is noted once a minute."""
        match = TOKEN.fullmatch(text)
        identity, secret = match.groups() if match else ("", "")
        with self._database.reading() as session:
            token = session.get(Token, identity)
        right = hmac.compare_digest(token.hash if token else hashed(""), hashed(secret))
        at = now_ms() if now is None else now
        if token is None or not right or not usable(token, at):
            return None
        if token.last_used_at is None or abs(at - token.last_used_at) >= _USED_EVERY_MS:
            used = update(Token).where(Token.id == token.id).values(last_used_at=at)
            self._database.note(f"use of token {token.id}", lambda session: session.execute(used))
        return token

    def get(self, identity: str) -> Token | None:
        """The token with this id, whatever its state."""
        with self._database.reading() as session:
            return session.get(Token, identity)

    def revoke(self, identity: str, now: int | None = None) -> bool:
        """End a token now; False: there is none with this id that was still good."""
        query = update(Token).where(Token.id == identity, Token.revoked_at.is_(None))
        with self._database.session() as session:
            return bool(changed(session, query.values(revoked_at=now_ms() if now is None else now)))

    def any_active(self) -> bool:
        """Whether the server asks for tokens: from the first one that was ever made on.

        A revoked or expired token counts. Otherwise the last expiry, or a clock that jumped ahead, would open the
        server to everybody who reaches its loopback interface, which may be a proxy.
        """
        if not self._guarded:
            with self._database.reading() as session:
                self._guarded = session.scalars(select(Token.id).limit(1)).first() is not None
        return self._guarded

    def list(self) -> Sequence[Token]:
        """Every token, oldest first."""
        with self._database.reading() as session:
            return session.scalars(select(Token).order_by(Token.created_at, Token.id)).all()


def usable(token: Token, now: int) -> bool:
    """Whether a token is neither revoked nor expired."""
    return token.revoked_at is None and (token.expires_at is None or now < token.expires_at)
