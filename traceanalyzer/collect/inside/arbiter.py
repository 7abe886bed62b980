"""Keeps profiler sessions apart: one at a time, the script's own first, and no scope that outlives its session.

Kineto has one session per process. A second start cancels the first without an error, and whoever stops the cancelled
one crashes. A `record_function` scope that is entered in one session and left in the next writes into freed memory.
So every way that Python has to start a session is wrapped: a session of the script closes ours first, and ours stays
away until it is over. And each scope that is still open when a session has stopped is ended at once, while no session
runs, which is harmless; when the script leaves it later, nothing is left to do.

What could be wrong: what starts a session in native code, or through a function that was imported before the hooks
were in place, is not seen; `torch.autograd._profiler_enabled` and an empty result are the second line. Scopes of
`_RecordFunctionFast`, of `torch.ops.profiler` called directly and of native code are not seen either: they are short.
Operations in flight in other threads are why sessions keep `GAP_NS` apart, and longer where `bystanders` sees one.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from typing import Any, Callable

from . import kineto_turn, layout
from .bystanders import Bystanders
from .exits import held
from .guard import guarded
from .runtime import process

GAP_NS = 50_000_000
"""Between two sessions: longer than operations in flight usually last."""
PATIENCE_S = 2.0
"""How long a start is held back for operations and steps of other threads."""
POLL_S = 0.001
SLACK_NS = 500_000_000
"""By which an on-demand session may start before, or end after, its planned span."""
STEP_PREFIX = "ta.step["
_SPAN = layout.SPAN
_STARTS = ("_enable_profiler", "_enable_profiler_legacy")
_STOPS = ("_disable_profiler", "_disable_profiler_legacy")
_HOLDERS = ("torch._C._autograd", "torch.autograd", "torch.autograd.profiler", "torch.autograd.profiler_legacy")


class Arbiter:
    """Who records in this process. `lock` is held by whoever opens or closes a session.

    foreign: sessions of the script that are prepared or running.
    ours: whether a session of ours runs.
    scopes: open scopes that were entered in a session, by the id of their record: (record, thread, whether a step).
    unfinished: steps, ended by us, in which another thread still is: it may be inside an operation of that session.
    starting: threads that have been told to record a step and have not put its label yet.
    parked: threads that wait for us, hence are inside no operation.
    """

    def __init__(self) -> None:
        """Nothing is wrapped yet."""
        self.lock = threading.RLock()
        self.ending = threading.RLock()
        self.foreign = 0
        self.prepared = 0
        self.ours = False
        self.scopes: dict[int, tuple[Any, int, bool]] = {}
        self.unfinished: dict[int, tuple[Any, int]] = {}
        self.starting: set[int] = set()
        self.parked: set[int] = set()
        self.bystanders = Bystanders()
        self.over_ns = 0
        """Monotonic nanoseconds at which the last session, whoever's, ended."""
        self.own = threading.local()
        """`own.active` is set in the thread that starts or stops our session."""
        self.give_way: Callable[[str], None] | None = None
        """Closes our session; set by the recorder."""
        self.on_demand = False
        self._sessions_wrapped = False
        self._scopes_wrapped = False

    def begin(self, prepares: bool = False) -> None:
        """A session of the script is about to start."""
        me = threading.get_ident()
        self.parked.add(me)
        try:
            self._take_turn()
            with held(), guarded("arbiter"), self.lock:
                self.prepared += prepares
                self.wait_gap()
                wait_while(self.hindered)
        finally:
            self.parked.discard(me)

    def leave(self) -> None:
        """The process ends: Kineto's thread, which nobody joins, must not be at work when its library is torn down."""
        if not process.forked:  # a forked child has no such thread
            self._take_turn()

    def _take_turn(self) -> None:
        turns = kineto_turn.TURNS
        while not self._announce(patient=turns > 0):
            kineto_turn.wait()
            turns -= 1

    def _announce(self, patient: bool = True) -> bool:
        """Close our session and show the script's; False, and nothing is shown, where Kineto is at work on demand."""
        with held(), guarded("arbiter"), self.lock:
            if self.ours and self.give_way is not None:
                self.give_way("user_profiler")
            self.foreign += 1
            process.set(layout.RING_FOREIGN, self.foreign)
            if patient and self.on_demand and self.foreign == 1 and kineto_turn.at_work():
                self.foreign = 0
                process.set(layout.RING_FOREIGN, 0)
                return False
        return True

    def end(self) -> None:
        """A session of the script is over, or could not start."""
        with held(), guarded("arbiter"), self.lock:
            self.foreign = max(0, self.foreign - 1)
            self.prepared = min(self.prepared, self.foreign)
            process.set(layout.RING_FOREIGN, self.foreign)
            self.session_over()

    def session_over(self) -> None:
        """Note the time at which a session ended, and end its scopes while none runs."""
        self.over_ns = time.monotonic_ns()
        self.bystanders.look()
        if not self.foreign:
            self.end_scopes()

    def gap_ns(self) -> int:
        """Nanoseconds to wait until the next session may start; 0 or less: none."""
        return self.over_ns + GAP_NS - time.monotonic_ns() if self.over_ns else 0

    def wait_gap(self) -> None:
        """Wait until the next session may start."""
        left = self.gap_ns()
        if left > 0:
            time.sleep(left / 1e9)

    def watching(self) -> bool:
        """Whether a scope that is entered now belongs to a session."""
        if self.ours or self.foreign:
            return True
        if not self.on_demand or process.control is None:
            return False
        start, until = _SPAN.unpack_from(process.control, layout.RECORD_FROM_NS)
        return bool(until and start - SLACK_NS <= time.time_ns() <= until + SLACK_NS)

    def entered(self, scope: Any) -> None:
        """Remember a scope."""
        record, me = scope.record, threading.get_ident()
        step = str(scope.name).startswith(STEP_PREFIX)
        self.scopes[id(record)] = (record, me, step)
        if step:
            self.starting.discard(me)
        process.set(layout.RING_OPEN_SCOPES, len(self.scopes))

    def leaving(self, scope: Any) -> None:
        """Forget a scope; wait while another thread is ending it."""
        key = id(scope.record)
        if self.scopes.pop(key, None) is None:
            with self.ending:
                self.unfinished.pop(key, None)
        process.set(layout.RING_OPEN_SCOPES, len(self.scopes))

    def end_scopes(self) -> None:
        """End what the last session left open. Only while no session runs, or while it is still the scopes' own."""
        if not self.scopes:
            return
        end = sys.modules["torch"].ops.profiler._record_function_exit._RecordFunction
        me = threading.get_ident()
        with self.ending:
            while self.scopes:
                key, (record, thread, step) = self.scopes.popitem()
                if step and thread != me:
                    self.unfinished[key] = (record, thread)
                with guarded("scope"):
                    end(record)
        process.set(layout.RING_OPEN_SCOPES, 0)

    def step_runs(self) -> bool:
        """Whether a thread that does not wait for us is inside a step of the session that runs, or about to be."""
        me = threading.get_ident()
        if any(self._busy(thread, me) for thread in list(self.starting)):
            return True
        return any(step and self._busy(thread, me) for _, thread, step in list(self.scopes.values()))

    def hindered(self) -> bool:
        """Whether a thread may still be inside an operation of the last session."""
        me = threading.get_ident()
        if any(self._busy(thread, me) for _, thread in list(self.unfinished.values())):
            return True
        return self.bystanders.busy(self.parked)

    def _busy(self, thread: int, me: int) -> bool:
        return thread != me and thread not in self.parked and thread in sys._current_frames()

    def after_fork(self) -> None:
        """In the child: of all threads only this one is left; its scopes are still open."""
        me = threading.get_ident()
        self.lock = threading.RLock()
        self.ending = threading.RLock()
        self.own = threading.local()
        self.ours = False
        self.starting.clear()
        self.parked.clear()
        self.unfinished.clear()
        self.bystanders.forget()
        self.scopes = {key: found for key, found in self.scopes.items() if found[1] == me}

    def wrap_sessions(self) -> None:
        """Wrap every function through which Python starts or stops a session."""
        profiler = sys.modules.get("torch.autograd.profiler")
        if self._sessions_wrapped or profiler is None:
            return
        self._sessions_wrapped = True
        if getattr(profiler, "_is_profiler_enabled", False):
            self.begin()
        self._replace("_prepare_profiler", _preparing)
        for name in _STARTS:
            self._replace(name, _starting)
        for name in _STOPS:
            self._replace(name, _stopping)

    def _replace(self, name: str, wrapper: Callable[[Any, Arbiter], Any]) -> None:
        native = sys.modules["torch._C._autograd"]
        original = getattr(native, name, None)
        if original is None:
            return
        replacement = wrapper(original, self)
        for holder in _HOLDERS:
            module = sys.modules.get(holder)
            if module is not None and getattr(module, name, None) is original:
                setattr(module, name, replacement)

    def wrap_scopes(self) -> None:
        """Wrap `record_function`, also where it is used as a decorator."""
        profiler = sys.modules.get("torch.autograd.profiler")
        if self._scopes_wrapped or profiler is None:
            return
        self._scopes_wrapped = True
        kind: Any = profiler.record_function
        kind.__enter__ = _entering(kind.__enter__, self)
        kind.__exit__ = _leaving(kind.__exit__, self)


def _preparing(original: Any, arbiter: Arbiter) -> Any:
    @functools.wraps(original)
    def prepare(*args: Any, **kwargs: Any) -> Any:
        if getattr(arbiter.own, "active", False):
            return original(*args, **kwargs)
        arbiter.begin(prepares=True)
        return _begun(original, arbiter, args, kwargs)

    return prepare


def _starting(original: Any, arbiter: Arbiter) -> Any:
    @functools.wraps(original)
    def enable(*args: Any, **kwargs: Any) -> Any:
        if getattr(arbiter.own, "active", False):
            return original(*args, **kwargs)
        if arbiter.prepared:
            arbiter.prepared -= 1
        else:
            arbiter.begin()
        return _begun(original, arbiter, args, kwargs)

    return enable


def _begun(original: Any, arbiter: Arbiter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call what starts a session; where it fails, none is running."""
    try:
        return original(*args, **kwargs)
    except BaseException:
        arbiter.end()
        raise


def _stopping(original: Any, arbiter: Arbiter) -> Any:
    @functools.wraps(original)
    def disable(*args: Any, **kwargs: Any) -> Any:
        if getattr(arbiter.own, "active", False):
            return original(*args, **kwargs)
        if not arbiter.foreign:  # a stop without a start would stop ours
            arbiter.begin()
        try:
            return original(*args, **kwargs)
        finally:
            arbiter.end()

    return disable


def _entering(original: Any, arbiter: Arbiter) -> Any:
    # `wraps` also leads TorchScript, which compiles these methods from their source, to the original.
    @functools.wraps(original)
    def enter(self: Any) -> Any:
        watched = arbiter.watching()
        found = original(self)
        if watched or arbiter.watching():
            with guarded("scope"):
                arbiter.entered(self)
        return found

    return enter


def _leaving(original: Any, arbiter: Arbiter) -> Any:
    @functools.wraps(original)
    def leave(self: Any, *error: Any) -> Any:
        if arbiter.scopes or arbiter.unfinished or arbiter.ours:
            with guarded("scope"):
                arbiter.leaving(self)
        return original(self, *error)

    return leave


arbiter = Arbiter()


def wait_while(condition: Callable[[], bool], patience_s: float | None = None) -> None:
    """Wait until a condition is over, or patience is: that many seconds, or as long as for anything here."""
    until = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
    while condition() and time.monotonic() < until:
        time.sleep(POLL_S)


def prepare_fork() -> None:
    """In the parent, before a fork: no session may run, and nobody may be opening one."""
    arbiter.own.forking = arbiter.lock.acquire(timeout=10)
    if arbiter.own.forking and arbiter.ours and arbiter.give_way is not None:
        with held(), guarded("fork"):
            arbiter.give_way("flush")


def after_fork_in_parent() -> None:
    """Let others go on."""
    if getattr(arbiter.own, "forking", False):
        arbiter.own.forking = False
        arbiter.lock.release()


def watch_forks() -> None:
    """A child must not inherit a running session: it could not stop it, and would pay for it until it ends."""
    os.register_at_fork(before=prepare_fork, after_in_parent=after_fork_in_parent)
