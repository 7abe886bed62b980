"""The supervisor's side of the recorder `ondemand`, around processes that a test starts; no command, no spool."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.collect.runtime import Runtime
from traceanalyzer.collect import kineto
from traceanalyzer.collect import options as collect_options
from traceanalyzer.collect.control import Control
from traceanalyzer.collect.facts import Window
from traceanalyzer.collect.processes import Processes
from traceanalyzer.collect.windows import Windows

HERE = Path(__file__).resolve().parent


class OnDemand:
    """A runtime folder, its daemon and its windows; a context that ends what it started."""

    def __init__(self, *words: str, recorder: str = "ondemand") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="od", dir="/tmp"))  # a socket's path is short
        self.runtime = Runtime(self.folder / "r", recorder=recorder, step=["looped:Model.forward"])
        self.raw = self.folder / "r" / "raw"
        self.options = collect_options.parse(
            ["--signal", "--recorder", recorder, "--min-gap", "0s", *words, "--", "x"], "0"
        )
        self.control = Control(self.runtime.folder / "control", self.options.steps, 2000)
        self.daemon = kineto.Daemon(self.runtime.folder) if recorder == "ondemand" else None
        polling = self.daemon.polling if self.daemon else None
        self.processes = Processes(self.runtime.folder, polling)
        self.windows = Windows(self.options, self.control, self.processes, self.daemon, self.raw, time.time())
        self.children: list[subprocess.Popen[str]] = []
        self.done: list[Window] = []
        if self.daemon:
            self.daemon.start()

    def __enter__(self) -> OnDemand:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            self.kill(child)
        self.processes.close()
        if self.daemon:
            self.daemon.close()
        self.control.close()
        shutil.rmtree(self.folder)

    def spawn(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """Start `looped.py` under the runtime."""
        return self.start(str(HERE / "looped.py"), *words, PYTHONPATH=str(HERE), **variables)

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start Python under the runtime."""
        env = self.runtime.environment(**variables)
        if self.daemon:
            env.update(kineto.environment(self.runtime.folder, self.raw, env))
        child = subprocess.Popen(
            [sys.executable, *arguments], env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.children.append(child)
        return child

    def until(self, condition: Callable[[], object], timeout: float) -> None:
        """Turn until it is so."""
        end = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < end, "timed out"
            self.turn()

    def turn(self) -> None:
        """What the supervisor does every 50 ms."""
        self.control.beat()
        self.processes.refresh()
        self.windows.tick(time.time())
        self.done += self.windows.finished()
        time.sleep(0.05)

    def stepping(self, processes: int) -> bool:
        """Whether so many processes run steps, and ask for work where they can."""
        live = [p for p in self.processes.live if p.stepped_s is not None]
        asks = [p for p in live if self.daemon is None or p.forked or self.daemon.idle(p.pid)]
        return len(asks) >= processes

    def take(self, reason: str = "signal", timeout: float = 60) -> Window:
        """One window."""
        window = self.windows.request(reason, time.time())
        assert isinstance(window, Window), window
        self.until(lambda: window in self.done, timeout)
        return window

    def kill(self, child: subprocess.Popen[str]) -> None:
        """As `kill -9` does, with what it has forked."""
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
