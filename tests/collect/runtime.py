"""A runtime folder made by hand, the processes that run under it, and what they left in their rings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from traceanalyzer.collect.inside import layout

INSIDE = Path(layout.__file__).resolve().parent


class Step(NamedTuple):
    """One record of a ring, its phase by name."""

    start_ns: int
    duration_ns: int
    context_sum: int
    query_context_sum: int
    number: int
    tokens: int
    sequences: int
    prefill_tokens: int
    new_sequences: int
    phase: str
    flags: int
    window: int
    thread: int

    @property
    def sums(self) -> tuple[str, int, int, int, int]:
        """What can be computed by hand: phase, tokens, sequences, contexts, tokens x contexts."""
        return self.phase, self.tokens, self.sequences, self.context_sum, self.query_context_sum


class Runtime:
    """A runtime folder as the supervisor makes it; `config` overrides parts of config.json."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.folder = folder
        for name in ("boot", "procs", "rings", "raw"):
            (folder / name).mkdir(parents=True)
        shutil.copytree(INSIDE, folder / "boot" / "_traceanalyzer_inside", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(INSIDE / "sitecustomize.py", folder / "boot")
        usual = {
            "schema": 1, "mode": "sample", "recorder": "python", "steps": 64, "max_ms": 30000, "record_shapes": True,
            "with_stack": False, "step": [], "raw": str(folder / "raw"), "run": "test", "verbose": False,
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps({**usual, **config}))
        (folder / "control").write_bytes(bytes(layout.CONTROL_SIZE))
        self.set(layout.MAGIC, layout.CONTROL_MAGIC)
        self.beat()

    def set(self, offset: int, value: int) -> None:
        """Write one word of the control block."""
        with (self.folder / "control").open("r+b") as stream:
            stream.seek(offset)
            stream.write(value.to_bytes(8, "little"))

    def beat(self, ahead_s: float = 300.0) -> None:
        """A heartbeat that stays young for the whole test."""
        self.set(layout.HEARTBEAT_NS, time.time_ns() + int(ahead_s * 1e9))

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a command under this runtime."""
        path = os.pathsep.join(filter(None, (str(self.folder / "boot"), more.pop("PYTHONPATH", ""))))
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
        kept.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
        return {**kept, "PYTHONPATH": path, layout.ENVIRONMENT: str(self.folder), **more}

    def run(
        self, *arguments: str, cwd: Path | None = None, python: str = sys.executable, timeout: float = 120, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run Python under this runtime and wait for it."""
        return subprocess.run(
            [python, *arguments], env=self.environment(**more), cwd=cwd, capture_output=True, text=True, timeout=timeout
        )

    def processes(self) -> dict[int, dict[str, Any]]:
        """The hello files, by pid."""
        return {int(path.stem): json.loads(path.read_text()) for path in (self.folder / "procs").glob("*.json")}

    def process(self) -> dict[str, Any]:
        """The hello file of the only process."""
        (found,) = self.processes().values()
        return found

    def rings(self) -> dict[int, list[Step]]:
        """The records of each ring, by pid."""
        return {int(path.stem): read_ring(path) for path in (self.folder / "rings").glob("*.ring")}

    def steps(self) -> list[Step]:
        """The records of the only ring."""
        (found,) = self.rings().values()
        return found


def read_ring(path: Path) -> list[Step]:
    """All records of a ring that has not wrapped."""
    with path.open("rb") as stream:
        header = stream.read(layout.PAGE)
        assert layout.read_word(header, layout.MAGIC) == layout.RING_MAGIC
        assert layout.read_word(header, layout.RING_PID) == int(path.stem)
        body = stream.read(layout.read_word(header, layout.RING_COUNT) * layout.RECORD.size)
    found = []
    for number, fields in enumerate(layout.RECORD.iter_unpack(body)):
        named = dict(zip(layout.RECORD_FIELDS, fields, strict=True))
        named["phase"] = layout.PHASES[named["phase"]]
        found.append(Step(**named))
        assert found[-1].number == number
    return found
