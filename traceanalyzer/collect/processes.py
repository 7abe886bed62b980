"""The command's processes that have imported torch: what they said about themselves, their rings and step logs.

What could be wrong: a process in a PID namespace of its own is known by a number that means somebody else here, or
nobody. Such a one counts as alive while its Kineto asks for work, and without that for a while after its last step.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from .alive import born
from .inside import layout
from .ring import RingReader, Step
from .steplog import StepLog

_LOOK_S = 0.25
"""How often the folder is listed and the dead are looked for; rings are read at each refresh."""
_SILENT_S = 20.0
"""So long after its last step a process that cannot be seen counts as ended."""
_MOST_FACTS_BYTES = 1 << 20
_MOST_ENDED = 64
"""Ended processes whose step logs are kept; of more, the oldest are let go."""


@dataclass
class Process:
    """One process.

    facts: its hello file. fresh, fresh_periods: the steps and the decode periods (ns) that the last refresh brought.
    """

    pid: int
    facts: dict[str, Any]
    ring: RingReader
    log: StepLog = field(default_factory=StepLog)
    fresh: list[Step] = field(default_factory=list)
    fresh_periods: list[int] = field(default_factory=list)
    born: str | None = None
    """When the system says it was started: tells a number used again from the process that had it."""
    seen_s: float = field(default_factory=time.monotonic)
    stepped_s: float | None = None
    """Monotonic seconds at which it was first seen, and at which its ring last grew."""
    changed_ns: int = 0
    ended: bool = False
    _ahead: list[Step] = field(default_factory=list)
    _periods_ahead: list[int] = field(default_factory=list)

    @property
    def holds_model(self) -> bool:
        """Whether a window of this process would have steps in it."""
        return self.stepped_s is not None or bool(self.facts.get("model"))

    @property
    def has_engine(self) -> bool:
        """Whether an engine's classes are wrapped: its steps will be seen as soon as it runs any."""
        hooks = self.facts.get("hooks")
        return isinstance(hooks, list) and any(
            isinstance(name, str) and not name.startswith("torch.") for name in hooks
        )

    @property
    def age_s(self) -> float:
        """Seconds since it was first seen."""
        return time.monotonic() - self.seen_s

    @property
    def shares_steps(self) -> bool:
        """Whether it says that it is one of several ranks."""
        world = self.facts.get("world_size")
        return isinstance(world, int) and world > 1

    @property
    def fresh_requests(self) -> int:
        """Sequences that started among the fresh steps."""
        return sum(step.new_sequences for step in self.fresh)

    @property
    def forked(self) -> bool:
        """Whether torch was imported before the process was forked: it has no Kineto thread."""
        return bool(self.facts.get("forked"))

    @property
    def open_scopes(self) -> int:
        """Scopes entered during a recording and not left yet."""
        return self.ring.word(layout.RING_OPEN_SCOPES)

    @property
    def failures(self) -> int:
        """Failures of ours in it, at all places; what failed is in its facts, as of the first time at each place."""
        return self.ring.word(layout.RING_FAILURES)

    @property
    def foreign_profilers(self) -> int:
        """Profiler sessions of the script itself."""
        return self.ring.word(layout.RING_FOREIGN)

    def read(self) -> None:
        """Take the new steps from the ring into the log."""
        self._take()
        self.fresh, self._ahead = self._ahead, []
        self.fresh_periods, self._periods_ahead = self._periods_ahead, []

    def catch_up(self) -> None:
        """Take all that is in the ring by now into the log; for whoever asks what is fresh it comes with `read`."""
        while self._take():
            continue

    def drain(self) -> None:
        """Take what is left, after it has ended."""
        self.ended = True
        for steps in self.ring.rest():
            self.log.add(steps)
        self.ring.close()

    def _take(self) -> bool:
        new = self.ring.new_records()
        if new:
            self._ahead += new
            self._periods_ahead += self.log.add(new)
            self.stepped_s = time.monotonic()
        return bool(new)


class Processes:
    """All processes of the run.

    live: those that run. ended: those that ran, drained; more were forgotten, `let_go` of them with steps.
    """

    def __init__(self, runtime: Path, polling: Callable[[int], bool] | None = None) -> None:
        """Watch RUNTIME/procs and RUNTIME/rings.

        Args:
            runtime: the runtime folder.
            polling: whether the process of this number asks for work, see `kineto.Daemon.polling`.
        """
        self.live: list[Process] = []
        self.ended: list[Process] = []
        self.let_go = 0
        self._procs = runtime / "procs"
        self._rings = runtime / "rings"
        self._polling = polling or (lambda pid: False)
        self._looked_s = float("-inf")
        self._done: dict[int, int] = {}
        """Number of an ended process -> when its hello file was last written."""

    def refresh(self) -> None:
        """Read all rings; from time to time look for new processes and for those that have ended."""
        now = time.monotonic()
        if now - self._looked_s >= _LOOK_S:
            self._looked_s = now
            self._look()
        for process in self.live:
            process.read()

    def _look(self) -> None:
        known = {process.pid: process for process in self.live}
        try:
            entries = list(os.scandir(self._procs))
        except OSError:
            entries = []
        for entry in entries:
            name, _, kind = entry.name.partition(".")
            if kind != "json" or not name.isdigit():
                continue
            pid = int(name)
            try:
                changed_ns = entry.stat().st_mtime_ns
            except OSError:
                continue
            process = known.get(pid)
            if process is None and self._done.get(pid) != changed_ns:
                self._meet(pid, Path(entry.path), changed_ns)
            elif process is not None and process.changed_ns != changed_ns:
                process.facts = _facts(Path(entry.path), pid) or process.facts
                process.changed_ns = changed_ns
        for process in [process for process in self.live if not self._is_alive(process)]:
            self._end(process)

    def _meet(self, pid: int, path: Path, changed_ns: int) -> None:
        facts = _facts(path, pid)
        if facts is None:
            return
        try:
            ring = RingReader(self._rings / f"{pid}.ring")
        except OSError:
            return
        self.live.append(Process(pid, facts, ring, born=born(pid), changed_ns=changed_ns))

    def _is_alive(self, process: Process) -> bool:
        started = born(process.pid)
        if started is not None and started == process.born:
            return True
        if process.born is not None:
            return False
        since = process.seen_s if process.stepped_s is None else process.stepped_s
        return self._polling(process.pid) or time.monotonic() - since < _SILENT_S

    def _end(self, process: Process) -> None:
        """Take what a process left in its ring, then let go of it."""
        process.drain()
        self.live.remove(process)
        self._done[process.pid] = process.changed_ns
        self.ended.append(process)
        if len(self.ended) > _MOST_ENDED:
            self.let_go += len(self.ended.pop(0).log) > 0

    def close(self) -> None:
        """Drain and let go of all."""
        for process in list(self.live):
            self._end(process)


def _facts(path: Path, pid: int) -> dict[str, Any] | None:
    """What a hello file says; None where it is none."""
    try:
        with path.open("rb") as stream:
            facts = json.loads(stream.read(_MOST_FACTS_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return facts if isinstance(facts, dict) and facts.get("pid") == pid else None
