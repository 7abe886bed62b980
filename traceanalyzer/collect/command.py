"""The recorded command as a process: started as a shell would start it, waited for, and sent the signals that we get.

It stays in our process group and keeps every open file, so that a terminal, a pipe and a job control shell treat it as
they would without us. What could be wrong: a signal that a terminal sends goes to the whole foreground group, so we
must not pass it on; a `kill -INT` of the collector alone looks the same there, and only the second one is passed on.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
from pathlib import Path
from typing import Callable, Mapping, NoReturn, Sequence

from .launch import NOT_EXECUTABLE, NOT_FOUND, LaunchError

_NOT_OURS = (
    "SIGKILL", "SIGSTOP", "SIGCHLD", "SIGTTIN", "SIGTTOU", "SIGPIPE", "SIGURG", "SIGXFSZ", "SIGXCPU",
    "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGEMT", "SIGSTKFLT",
)  # fmt: skip
"""What cannot be caught, what an error of our own raises, and what says something about us alone."""
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH)
"""What a terminal sends to its whole foreground group."""
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores them from its start; the command shall not."""


class Signals:
    """The signals that arrive, as numbers in their order. Only one may exist, in the main thread."""

    def __init__(self) -> None:
        """Catch everything that is not ignored already: `nohup` and background jobs rely on that."""
        self._read, write = os.pipe()
        self._write = write
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        self._wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._before: dict[int, Callable[..., object] | int | None] = {}
        for number in [*_caught(), signal.SIGCHLD]:
            handler = signal.getsignal(number)
            if handler is not signal.SIG_IGN or number == signal.SIGCHLD:
                self._before[number] = signal.signal(number, _nothing)

    def wait(self, seconds: float) -> list[int]:
        """Those that came, after at most `seconds`; at once when one does."""
        if not select.select([self._read], [], [], seconds)[0]:
            return []
        try:
            return [number for number in os.read(self._read, 4096) if number != signal.SIGCHLD]
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Put everything back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._read)
        os.close(self._write)


class Command:
    """A started command.

    pid: its process. status: as `waitpid` gave it, None while it runs.
    """

    def __init__(self, words: Sequence[str], executable: str, environment: Mapping[str, str]) -> None:
        """Start it. Raises `LaunchError` where the system refuses."""
        self.status: int | None = None
        try:
            self.pid = os.posix_spawn(executable, list(words), dict(environment), setsigdef=_RESTORED)
        except FileNotFoundError:
            raise LaunchError(f"{words[0]}: its interpreter does not exist", NOT_FOUND) from None
        except OSError as error:
            raise LaunchError(f"{words[0]}: {error.strerror}", NOT_EXECUTABLE) from None

    def reap(self) -> None:
        """Take note of every child that ended: the command, and as PID 1 whatever was left to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self.pid:
                self.status = status

    def send(self, number: int) -> None:
        """Send it a signal, while it runs: after that its number may be somebody else's."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def would_die_of(self, number: int) -> bool:
        """Whether it neither handles nor ignores a signal; False where the system does not say (proc(5))."""
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
            facts = dict(line.split(":", 1) for line in lines if line.startswith(("SigCgt:", "SigIgn:")))
            return not any(int(mask, 16) >> (number - 1) & 1 for mask in facts.values()) and bool(facts)
        except (OSError, ValueError):
            return False

    @property
    def exit_code(self) -> int | None:
        """What it left with; None while it runs and where a signal ended it."""
        return os.WEXITSTATUS(self.status) if self.status is not None and os.WIFEXITED(self.status) else None

    @property
    def signal(self) -> int | None:
        """What ended it; None while it runs and where it left by itself."""
        return os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else None


def in_foreground() -> bool:
    """Whether a terminal is there whose signals go to our process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def die_of(number: int) -> NoReturn:
    """End as the command did, by the same signal and without a core file of ours; as PID 1, with 128 + `number`."""
    sys.stderr.flush()
    if os.getpid() != 1:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
    os._exit(128 + number)  # PID 1 cannot die of a signal


def _caught() -> list[int]:
    kept_out = {getattr(signal, name) for name in _NOT_OURS if hasattr(signal, name)}
    return [number for number in range(1, signal.NSIG) if number not in kept_out and _exists(number)]


def _exists(number: int) -> bool:
    """The C library keeps a few real-time signals for itself."""
    try:
        signal.getsignal(number)
    except ValueError:
        return False
    return number <= 31 or signal.SIGRTMIN <= number <= signal.SIGRTMAX


def _nothing(number: int, frame: object) -> None:
    """The pipe says it."""
