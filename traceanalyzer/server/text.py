"""Text and times that go into rows: one clock, and nothing that cannot be seen or is longer than it may be.

What could be wrong: the clock is the machine's. A row's time is a fact about that clock.
"""

from __future__ import annotations

import time

from traceanalyzer.report.text_safety import shorten, visible


def now_ms() -> int:
    """The time of every row: whole milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000


def clean(text: str, limit: int) -> str:
    """At most `limit` characters, every one of which can be seen."""
    return shorten(visible(text[: 4 * limit]), limit)


def tail(text: str, limit: int) -> str:
    """The last `limit` bytes of a program's output, with line ends kept and other control characters written out."""
    lines = (visible(line.expandtabs()) for line in text[-limit:].splitlines())
    return "\n".join(lines).encode("utf-8", "replace")[-limit:].decode("utf-8", "ignore")
