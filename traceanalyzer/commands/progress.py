"""Messages beside the result, on standard error: what is going on while it takes long, and what was written."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TextIO


def one_line(text: str) -> str:
    """`text` with everything escaped that could break the line or steer a terminal: file names may hold anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def say(text: str) -> None:
    """One line on standard error; nothing where that is closed."""
    if sys.stderr is not None:
        # A terminal that cannot show a character gets an escape, not an exception: stderr's own error handler.
        sys.stderr.write(one_line(text) + "\n")
        sys.stderr.flush()


class Progress:
    """A line that says what is being done and disappears afterwards; silent where nobody watches a terminal."""

    def __init__(self, quiet: bool) -> None:
        """Watch standard error as it is now; `quiet` silences the line."""
        stream = sys.stderr
        watched = stream is not None and stream.isatty() and "CI" not in os.environ
        self._stream: TextIO | None = stream if watched and not quiet else None

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._stream is not None:
            # Carriage return, then the control sequence that clears to the end of the line.
            self._stream.write("\r\x1b[K" + one_line(text))
            self._stream.flush()

    def __enter__(self) -> Progress:
        """Begin; nothing is shown yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear the line, so that a message can follow."""
        self.show("")
