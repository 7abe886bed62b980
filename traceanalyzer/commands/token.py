"""`traceanalyzer token`: makes, lists and revokes API tokens, on the machine of the server and beside a running one.

A token is written to standard output once, alone on its line, so that it can be piped into a file or a secret store;
all else goes to standard error. What could be wrong: whoever may write the server's folder may make tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from traceanalyzer.commands.output import write_stdout
from traceanalyzer.commands.progress import one_line, say
from traceanalyzer.commands.server_options import Folder, folder_of, need_server
from traceanalyzer.errors import InputError

if TYPE_CHECKING:
    from traceanalyzer.server.database.models import Token
    from traceanalyzer.server.services import Services

token = typer.Typer(
    help="Make, list and revoke the tokens that a server asks for.",
    add_completion=False,
    rich_markup_mode=None,
)

_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_HEADER = ("id", "name", "scopes", "created", "expires", "last used", "state")

_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="What the token is for; shown in the list and the audit log.")
]
_Scopes = Annotated[
    str, typer.Option("--scope", metavar="SCOPES", help="What it may do: upload, read, delete, admin; commas between.")
]
_Expires = Annotated[
    str | None, typer.Option(metavar="TIME", help="When it ends, counted from now: 90d, 12h, 4w, 30m [never].")
]
_Id = Annotated[str, typer.Argument(metavar="ID", help="The token's id: the middle part of ta_ID_secret.")]


@token.command()
def create(name: _Name, scope: _Scopes = "upload,read", expires: _Expires = None, folder: Folder = None) -> None:
    """Make a token and print it; it cannot be shown again. From the first one on, the server asks for tokens."""
    seconds = None if expires is None else _duration(expires)
    with _opened(folder, make=True) as services:
        place = services.settings.folder
        scopes = [part.strip() for part in scope.split(",") if part.strip()]
        made, text = services.tokens.make(name, scopes, seconds)
        try:
            write_stdout(text + "\n")
        except BaseException:
            # Nobody has read it, and nobody can read it later.
            services.tokens.revoke(made.id)
            raise
        services.audit.note("command line", "token.create", made.id, f"{made.name}: {made.scopes}")
    scoped, ends = made.scopes.replace(",", ", "), _day(made.expires_at) or "never"
    say(f"token {made.id} of the server in {place} may {scoped}; expires: {ends}")


@token.command("list")
def show(folder: Folder = None) -> None:
    """List the tokens; their secrets are not kept."""
    from traceanalyzer.server.text import now_ms

    with _opened(folder) as services:
        place, now = services.settings.folder, now_ms()
        rows = [_HEADER, *(_cells(row, now) for row in services.tokens.list())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    say(f"the tokens of the server in {place}")
    write_stdout("\n".join(lines) + "\n")


@token.command()
def revoke(id: _Id, folder: Folder = None) -> None:
    """End a token at once; sessions that began with it end, too."""
    with _opened(folder) as services:
        place = services.settings.folder
        if not services.tokens.revoke(id):
            known = services.tokens.get(id) is not None
            what = "this token is revoked already" if known else "there is no token with this id"
            raise InputError(f"{what} in {place}", "token list shows them; --folder names another server's folder")
        services.audit.note("command line", "token.revoke", id)
    say(f"token {id} of the server in {place} is revoked")


@contextmanager
def _opened(folder: str | None, make: bool = False) -> Iterator[Services]:
    need_server()
    from traceanalyzer.server.services import Services
    from traceanalyzer.server.settings import Settings

    settings = Settings(folder=folder_of(folder))
    if not make and not (settings.database_file and settings.database_file.exists()):
        raise InputError(f"no server has its folder at {settings.folder}", "name it with --folder")
    services = Services.open(settings)
    try:
        yield services
    finally:
        services.close()


def _duration(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,6})([mhdw])", text.strip().lower(), re.ASCII)
    if found is None or not int(found[1]):
        raise InputError(f"--expires: {text!r} is no time", "write it as 90d, 12h, 4w or 30m")
    return float(int(found[1]) * _SECONDS[found[2]])


def _cells(row: Token, now: int) -> tuple[str, ...]:
    expired = row.expires_at is not None and now >= row.expires_at
    return (
        row.id,
        one_line(row.name),
        row.scopes,
        _day(row.created_at),
        _day(row.expires_at) or "never",
        _day(row.last_used_at) or "never",
        "revoked" if row.revoked_at is not None else "expired" if expired else "active",
    )


def _day(milliseconds: int | None) -> str:
    return "" if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%MZ")
