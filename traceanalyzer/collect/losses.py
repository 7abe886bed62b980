"""What was lost between the processes and the recording, which nobody would miss: counted here for the manifest.

What could be wrong: what a process that was killed had not written is counted nowhere. A process that replaces itself
begins to count anew.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

from .inside import layout
from .processes import Process

STEPS_OVERWRITTEN, STEPS_BEYOND_LOG, WINDOWS_UNWRITTEN, STEP_LOGS = (
    "steps_overwritten", "steps_beyond_log", "windows_unwritten", "step_logs",
)  # fmt: skip
"""Steps that were gone before they were read; that did not fit into a step log; windows of mode `full` that a process
ended without a file; and processes whose step log was not kept."""
_Key = Tuple[int, Optional[str]]


class Losses:
    """The losses of all processes, also of those that are not remembered any more."""

    def __init__(self, full: bool) -> None:
        """Nothing was lost yet. `full`: the processes take windows by themselves."""
        self._full = full
        self._seen: dict[_Key, dict[str, int]] = {}

    def see(self, process: Process, files: int) -> None:
        """What a process has lost so far, of whose windows `files` were collected."""
        found = {STEPS_OVERWRITTEN: process.ring.lost, STEPS_BEYOND_LOG: process.log.dropped}
        if self._full and process.ended:  # until then a file may lie there that was not looked at yet
            ended = process.ring.word(layout.RING_WINDOWS_DONE) + _let_go(process.facts)
            found[WINDOWS_UNWRITTEN] = max(0, ended - files)
        self._seen[process.pid, process.born] = found

    def counts(self, step_logs: int) -> dict[str, int]:
        """Kind of loss -> how many, without those that did not occur. `step_logs`: that were forgotten."""
        total = {STEP_LOGS: step_logs}
        for found in self._seen.values():
            for kind, count in found.items():
                total[kind] = total.get(kind, 0) + count
        return {kind: count for kind, count in sorted(total.items()) if count}


def _let_go(facts: dict[str, Any]) -> int:
    """A window that had to be abandoned because the script's own profiler took its session over."""
    recording = facts.get("recording")
    return int(isinstance(recording, dict) and "lost" in recording)
