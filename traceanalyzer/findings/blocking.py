"""The host's waits for the device in some steps, and the idle time after them.

What could be wrong: see `analysis.waits`, which finds them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceanalyzer.analysis import intervals
from traceanalyzer.analysis.intervals import Floats, Ints
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.analysis.waits import host_waits


@dataclass(frozen=True)
class Waits:
    """Calls of the host that waited for the device, in order of time. Shapes: (n,), (n,)."""

    begin: Ints
    end: Ints


def in_steps(line: Timeline, steps: pd.DataFrame) -> Waits:
    """The waits that ended in one of the steps, or between it and the next one.

    Of a step that no other one follows, those that began before it ended.
    """
    begin, end = host_waits(line)
    first = steps["start_ns"].to_numpy(np.int64)
    next_one = (steps["start_ns"] + steps["period_ns"]).to_numpy(np.float64)
    place = np.searchsorted(first, end, side="right") - 1
    of = np.maximum(place, 0)
    within = np.where(np.isnan(next_one[of]), begin < steps["end_ns"].to_numpy(np.int64)[of], end < next_one[of])
    inside = (place >= 0) & within
    return Waits(begin[inside], end[inside])


def idle_after(line: Timeline, waits: Waits) -> tuple[Floats, Floats]:
    """For each gap of the device in which a wait ended: its length, and how long the host had waited before it.

    Shapes: (m,), (m,). Of a wait only what lies before the gap counts: the rest is the call's return.
    """
    gap_start, gap_end = intervals.gaps(line.busy)
    if not len(gap_start):
        return np.zeros(0), np.zeros(0)
    place = np.searchsorted(gap_end, waits.end, side="right")
    safe = np.minimum(place, len(gap_start) - 1)
    hit = (place < len(gap_start)) & (gap_start[safe] <= waits.end) & (gap_start[safe] >= waits.begin)
    which, back = np.unique(safe[hit], return_inverse=True)
    waited = np.zeros(len(which), np.float64)
    np.add.at(waited, back, (gap_start[safe[hit]] - waits.begin[hit]).astype(np.float64))
    unrecorded = line.unrecorded_between(gap_start[which], gap_end[which])
    return (gap_end[which] - gap_start[which] - unrecorded).astype(np.float64), waited
