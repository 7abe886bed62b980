"""The `python` recorder: opens and closes windows at step boundaries. Also tells steps of a planned on-demand window.

A window is one profiler session. It is opened and closed by whichever thread reaches a boundary when it is due; while
that goes on, other threads wait at their own boundaries, so that in mode `full` no step is lost between two windows. A
thread of ours lives only while a window is open: it sees a flush, and a window whose steps have stopped coming.

What could be wrong: closing holds the interpreter for as long as Kineto takes (a second per 200 000 events), which is
why a service is recorded `ondemand`. A step of another thread that lasts longer than `arbiter.PATIENCE_S` is cut at the
window's end, and the next window waits until it is over. Before torch 2.7 a session records the thread that starts it,
and only that thread may stop it: windows are then opened by the main thread alone, and nobody closes them in its place.
When the first session of a process starts outside of its main thread, Kineto says on stderr that its init callback must
run in the thread that registered it; nothing is lost by that.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import threading
import time
from typing import Any

from . import exits, layout, session
from .arbiter import SLACK_NS, arbiter, wait_while, watch_forks
from .bystanders import OUR_THREAD
from .guard import given_up, guarded, note
from .quiet import quiet
from .runtime import process

RETRY_NS = 100_000_000
"""How often an opening that was refused is tried again, unless a session has ended meanwhile."""
EXIT_S = 30.0
"""How long a process that ends waits for a window that another thread is writing."""
WATCH_S = 0.05
QUIET_S = 0.005
"""For so long other threads are watched: whether they work at all, and who is still inside an operation."""
LONGEST_OPERATION_S = 0.25
"""How long a session's end is held back for an operation of another thread."""
_SPAN = layout.SPAN


class Window:
    """An open window: its session and its limits."""

    def __init__(self, number: int, steps: int, max_ms: int) -> None:
        """Start the session."""
        self.number = number
        self.pid = os.getpid()
        self._steps = max(1, steps)
        self._taken = itertools.count(1)
        self.begun = 0
        self._flush = process.asked(layout.FLUSH_ID)
        self._max_ns = max(1, max_ms) * 1_000_000
        started = time.perf_counter_ns()
        self.session = session.Session(
            bool(process.config.get("record_shapes")), bool(process.config.get("with_stack"))
        )
        self.session.start()
        self.opened_ns = time.time_ns()
        self._until_ns = time.monotonic_ns() + self._max_ns
        self.open_ms = (time.perf_counter_ns() - started) / 1e6

    def take_step(self) -> bool:
        """Count a step that is about to begin; False when the window is to be closed instead."""
        me = threading.get_ident()
        arbiter.starting.add(me)  # first: whoever closes the window must not miss this step
        if not self.due():
            taken = next(self._taken)
            if taken <= self._steps:
                self.begun = max(self.begun, taken)
                return True
        arbiter.starting.discard(me)
        return False

    def due(self) -> str:
        """Why the window is to be closed at a step boundary; empty: it is not."""
        if process.asked(layout.FLUSH_ID) != self._flush or process.asked(layout.STOPPED):
            return "flush"
        if self.begun >= self._steps:
            return "steps"
        return "time" if time.monotonic_ns() >= self._until_ns else ""

    def overdue(self) -> str:
        """Why the window is to be closed between boundaries: a running step may end first, but not for ever."""
        why = self.due()
        if why == "flush":
            return why
        late_ns = time.monotonic_ns() - self._until_ns
        if late_ns < 0 or (late_ns < self._max_ns and arbiter.step_runs()):
            return ""
        return "time"

    def finish(self, closed_by: str) -> bool:
        """Stop, write the trace and then its facts. Returns whether recording may go on."""
        started = time.perf_counter_ns()
        closed_ns = time.time_ns()
        arbiter.own.active = True
        try:
            self._wait_for_others()
            found = self.session.stop()
        finally:
            arbiter.own.active = False
            arbiter.ours = False
            arbiter.session_over()
        stopped = time.perf_counter_ns()
        if not found:
            note("session", RuntimeError())
            return True
        path = os.path.join(process.config["raw"], f"{self.pid}-{self.number}.json")
        try:
            self.session.save(path)
            saved = time.perf_counter_ns()
            facts = {
                "window": self.number, "pid": self.pid, "recorder": "python", "opened_ns": self.opened_ns,
                "closed_ns": closed_ns, "closed_by": closed_by, "steps": self.begun, "open_ms": self.open_ms,
                "stop_ms": (stopped - started) / 1e6, "save_ms": (saved - stopped) / 1e6,
            }  # fmt: skip
            _write_json(f"{path[:-5]}.meta.json", facts)
        except OSError as error:  # the disk is full: what was written is of no use
            note("save", error)
            for left in (path, f"{path[:-5]}.meta.json.tmp"):
                with contextlib.suppress(OSError):
                    os.remove(left)
            return False
        return True

    def _wait_for_others(self) -> None:
        """Let other threads finish the operations they are in: the end of a session reads what they still write."""
        if threading.active_count() <= 2:  # this one and ours
            return
        for _ in range(2):  # one that falls asleep has worked too
            arbiter.bystanders.look()
            time.sleep(QUIET_S)
            if not arbiter.bystanders.working(arbiter.parked):
                return
        if self.session.quiet():
            arbiter.bystanders.look()
            time.sleep(QUIET_S)
            wait_while(lambda: arbiter.bystanders.busy(arbiter.parked), LONGEST_OPERATION_S)


class Recorder:
    """What this process records. `window` is the open one."""

    def __init__(self) -> None:
        """Nothing is decided before the first boundary or `install`."""
        self.window: Window | None = None
        self.installed = False
        self.ended = False
        """No window is opened any more in this process."""
        self.full = False
        self.seen = 0
        """Number of the last window that this process has answered; in mode `full`, of its last window."""
        self.done = 0
        self.refused_ns = 0
        self._forks_watched = False

    def install(self) -> None:
        """Decide what is to be recorded, and see the script's own sessions from now on."""
        if self.installed:
            return
        self.installed = True
        config = process.config
        arbiter.on_demand = config.get("recorder") == "ondemand"
        self.full = config.get("mode") == "full" and not arbiter.on_demand
        if not self.full:
            self.seen = process.asked(layout.WINDOW_ID)
        arbiter.give_way = self.close
        os.register_at_fork(after_in_child=arbiter.after_fork)
        arbiter.wrap_sessions()
        if arbiter.on_demand:  # Kineto may start between two boundaries
            arbiter.wrap_scopes()
            atexit.register(arbiter.leave)

    def wanted(self) -> bool:
        """Whether a window may be due; cheap, as every step asks."""
        if self.ended or process.control is None:
            return False
        if not self.full and layout.read_word(process.control, layout.WINDOW_ID) == self.seen:
            return False
        refused = self.refused_ns
        return not refused or arbiter.over_ns > refused or time.monotonic_ns() >= refused + RETRY_NS

    def change(self) -> int:
        """Close the window that is due, open the next. Returns the open window's number, else 0."""
        me = threading.get_ident()
        arbiter.parked.add(me)
        try:
            with exits.held(), guarded("recorder"), arbiter.lock:
                return self._change()
        finally:
            arbiter.parked.discard(me)
        return 0

    def _change(self) -> int:
        window = self.window
        if window is not None:
            if window.take_step():  # another thread was quicker
                return window.number
            if session.capturing() or not window.session.may_stop():
                return 0
            if arbiter.step_runs():
                wait_while(arbiter.step_runs)
            self.close(window.due() or "steps")
            if self.full:
                arbiter.wait_gap()
                wait_while(arbiter.hindered)
        self.refused_ns = 0
        if self.window is None and self.wanted() and not exits.waiting() and self._may_open():
            self._open()
        window = self.window
        if window is None:
            self.refused_ns = time.monotonic_ns()
            return 0
        return window.number if window.take_step() else 0

    def _may_open(self) -> bool:
        """Whether a window may be opened now. In mode `sample` a refusal by others is final for that window."""
        if not process.ensure():
            return False
        if arbiter.foreign or session.busy() or not process.supervised():
            if not self.full:
                self._answer()
            return False
        if not session.suits_this_thread():
            note("thread", RuntimeError())
            self.ended = True
        if self.full:
            arbiter.wait_gap()
        elif not process.asked(layout.MAX_STEPS):  # whoever asked for it waits no longer
            self._answer()
            return False
        return not (self.ended or arbiter.gap_ns() > 0 or arbiter.hindered())

    def _answer(self) -> None:
        self.seen = process.asked(layout.WINDOW_ID)
        process.set(layout.RING_SEEN_WINDOW, self.seen)

    def _open(self) -> None:
        config = process.config
        if self.full:
            number, steps, max_ms = self.seen + 1, int(config["steps"]), int(config["max_ms"])
        else:
            number, steps, max_ms = (
                process.asked(offset) for offset in (layout.WINDOW_ID, layout.MAX_STEPS, layout.MAX_MS)
            )
        arbiter.wrap_scopes()
        arbiter.end_scopes()
        exits.install(self.finish)
        if not self._forks_watched:
            self._forks_watched = True
            watch_forks()
            os.register_at_fork(after_in_child=self.after_fork)
        arbiter.own.active = True
        arbiter.ours = True
        try:
            self.window = Window(number, steps, max_ms)
        finally:
            arbiter.own.active = False
            arbiter.ours = self.window is not None
            if not self.full:
                self._answer()
            self.ended = self.ended or given_up("recorder")
        self.seen = number
        process.set(layout.RING_WINDOW, number)
        threading.Thread(target=self._watch, args=(self.window,), name=OUR_THREAD, daemon=True).start()

    def _watch(self, window: Window) -> None:
        while self.window is window:
            time.sleep(WATCH_S)
            with guarded("watch"):
                why = window.overdue() if self.window is window else ""
                if why:
                    self.close(why, window)

    def close(self, why: str, only: Window | None = None) -> None:
        """Close the open window, if it is `only` where that is given; at once, wherever its steps are.

        A session of one thread (torch before 2.7) is closed by that thread alone; at a start of the script's own
        profiler elsewhere it is left to Kineto, which cancels it.
        """
        with exits.held(), arbiter.lock:
            window = self.window
            if window is None or (only is not None and window is not only):
                return
            if window.pid != os.getpid():
                self.window = None
                return
            if not window.session.may_stop():
                if why == "user_profiler":
                    self._lose()
                return
            self.window = None  # from now on other threads wait at their boundaries
            goes_on = False
            try:
                goes_on = window.finish(why)
            finally:
                self.ended = self.ended or not goes_on
                self.done += 1
                process.set(layout.RING_WINDOWS_DONE, self.done)
                process.set(layout.RING_WINDOW, 0)

    def _lose(self) -> None:
        """Let go of a session without stopping it, which would crash; no other one is opened in this process."""
        self.ended = True
        self.window = None
        arbiter.ours = False
        process.set(layout.RING_WINDOW, 0)
        process.hello(recording={"lost": "user_profiler"})

    def finish(self) -> None:
        """The process ends: save what is open and open nothing any more."""
        self.ended = True
        lock = arbiter.lock
        if lock.acquire(timeout=EXIT_S):
            try:
                self.close("exit")
            finally:
                lock.release()

    def after_fork(self) -> None:
        """In the child: its parent's window is not its own."""
        self.window = None
        self.done = 0
        self.refused_ns = 0
        if self.full:
            self.seen = 0


def _write_json(path: str, facts: dict[str, Any]) -> None:
    with open(f"{path}.tmp", "w", encoding="utf-8") as stream:
        json.dump(facts, stream)
    os.replace(f"{path}.tmp", path)


recorder = Recorder()


def install(_: object = None) -> None:
    """To be called when `torch.autograd.profiler` has been imported, with that module or nothing."""
    with guarded("install"):
        recorder.install()


def boundary() -> int:
    """To be called before every outermost step, in any thread.

    Returns the number of the window that is open in this process, or, with the recorder `ondemand`, that is planned for
    now; 0: the step is not recorded. Raises nothing of ours; a host's signal handler that had to wait may raise here.
    """
    if arbiter.on_demand:
        return _planned()
    window = recorder.window
    if window is not None:
        if window.take_step():
            return window.number
    elif not recorder.installed:
        install()
        return boundary() if recorder.installed else 0
    elif not recorder.wanted():
        return 0
    return recorder.change()


def _planned() -> int:
    control = process.control
    if control is None:
        return 0
    start, until = _SPAN.unpack_from(control, layout.RECORD_FROM_NS)
    if not until:
        return 0
    now = time.time_ns()
    if now > until:
        if arbiter.scopes and now > until + SLACK_NS:  # its session is over, the next one is not planned yet
            with guarded("scope"):
                arbiter.end_scopes()
        return 0
    if now < start or arbiter.foreign:
        return 0
    number = layout.read_word(control, layout.WINDOW_ID)
    if number != recorder.seen:
        recorder.seen = number
        process.set(layout.RING_SEEN_WINDOW, number)
    quiet.step(now)
    return number
