"""What the collector tells its user: one line at a time on standard error, never on standard output.

Standard output belongs to the recorded command. What could be wrong: standard error is shared with the command too, so
a line of ours may stand between two of its own; each is written in one piece and carries a prefix.
"""

from __future__ import annotations

import contextlib
import sys

PREFIX = "traceanalyzer: "
_quiet = False


def set_quiet(quiet: bool) -> None:
    """Let only errors through from now on."""
    global _quiet
    _quiet = quiet


def say(text: str) -> None:
    """One line on standard error; nothing where that is closed, and nothing when asked to be quiet."""
    if not _quiet:
        _write(text)


def complain(text: str) -> None:
    """As `say`, for an error: it is told however quiet we were asked to be."""
    _write(text)


def counted(number: int, one: str, many: str = "") -> str:
    """A number and what it counts: "1 step", "2 steps"; `many` where that is not `one` and an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def _write(text: str) -> None:
    if sys.stderr is None:
        return
    # Names of files and hosts may hold anything; none of it may break the line or steer a terminal.
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in PREFIX + text)
    with contextlib.suppress(OSError, ValueError):  # closed or full: there is nobody left to tell
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
