"""Runs a script of the recorder's tests in a process of its own and reads back what it left.

Most of these processes are forks of one that has imported torch. One test of each kind runs in a fresh interpreter.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

from tests.collect.hosted import Hosted
from tests.collect.runtime import Runtime

STEP = re.compile(r"ta\.step\[decode n=(\d+)\]")
META = {
    "window", "pid", "recorder", "opened_ns", "closed_ns", "closed_by", "steps", "open_ms", "stop_ms", "save_ms"
}  # fmt: skip


@dataclass
class Left:
    """One window's files: its facts and its trace."""

    meta: dict[str, Any]
    trace: dict[str, Any]

    @property
    def labels(self) -> list[int]:
        """Numbers of the annotated steps, in order."""
        found = (STEP.fullmatch(event["name"]) for event in self.trace["traceEvents"] if event.get("ph") == "X")
        return sorted(int(match[1]) for match in found if match)

    def count(self, name: str) -> int:
        """Complete events of a name."""
        return sum(event.get("ph") == "X" and event["name"] == name for event in self.trace["traceEvents"])


@dataclass
class Recorded:
    """A script that has ended."""

    runtime: Runtime
    code: int
    told: list[dict[str, Any]]
    errors: str

    @property
    def raw(self) -> Path:
        """Where its windows are."""
        return self.runtime.folder / "raw"

    def windows(self) -> list[Left]:
        """All windows by pid and number; every file is whole and has its other half."""
        found = []
        names = {path.name for path in self.raw.iterdir()}
        for path in self.raw.glob("*.meta.json"):
            meta = json.loads(path.read_text())
            assert set(meta) == META
            stem = path.name[: -len(".meta.json")]
            assert stem == f"{meta['pid']}-{meta['window']}"
            found.append(Left(meta, json.loads((self.raw / f"{stem}.json").read_text())))
            assert meta["opened_ns"] < meta["closed_ns"]
            names -= {path.name, f"{stem}.json"}
        assert not names, "something half-written was left"
        return sorted(found, key=lambda window: (window.meta["pid"], window.meta["window"]))

    def outline(self) -> list[tuple[int, str, list[int]]]:
        """Number, reason of the end and annotated steps of each window, of a script with one process."""
        return [(left.meta["window"], left.meta["closed_by"], left.labels) for left in self.windows()]


def start(runtime: Runtime, script: str, fresh: bool = False, **environment: str) -> Hosted | Popen[str]:
    """Start a script; it finds the names of `driven`. Freed memory is overwritten, so that using it shows.

    fresh: in a new interpreter, else in a fork in which torch is imported already.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    kept.update(DRIVEN=str(runtime.folder), PYTHONPATH=str(Path(__file__).parent), MALLOC_PERTURB_="165")
    kept.update(KINETO_LOG_LEVEL="6", OMP_NUM_THREADS="1")
    file = runtime.folder / "script.py"
    file.write_text("from driven import *\n" + script)
    if not fresh:
        return Hosted(file, {**kept, **environment})
    return Popen(
        [sys.executable, str(file)], env={**kept, **environment}, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, cwd=runtime.folder,
    )  # fmt: skip


def finish(runtime: Runtime, process: Hosted | Popen[str], timeout: float = 240) -> Recorded:
    """Wait for a script that was started."""
    if isinstance(process, Hosted):
        out, errors = process.finish(timeout)
    else:
        with process:
            try:
                out, errors = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert process.returncode is not None
    return Recorded(runtime, process.returncode, [json.loads(line) for line in out.splitlines()], errors)


def record(folder: Path, script: str, timeout: float = 240, fresh: bool = False, **config: Any) -> Recorded:
    """Run a script under a runtime of its own: mode full in windows of 4 steps unless told otherwise."""
    runtime = Runtime(folder, **{"mode": "full", "steps": 4, **config})
    return finish(runtime, start(runtime, script, fresh), timeout)
