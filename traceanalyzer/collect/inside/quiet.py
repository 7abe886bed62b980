"""Before Kineto ends a window on demand, no operation may be on its way into it.

Kineto's own thread ends the session and reads at once what the operations have written, without looking whether a
thread of the model is just writing: half an entry is read as a whole one, and once in a few hundred windows the process
crashes. So a moment before that time torch is told to take no further operations. What is being written then is
finished within microseconds, or, where its thread has lost the processor, some milliseconds. The GPU's own activities
are recorded to the end.

It is told by a thread of ours, which lives from the window's first step to that moment, or by a step that begins after
it, whichever comes first. What could be wrong: on a machine so busy that neither gets the processor in time, nothing is
done; and a thread that has lost the processor for longer than `LATEST_NS`, in the microsecond in which it wrote, is
still met. A torch without that switch is left alone.
"""

from __future__ import annotations

import threading
import time

from . import layout, session
from .arbiter import arbiter
from .bystanders import OUR_THREAD
from .guard import guarded
from .runtime import process

LATEST_NS = 20_000_000
"""So long before the end it is too late: the session might end meanwhile."""
_LOOK_S = 1.0


class Quiet:
    """The end of the window that is planned, as this process knows it."""

    def __init__(self) -> None:
        """Nothing is planned."""
        self._end_ns = 0
        self._told_ns = 0

    def step(self, now_ns: int) -> None:
        """To be called by a step that is recorded."""
        end_ns = process.asked(layout.WINDOW_END_NS)
        if end_ns == self._told_ns:
            return
        if now_ns >= process.asked(layout.QUIET_FROM_NS):
            with guarded("quiet"):
                self._begin(end_ns)
        elif end_ns != self._end_ns:
            self._end_ns = end_ns
            threading.Thread(target=self._wait, args=(end_ns,), name=OUR_THREAD, daemon=True).start()

    def _wait(self, end_ns: int) -> None:
        with guarded("quiet"):
            while (left_ns := process.asked(layout.QUIET_FROM_NS) - time.time_ns()) > 0:
                time.sleep(min(_LOOK_S, left_ns / 1e9))
                if process.asked(layout.WINDOW_END_NS) != end_ns:  # it was given up
                    return
            self._begin(end_ns)

    def _begin(self, end_ns: int) -> None:
        """Tell torch, unless somebody opens or closes a session just now, or has one open: it would be told of that."""
        if not arbiter.lock.acquire(blocking=False):
            return
        try:
            if self._told_ns != end_ns and not arbiter.foreign and time.time_ns() < end_ns - LATEST_NS:
                session.take_no_more()
            self._told_ns = end_ns
        finally:
            arbiter.lock.release()


quiet = Quiet()
