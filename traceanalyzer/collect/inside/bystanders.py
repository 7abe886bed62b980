"""Which other threads may still be inside an operation that was running when a session ended.

Such an operation writes its end into memory that went with the session: harmless while no session runs, heap damage
once the next one does. Torch does not say what runs, so this looks from outside: a thread whose Python code stands
where it stood, and which has been running or ready to run for most of the time since, may be inside a long operation.

What could be wrong: a loop of long operations stands at the same place in each of them; after `LONGEST_NS` it is taken
to have moved on. Where the system does not tell a thread's processor time (only Linux does), nobody is waited for.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Collection

LONGEST_NS = 10_000_000_000
"""An operation that runs longer than this on the host is not expected."""
OUR_THREAD = "traceanalyzer"
"""Name of the thread that watches an open window: it runs no operation."""


class Bystanders:
    """The Python threads of this process as they were at one moment."""

    def __init__(self) -> None:
        """Nobody is being waited for."""
        self._since_ns = 0
        self._seen: dict[int, tuple[int, int, int, int]] = {}

    def look(self) -> None:
        """Remember where every other thread stands now."""
        frames = sys._current_frames()
        me = threading.get_ident()
        self._since_ns = time.monotonic_ns()
        self._seen = {}
        for thread in threading.enumerate():
            if thread.name == OUR_THREAD:
                continue
            ident, native = thread.ident or 0, getattr(thread, "native_id", None)
            active = _active_ns(native) if ident != me and ident in frames and native else None
            if active is not None:
                frame = frames[ident]
                self._seen[ident] = (id(frame.f_code), frame.f_lasti, native or 0, active)

    def working(self, parked: Collection[int]) -> bool:
        """Whether one of them has run since, of those that are not known to wait."""
        return any(
            ident not in parked and (_active_ns(native) or 0) > active
            for ident, (_, _, native, active) in self._seen.items()
        )

    def busy(self, parked: Collection[int]) -> bool:
        """Whether one of them may be where it was, at work; those in `parked` are known to wait, and the caller too."""
        if not self._seen:
            return False
        passed = time.monotonic_ns() - self._since_ns
        if passed > LONGEST_NS:
            self._seen.clear()
            return False
        frames = sys._current_frames()
        me = threading.get_ident()
        for ident, (code, instruction, native, active) in list(self._seen.items()):
            frame = frames.get(ident)
            now = _active_ns(native)
            if frame is None or now is None or (id(frame.f_code), frame.f_lasti) != (code, instruction):
                del self._seen[ident]
            elif ident != me and ident not in parked and 2 * (now - active) >= passed:
                return True
        return False

    def forget(self) -> None:
        """In the child of a fork there are no others."""
        self._seen = {}


def _active_ns(native: int) -> int | None:
    """Nanoseconds for which a thread has been running or ready to run (proc(5), schedstat); None: not known."""
    try:
        with open(f"/proc/self/task/{native}/schedstat", "rb") as stream:
            running, ready = stream.read().split()[:2]
    except (OSError, ValueError):
        return None
    return int(running) + int(ready)
