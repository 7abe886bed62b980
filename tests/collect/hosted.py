"""The other end of `host.py`: a script that runs in a fork of it, as `subprocess.Popen` shows one that was started."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

_HOST = Path(__file__).with_name("host.py")
_hosts: list[subprocess.Popen[str]] = []
_last: list[Hosted] = []


class Hosted:
    """One script. Only one at a time is run."""

    def __init__(self, script: Path, environment: dict[str, str]) -> None:
        """Start it."""
        self.returncode: int | None = None
        self._outputs = script.with_suffix(".out"), script.with_suffix(".errors")
        job = {
            "script": str(script), "folder": str(script.parent), "environment": environment,
            "out": str(self._outputs[0]), "errors": str(self._outputs[1]),
        }  # fmt: skip
        for last in _last:
            last.give_up()
        _last[:] = [self]
        self._host = _host()
        assert self._host.stdin is not None and self._host.stdout is not None
        self._host.stdin.write(json.dumps(job) + "\n")
        self._host.stdin.flush()
        self.pid = int(self._host.stdout.readline())

    def send_signal(self, number: int) -> None:
        """As to any process; where it has ended, nobody has its number before `wait` was asked."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self.returncode if self.returncode is not None else self._wait(0)

    def finish(self, timeout: float) -> tuple[str, str]:
        """What it wrote, when it has ended. Kills it and raises where that takes too long."""
        if self.returncode is None and self._wait(timeout) is None:
            os.kill(self.pid, signal.SIGKILL)
            self._wait(timeout)
            raise subprocess.TimeoutExpired(str(self._outputs[0]), timeout)
        out, errors = (path.read_text(encoding="utf-8") for path in self._outputs)
        return out, errors

    def give_up(self) -> None:
        """End it where its test has not waited for it."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._wait(60)

    def _wait(self, timeout: float) -> int | None:
        stream = self._host.stdout
        assert stream is not None
        if select.select([stream], [], [], timeout)[0]:
            self.returncode = os.waitstatus_to_exitcode(int(stream.readline()))
        return self.returncode


def _host() -> subprocess.Popen[str]:
    """The host of this run of the tests. What has to be there when a process begins is in its environment."""
    if not _hosts:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
        kept.update(MALLOC_PERTURB_="165", KINETO_LOG_LEVEL="6", OMP_NUM_THREADS="1")
        _hosts.append(
            subprocess.Popen(
                [sys.executable, str(_HOST)], env=kept, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )
        atexit.register(_close)
    return _hosts[0]


def _close() -> None:
    for host in _hosts:
        host.kill()
        host.communicate()
