"""Whether Kineto is at work on demand in this process, or about to begin: the script's own profiler waits for its turn.

A session of `torch.profiler` cancels a recording that Kineto made on demand, at any of its stages, and in about one of
fifty such meetings the process crashes. The supervisor therefore says when it asks Kineto for a window and when the
last file is there. Who starts a session shows it in the ring first and looks here second; the supervisor says so first
and looks at the rings second: one of the two always sees the other.

What could be wrong: the script's profiler starts late, by as long as a window and its writing take, some seconds. A
window that takes longer than `MOST_S` is not waited for.
"""

from __future__ import annotations

import time

from . import layout
from .runtime import process

MOST_S = 60.0
TURNS = 3
"""So many windows in a row are waited for."""
_POLL_S = 0.01
_AFTER_S = 0.1
"""Kineto tidies up for a moment after its file is complete."""


def at_work() -> bool:
    """Whether a session of the script has to wait."""
    until = process.asked(layout.KINETO_UNTIL_NS)
    if not until:
        return False
    now = time.time_ns()
    return now < until and process.watched(now)


def wait() -> None:
    """Wait until Kineto has finished, or for as long as is bearable."""
    until = time.monotonic() + MOST_S
    while at_work() and time.monotonic() < until:
        time.sleep(_POLL_S)
    time.sleep(_AFTER_S)
