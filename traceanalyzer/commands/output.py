"""Where results go: standard output or files, written whole or not at all, never over somebody else's file.

A file is written beside its place and renamed, so that a full disk or Ctrl-C leaves the old one as it was. Devices and
pipes are written to directly. What could be wrong: between the check and the rename another program may make the file.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from traceanalyzer.errors import InputError

STDOUT = "-"
# What a shell reports for a program whose reader has gone away: 128 + SIGPIPE.
PIPE_CLOSED = 141
# No result is longer; of a longer file the beginning is looked at.
_LARGEST_RESULT = 8 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """One place to write one result to: a file, or standard output where `path` is None."""

    path: Path | None

    def write(self, text: str) -> None:
        """Write `text` there, in UTF-8.

        Raises:
            InputError: the system refuses; the message names the file.
        """
        if self.path is None:
            write_stdout(text)
        else:
            _write_file(self.path, text)


def target(
    option: str, value: str, inputs: Sequence[str], is_ours: Callable[[str], bool] | None, force: bool
) -> Target:
    """Check that `value` can be written to, before any work is done.

    Args:
        option: the option that `value` was given to, for the messages.
        value: "-" or a file name.
        inputs: the paths that are read; none of them may be written to.
        is_ours: whether the text of an existing file is an earlier result, which may be replaced; None: no file may.
        force: replace any file.

    Raises:
        InputError: the place is a folder, is in none, is an input, or holds a file that is to stay.
    """
    if value == STDOUT:
        return Target(None)
    if not value or "\0" in value:
        raise InputError(f"{option}: {value!r} is no file name")
    if value.startswith("-"):
        raise InputError(f"{option}: {value!r} looks like an option", f"write ./{value} if it is a file name")
    path = Path(value)
    try:
        _check(option, path, inputs, is_ours, force)
    except OSError as error:
        raise InputError(f"{option}: cannot write to {value}: {_reason(error)}") from error
    return Target(path)


def _check(option: str, path: Path, inputs: Sequence[str], is_ours: Callable[[str], bool] | None, force: bool) -> None:
    if path.is_dir():
        raise InputError(f"{option}: {path} is a folder", "name a file in it")
    if not path.parent.is_dir():
        raise InputError(f"{option}: the folder {path.parent} does not exist")
    if not path.exists():
        if path.is_symlink():
            raise InputError(f"{option}: {path} is a link that leads nowhere", "name another file")
        return
    if any(Path(name).exists() and path.samefile(name) for name in inputs if name != STDOUT):
        raise InputError(f"{option}: {path} is the input", "name another file")
    if path.is_file() and not force and not _holds_ours(path, is_ours):
        whose = "" if is_ours is None else " and was not written by this command"
        raise InputError(f"{option}: {path} exists{whose}", "--force replaces it")


def _holds_ours(path: Path, is_ours: Callable[[str], bool] | None) -> bool:
    if is_ours is None:
        return False
    with path.open(encoding="utf-8", errors="replace") as stream:
        text = stream.read(_LARGEST_RESULT)
    return not text or is_ours(text)


def write_stdout(text: str) -> None:
    """Write a result to standard output and flush it.

    Raises:
        InputError: standard output is closed or full.
        typer.Exit: the reader has gone away, which is no error to talk about.
    """
    stream = sys.stdout
    if stream is None:
        raise InputError("standard output is closed")
    if isinstance(stream, io.TextIOWrapper):
        # A terminal keeps its encoding and shows what it cannot show as "?"; a file or a pipe gets UTF-8.
        stream.reconfigure(errors="replace") if stream.isatty() else stream.reconfigure(encoding="utf-8")
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError as error:
        abandon_stdout()
        raise typer.Exit(PIPE_CLOSED) from error
    except OSError as error:
        abandon_stdout()
        raise InputError(f"cannot write to standard output: {_reason(error)}") from error


def abandon_stdout() -> None:
    """Let what is still buffered go nowhere, or the interpreter complains of it once more when it ends."""
    if sys.stdout is None:
        return
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # no real file behind it
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _write_file(path: Path, text: str) -> None:
    data = text.encode("utf-8")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        raise InputError(f"cannot write {path}: {_reason(error)}") from error


def _replace(path: Path, data: bytes) -> None:
    beside = path.with_name(f".{path.name[:200]}.{os.getpid()}")
    try:
        with beside.open("xb") as stream:
            stream.write(data)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _reason(error: OSError) -> str:
    if error.errno is None:
        return str(error)
    return "no space left" if error.errno == errno.ENOSPC else os.strerror(error.errno)
