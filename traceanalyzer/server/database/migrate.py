"""Brings a database to the newest revision, by alembic's Python interface; no `alembic.ini`, nothing on the disk.

The caller holds the transaction and the lock that keeps a second process out.

What could be wrong: SQLite cannot change a foreign key while it checks them, and it cannot stop checking inside a
transaction. A later revision that rebuilds a table needs a connection that was opened without the check.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from traceanalyzer.errors import InputError

FOLDER = Path(__file__).resolve().parent / "migrations"


def configuration() -> Config:
    """Where alembic finds the revisions."""
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    return config


def to_head(connection: Connection) -> None:
    """Run what is missing, inside the caller's transaction.

    Raises:
        InputError: the database holds a revision that this code does not know.
    """
    config = configuration()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    current = MigrationContext.configure(connection).get_current_heads()
    if not known.issuperset(current):
        raise InputError(
            "the server's database was written by a newer version of traceanalyzer",
            "update traceanalyzer, or restore a backup of this version",
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
