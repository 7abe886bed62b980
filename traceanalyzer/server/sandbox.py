"""Runs one analysis child: confined, watched and killed when it is too large or too slow.

The child enters `confine` before it reads anything; here is what only its parent can do: an environment without
secrets, a session of its own, the wall clock, the resident size, the space its folder takes, and an end to its output.
What could be wrong: memory is sampled ten times a second, so a child may pass its limit for a tenth of a second where
the limit on its data segment does not hold (shared memory; systems other than Linux).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, Protocol

import psutil  # type: ignore[import-untyped]

from traceanalyzer.server import confine
from traceanalyzer.server.text import tail

Reason = Literal["done", "refused", "failed", "memory", "cpu", "time", "size", "killed", "stopped"]
"""How a child ended. "refused": its input cannot be analysed; "stopped": we were asked to stop."""

_TAIL = 4096
_WATCH_S = 0.1
_THREADS = 256
_FOLDER_FILES = 8
"""How many files of the largest size its folder may take altogether."""
_MOST_FILES = 1000
_LOOK_AFTER_S = 1.0
_CPU_CAUGHT_S = 1.0
"""How much longer a child may run that catches the signal that its CPU time is over."""
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    # Arrow's own pool reserves a gigabyte of data segment, and every thread's arena another 64 MB.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS"), "1"),
}
_EXITS: Mapping[int, Reason] = {
    0: "done",
    2: "refused",
    confine.OUT_OF_MEMORY: "memory",
    confine.FILE_TOO_LARGE: "size",
    -signal.SIGXCPU: "cpu",
    -signal.SIGXFSZ: "size",
}


class AnalysisLimits(Protocol):
    """What a child may use; `settings.AnalysisLimits` is one."""

    @property
    def memory_bytes(self) -> int:
        """Data segment and resident size."""

    @property
    def cpu_s(self) -> float:
        """CPU time of all its threads."""

    @property
    def wall_s(self) -> float:
        """Time that passes."""

    @property
    def file_bytes(self) -> int:
        """Size of one file it writes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a child ended.

    Attributes:
        code: its exit code, or minus the signal that killed it.
        reason: why, as far as it can be told.
        output: the last 4 kB of what it said on stdout and stderr, without control characters.
        peak_bytes: the largest resident size seen.
        seconds: how long it ran.
    """

    code: int
    reason: Reason
    output: str
    peak_bytes: int
    seconds: float


def run_child(
    argv: Sequence[str], limits: AnalysisLimits, folder: Path, stop: threading.Event | None = None
) -> Outcome:
    """Run a module confined, and wait for its end.

    Args:
        argv: the module's name, or the path of a script in `folder`, and its arguments.
        limits: what it may use.
        folder: its working folder, the one place it may write to.
        stop: set it to kill the child.

    Raises:
        OSError: no process could be started.
    """
    started = time.monotonic()
    process = _start(argv, limits, folder)
    try:
        watch = _Watch(process.pid, limits, folder, started)
        output = _Tail(process)
        reason: Reason | None = None
        while process.poll() is None and reason is None:
            output.read(_WATCH_S)
            reason = "stopped" if stop is not None and stop.is_set() else watch.exceeded()
        _kill(process)
        code = process.wait()
        output.read(0)
    finally:
        _kill(process)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    ended = reason or _EXITS.get(code) or ("killed" if code < 0 else "failed")
    return Outcome(code, ended, output.text(), watch.peak_bytes, time.monotonic() - started)


def check(folder: Path) -> dict[str, str]:
    """What a confined child cannot do here, found by trying: "network", "files", "processes" -> "blocked" or not."""
    try:
        outcome = run_child(("traceanalyzer.server.child", "--check"), _Checking(), folder)
        found = json.loads(outcome.output) if outcome.reason == "done" else {}
    except (OSError, ValueError):
        found = {}
    return {name: str(found.get(name, "unknown")) for name in ("network", "files", "processes")}


@dataclass(frozen=True, slots=True)
class _Checking:
    """Limits of the trial at start."""

    memory_bytes: int = 1 << 30
    cpu_s: float = 10
    wall_s: float = 30
    file_bytes: int = 1 << 20


def _start(argv: Sequence[str], limits: AnalysisLimits, folder: Path) -> subprocess.Popen[bytes]:
    inside = f"{limits.memory_bytes},{max(1, round(limits.cpu_s))},{limits.file_bytes}"
    here = {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PYTHONPATH": os.pathsep.join(str(Path(name).resolve()) for name in sys.path if name),
    }
    return subprocess.Popen(  # noqa: S603 our own module in our own Python
        [sys.executable, "-P", "-s", "-m", confine.__name__, inside, str(os.getpid()), *argv],
        cwd=folder,
        env=_ENVIRONMENT | here,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        close_fds=True,
        start_new_session=True,
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill its whole group, while its number is still its own."""
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()


class _Tail:
    """The last bytes that came out of a pipe; what came before is read and forgotten, so that nobody waits."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._pipe: IO[bytes] = process.stdout  # type: ignore[assignment] # it was asked for
        os.set_blocking(self._pipe.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pipe, selectors.EVENT_READ)
        self._bytes = b""
        self._open = True

    def read(self, seconds: float) -> None:
        """Wait up to `seconds` for output and keep its end; with 0 take what is there."""
        if not self._open:
            time.sleep(seconds)
            return
        for _ in range(16):  # a child that never stops talking must not keep us from watching it
            if not self._selector.select(seconds):
                return
            data = self._pipe.read(1 << 16)
            if data is None:  # it was called ready and is not
                return
            if not data:
                self._open = False
                self._selector.unregister(self._pipe)
                self._selector.close()
                return
            self._bytes = (self._bytes + data)[-_TAIL:]
            seconds = 0

    def text(self) -> str:
        return tail(self._bytes.decode("utf-8", "replace"), _TAIL).strip()


class _Watch:
    """What a child uses, looked at from outside."""

    def __init__(self, pid: int, limits: AnalysisLimits, folder: Path, started: float) -> None:
        self._limits = limits
        self._folder = folder
        self._started = started
        self._look_at = started + _LOOK_AFTER_S
        self._given = self._written()
        self.peak_bytes = 0
        try:
            self._process = psutil.Process(pid)
        except psutil.NoSuchProcess:
            self._process = None

    def exceeded(self) -> Reason | None:
        """The limit that it has passed."""
        now = time.monotonic()
        if now - self._started > self._limits.wall_s:
            return "time"
        if self._process is None:
            return None
        try:
            with self._process.oneshot():
                used = self._process.memory_info().rss
                threads = self._process.num_threads()
                times = self._process.cpu_times()
        except psutil.Error:
            return None
        self.peak_bytes = max(self.peak_bytes, used)
        if used > self._limits.memory_bytes or threads > _THREADS:
            return "memory"
        if times.user + times.system > self._limits.cpu_s + _CPU_CAUGHT_S:
            return "cpu"
        if now >= self._look_at:
            self._look_at = now + _LOOK_AFTER_S
            if self._written() - self._given > _FOLDER_FILES * self._limits.file_bytes:
                return "size"
        return None

    def _written(self) -> int:
        """Bytes in its folder, as the disk counts them; of too many files more than any limit."""
        total = 0
        folders = [self._folder]
        left = _MOST_FILES
        while folders:
            try:
                with os.scandir(folders.pop()) as entries:
                    for entry in entries:
                        left -= 1
                        if left < 0:
                            return sys.maxsize
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(Path(entry.path))
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
            except OSError:  # removed meanwhile
                continue
        return total
