"""`traceanalyzer backup` and `traceanalyzer restore`: a server's folder as one file, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceanalyzer.commands.output import target
from traceanalyzer.commands.progress import Progress, say
from traceanalyzer.commands.server_options import Folder, folder_of, need_server
from traceanalyzer.errors import InputError

_File = Annotated[str, typer.Argument(metavar="FILE", help="The backup, a tar file.")]
_Force = Annotated[bool, typer.Option("--force", help="Replace a file that exists.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No messages, only errors.")]


def backup(file: _File, folder: Folder = None, force: _Force = False, quiet: _Quiet = False) -> None:
    """Write all of a server to one file, also while it runs.

    In it are traces, reports, labels, tokens (hashed), links and the audit log. The file holds what the traces hold:
    keep it as private as the server's folder.
    """
    need_server()
    place = target("FILE", file, (), None, force).path
    if place is None or (place.exists() and not place.is_file()):
        raise InputError("a backup goes to a file")
    from traceanalyzer.server.backup import backup as write
    from traceanalyzer.server.settings import Settings

    settings = Settings(folder=folder_of(folder))
    with Progress(quiet) as progress:
        told = write(settings, place, lambda traces: progress.show(f"{traces} traces"))
    if not quiet:
        say(f"wrote {place}: {told.traces} traces, {told.bytes / 1e6:.1f} MB, from {settings.folder}")


def restore(file: _File, folder: Folder = None, quiet: _Quiet = False) -> None:
    """Fill an empty folder from a backup.

    Every trace and report is compared with its SHA-256.
    """
    need_server()
    source = Path(file)
    if "\0" in file or not source.is_file():
        raise InputError(f"{file[:200]!r} is no file")
    from traceanalyzer.server.restore import restore as read

    place = folder_of(folder)
    with Progress(quiet) as progress:
        told = read(source, place, lambda traces: progress.show(f"{traces} traces"))
    if not quiet:
        say(f"restored {told.traces} traces, {told.bytes / 1e6:.1f} MB: traceanalyzer serve --folder {place}")
