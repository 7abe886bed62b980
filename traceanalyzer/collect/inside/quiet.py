"""Before Kineto ends a window on demand, no operation may be on its way into it.

Kineto's own thread ends the session and reads at once what the operations have written, without looking whether a
thread of the model is just writing: half an entry is read as a whole one, and once in a few hundred windows the process
crashes. So a moment before that time torch is told to take no further operations. An operation that is just being
entered is written within microseconds or, where its thread has lost the processor, some milliseconds; one that runs on
(a label, a wait for the GPU) writes its end when it comes to it, which is harmless. The GPU's own activities are
recorded to the end. The ring says when torch was told: a step that ended later may lack operations.

It is told by a thread of ours, which lives from the window's first step to that moment, or by a step that begins after
it, whichever comes first. What could be wrong: where no step begins in the window (an unknown engine, one step that is
longer than it) and on a machine so busy that nobody gets the processor in time, torch is not told; and a thread that
has lost the processor for longer than `LATEST_NS`, in the microsecond in which it wrote, is still met. A torch without
that switch is left alone.
"""

from __future__ import annotations

import _thread
import time

from . import layout, session
from .arbiter import arbiter
from .guard import guarded
from .runtime import process

LATEST_NS = 40_000_000
"""So long before the end it is too late: the session might end meanwhile."""
_LOOK_S = 1.0


class Quiet:
    """The window that is planned, known by its end, as this process sees it."""

    def __init__(self) -> None:
        """Nothing is planned."""
        self._waited_for = 0
        """End of the window that a thread waits for, or has waited for; epoch nanoseconds."""
        self._over = 0
        """End of the window for which nothing is left to do."""

    def step(self, now_ns: int) -> None:
        """To be called by a step that is recorded."""
        end_ns = process.asked(layout.WINDOW_END_NS)
        if end_ns == self._over:
            return
        with guarded("quiet"):
            if now_ns >= process.asked(layout.QUIET_FROM_NS):
                self._begin(end_ns, patience_s=0.0)
            elif end_ns != self._waited_for:
                self._waited_for = end_ns
                # `threading.Thread.start` waits until the new thread has had the interpreter, and the step would wait.
                _thread.start_new_thread(self._wait, (end_ns,))

    def _wait(self, end_ns: int) -> None:
        with guarded("quiet"):
            while (left_ns := process.asked(layout.QUIET_FROM_NS) - time.time_ns()) > 0:
                time.sleep(min(_LOOK_S, left_ns / 1e9))
                if process.asked(layout.WINDOW_END_NS) != end_ns:  # given up, or begun anew
                    return
            self._begin(end_ns, patience_s=max(0.0, (end_ns - LATEST_NS - time.time_ns()) / 1e9))

    def _begin(self, end_ns: int, patience_s: float) -> None:
        """Tell torch, unless the script has a session open: it would be told of that, and Kineto's is cancelled."""
        if not arbiter.lock.acquire(timeout=patience_s):
            return
        try:
            take_no_more = session.switch_off()
            if end_ns == self._over or arbiter.foreign or take_no_more is None:
                return
            self._over = end_ns  # first: where it fails, it is not tried again
            now_ns = time.time_ns()
            if now_ns < end_ns - LATEST_NS:
                take_no_more()
                process.set(layout.RING_QUIET_NS, now_ns)
        finally:
            arbiter.lock.release()


quiet = Quiet()
