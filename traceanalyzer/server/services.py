"""What every part of the server works with, opened in one place.

What could be wrong: `open` upgrades the database; two servers of different versions must not share one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from traceanalyzer.server.audit import Audit
from traceanalyzer.server.blobs import Blobs
from traceanalyzer.server.database import engine
from traceanalyzer.server.database.engine import Database
from traceanalyzer.server.jobs_table import Jobs
from traceanalyzer.server.links import Links
from traceanalyzer.server.settings import Settings
from traceanalyzer.server.tokens import Tokens
from traceanalyzer.server.traces import Traces


@dataclass(frozen=True, slots=True)
class Services:
    """The settings, and everything that is kept."""

    settings: Settings
    database: Database
    blobs: Blobs
    traces: Traces
    jobs: Jobs
    tokens: Tokens
    links: Links
    audit: Audit

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Make the folders (for their owner only), upgrade the database, open the rest.

        Raises:
            InputError: the database is newer than this code, or is none.
            OSError: a folder cannot be made.
        """
        for folder in (settings.folder, settings.incoming, settings.work):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        database = engine.make(settings)
        database.upgrade()
        return cls(
            settings=settings,
            database=database,
            blobs=Blobs(settings),
            traces=Traces(database),
            jobs=Jobs(database),
            tokens=Tokens(database),
            links=Links(database),
            audit=Audit(database),
        )

    def close(self) -> None:
        """Close the database's connections."""
        self.database.close()
