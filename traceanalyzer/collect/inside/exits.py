"""Saves an open window when the process ends, however it ends, and keeps signals out of what must not be interrupted.

Guards stand where a process can leave: `atexit`, multiprocessing's finalizers (its children leave by `os._exit`),
`os._exit` itself, and SIGTERM where nobody handles it. They are put in place when the first window opens, so that a
service which is never recorded has nothing patched. What could be wrong: SIGKILL and a crash lose the open window. With
our SIGTERM handler in place, a main thread that hangs in native code no longer dies of SIGTERM until it returns.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from typing import Any, Callable, NoReturn

from .guard import guarded

_HOST_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD")
_WATCHED = tuple(getattr(signal, name) for name in _HOST_SIGNALS if hasattr(signal, name))


class _Held:
    """What was taken from the host while its signals wait: only the main thread changes it."""

    def __init__(self) -> None:
        self.depth = 0
        self.handlers: dict[int, Any] = {}
        self.arrived: list[int] = []
        self.thread = 0
        self.pid = 0

    def after_fork(self) -> None:
        """In the child: where another thread forked, nobody is left who would give the handlers back."""
        if self.depth and threading.get_ident() != self.thread:
            self.depth = 0
            self.arrived.clear()
            self.give_back()

    def give_back(self) -> None:
        """Put the host's handlers in place again, the last taken first."""
        for number, handler in list(self.handlers.items())[::-1]:
            if signal.getsignal(number) is _wait:
                signal.signal(number, handler)
        self.handlers.clear()


_held = _Held()
os.register_at_fork(after_in_child=_held.after_fork)
_installed_in = 0
_finish: Callable[[], None] | None = None


class held:
    """While this is open, no signal handler written in Python runs; those that came run when it closes.

    A handler may raise, fork or start a profiler of its own: none of it may happen between the stop of a session and
    its file's rename. Signals without a Python handler (a plain kill) act as ever. In any other thread than the main
    one, which is where Python runs handlers, this does nothing.
    """

    __slots__ = ("_main",)

    def __init__(self) -> None:
        """Nothing is held yet."""
        self._main = False

    def __enter__(self) -> held:
        """Put our own handler in place of each of the host's."""
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            _held.depth += 1
            if _held.depth == 1:
                _held.thread, _held.pid = threading.get_ident(), os.getpid()
                for number in _WATCHED:
                    handler = signal.getsignal(number)
                    if callable(handler) and handler is not _wait:
                        _held.handlers[number] = handler
                        signal.signal(number, _wait)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the handlers back, then let them see what came. What they raise is the host's."""
        if not self._main:
            return
        _held.depth -= 1
        if _held.depth:
            return
        _held.give_back()
        arrived, _held.arrived = _held.arrived, []
        for number in arrived:
            signal.raise_signal(number)


def waiting() -> bool:
    """Whether a handler waits: the process may be about to end."""
    return bool(_held.arrived)


def _wait(number: int, _frame: Any) -> None:
    if _held.pid != os.getpid() and _held.thread != threading.get_ident():
        _held.after_fork()  # a forked child that hears it before it could do so itself
        signal.raise_signal(number)
        return
    if number not in _held.arrived:
        _held.arrived.append(number)


def install(finish: Callable[[], None]) -> None:
    """Put the guards in place, once per process; `finish` saves what is open and lets nothing open any more."""
    global _finish, _installed_in
    _finish = finish
    _guard_sigterm()
    if _installed_in == os.getpid():
        return
    first, _installed_in = not _installed_in, os.getpid()
    util = sys.modules.get("multiprocessing.util")
    if util is not None:  # a child's registry is emptied when it starts, the ones below are inherited
        util.Finalize(None, _leave, exitpriority=1000)
    if first:
        atexit.register(_leave)
        _guard_os_exit()


def _leave() -> None:
    with held(), guarded("exit"):
        if _finish is not None:
            _finish()


def _guard_os_exit() -> None:
    original = os._exit

    def _exit(status: int) -> NoReturn:
        try:
            _leave()
        finally:
            original(status)

    _exit.__doc__ = original.__doc__
    os._exit = _exit


def _guard_sigterm() -> None:
    """Only where a SIGTERM would kill the process at once, and only from the thread that may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        return
    current = _held.handlers.get(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    if current is not signal.SIG_DFL:
        return
    if _held.depth:  # it takes effect when the host's handlers do again
        _held.handlers[signal.SIGTERM] = _terminate
        signal.signal(signal.SIGTERM, _wait)
    else:
        signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, _frame: Any) -> None:
    """Save, then die of the signal as if nobody had handled it."""
    _leave()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
