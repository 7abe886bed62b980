"""Share links: an address with 256 random bits that opens one report until it is revoked or expires.

Only the SHA-256 of the secret is kept. The row is found by that hash; what an attacker could learn from the time of
the lookup is about the hash of a guess, which says nothing about the secret.

What could be wrong: whoever is given the address can pass it on; `opened` counts, it does not say by whom.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from sqlalchemy import select, update

from traceanalyzer.errors import InputError
from traceanalyzer.server.database.engine import Database, changed
from traceanalyzer.server.database.models import Link, Trace
from traceanalyzer.server.text import clean, now_ms
from traceanalyzer.server.tokens import hashed

_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
_ACTOR = 200


class Links:
    """The links in one database."""

    def __init__(self, database: Database) -> None:
        """Nothing is read yet."""
        self._database = database

    def make(
        self, sha256: str, by: str | None, expires_s: float | None = None, now: int | None = None
    ) -> tuple[Link, str]:
        """A new link to a trace's report and its secret, which nobody can read again later.

        Raises:
            InputError: there is no such trace, or the expiry is not in the future.
        """
        if expires_s is not None and not 0 < expires_s < 100 * 366 * 86400:
            raise InputError("a link expires after now and within 100 years")
        at = now_ms() if now is None else now
        secret = secrets.token_urlsafe(32)
        link = Link(
            id=secrets.token_hex(6),
            sha256=sha256,
            hash=hashed(secret),
            created_by=None if by is None else clean(by, _ACTOR),
            created_at=at,
            expires_at=None if expires_s is None else at + int(expires_s * 1000),
            opened=0,
        )
        with self._database.session() as session:
            if session.get(Trace, sha256) is None:
                raise InputError("there is no such trace")
            session.add(link)
        return link, secret

    def open(self, secret: str, now: int | None = None, counted: bool = True) -> Link | None:
        """The link with this secret, unless it is unknown, revoked or expired; `counted`: it was opened once more."""
        at = now_ms() if now is None else now
        link = self._with(secret)
        if link is None or link.revoked_at is not None or (link.expires_at is not None and at >= link.expires_at):
            return None
        if counted:
            query = update(Link).where(Link.id == link.id).values(opened=Link.opened + 1, last_opened_at=at)
            self._database.note(f"link {link.id} opened", lambda session: session.execute(query))
        return link

    def known(self, secret: str) -> bool:
        """Whether there is or was a link with this secret, revoked and expired ones too."""
        return self._with(secret) is not None

    def revoke(self, identity: str, now: int | None = None) -> bool:
        """End a link now; False: there is none with this id that was still good."""
        query = update(Link).where(Link.id == identity, Link.revoked_at.is_(None))
        with self._database.session() as session:
            return bool(changed(session, query.values(revoked_at=now_ms() if now is None else now)))

    def get(self, identity: str) -> Link | None:
        """The link with this id, whatever its state."""
        with self._database.reading() as session:
            return session.get(Link, identity)

    def of(self, sha256: str) -> Sequence[Link]:
        """Every link to a trace, oldest first, revoked and expired ones too."""
        query = select(Link).where(Link.sha256 == sha256).order_by(Link.created_at, Link.id)
        with self._database.reading() as session:
            return session.scalars(query).all()

    def _with(self, secret: str) -> Link | None:
        if not _SECRET.fullmatch(secret):
            return None
        with self._database.reading() as session:
            return session.scalars(select(Link).where(Link.hash == hashed(secret))).one_or_none()
