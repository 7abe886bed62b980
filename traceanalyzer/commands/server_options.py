"""What the server's commands share: where its folder is, and one clear line where its libraries are missing."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Annotated

import typer

from traceanalyzer.errors import InputError

_LIBRARIES = ("alembic", "fastapi", "huey", "itsdangerous", "obstore", "prometheus_client", "sqlalchemy", "uvicorn")

Folder = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        envvar="TRACEANALYZER_FOLDER",
        show_envvar=False,
        help="The server's folder [$TRACEANALYZER_FOLDER, else ~/.local/share/traceanalyzer/server].",
    ),
]


def need_server() -> None:
    """Check that what the `server` extra installs is there.

    Raises:
        InputError: something is missing; the hint says how to install it.
    """
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"the server's libraries are not installed: {', '.join(missing)}", "pip install 'traceanalyzer-llm[server]'"
        )


def folder_of(given: str | None) -> Path:
    """The folder that is meant by `--folder`, absolute.

    Raises:
        InputError: it is no folder's name.
    """
    if given is None:
        data = os.environ.get("XDG_DATA_HOME", "")
        # A relative path in that variable is to be ignored: XDG Base Directory Specification 0.8.
        base = Path(data) if data.startswith("/") else Path.home() / ".local" / "share"
        return base / "traceanalyzer" / "server"
    if not given or "\0" in given:
        raise InputError(f"--folder: {given!r} is no folder's name")
    path = Path(given).absolute()
    if path.exists() and not path.is_dir():
        raise InputError(f"--folder: {path} is no folder")
    return path
