"""Pipeline bubbles: the time in which a stage has nothing to compute.

A stage waits for its next micro-batch either idle or inside the kernel that receives it; both are the bubble, from the
stage's first step to its last one. Collectives inside a stage are no bubble.

What could be wrong: idle time that the host causes inside a stage's steps counts as bubble too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceanalyzer.analysis.intervals import covered, union
from traceanalyzer.analysis.ranks.calls import Calls


@dataclass(frozen=True)
class Bubble:
    """One stage's time without work, in ns: nothing ran at all, or only a send or receive; `span_ns` is what of."""

    calls: Calls
    idle_ns: int
    passing_ns: int
    span_ns: int

    @property
    def share(self) -> float | None:
        """Share of the stage's span."""
        return (self.idle_ns + self.passing_ns) / self.span_ns if self.span_ns else None


def bubble(calls: Calls) -> Bubble | None:
    """The bubble of a device; None where it exchanges nothing with another stage."""
    if not calls.passing.length:
        return None
    line = calls.line
    steps = line.steps
    begin = int(steps["start_ns"].min()) if len(steps) else line.start_ns
    end = int(steps["end_ns"].max()) if len(steps) else line.end_ns
    span = np.array([begin], np.int64), np.array([end], np.int64)
    working = union(
        np.concatenate((calls.compute.starts, calls.collective.starts)),
        np.concatenate((calls.compute.ends, calls.collective.ends)),
    )
    working_ns = int(covered(working, *span)[0])
    recorded = end - begin - int(covered(line.unrecorded, *span)[0])
    idle = recorded - int(covered(line.busy, *span)[0])
    copies = int(covered(line.busy, *span)[0]) - int(covered(line.kernel_busy, *span)[0])
    return Bubble(calls, idle, max(recorded - idle - working_ns - copies, 0), recorded)
