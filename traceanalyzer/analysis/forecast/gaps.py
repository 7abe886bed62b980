"""The gaps in a device's work: which the host made by being late, and which came after it had waited for the device.

    late     the launch call of the activity that ends the gap was late (see `analysis.late`), and the host had not been
             waiting for the device
    waited   the host was waiting for the device when the gap began, and stopped in it
    queued   neither, and the launch is known: what passes between two kernels that were both there in time

What could be wrong: a host that waits in one thread while another one launches looks like one that waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceanalyzer.analysis import intervals
from traceanalyzer.analysis.intervals import Ints
from traceanalyzer.analysis.late import late
from traceanalyzer.analysis.timeline import Timeline, following
from traceanalyzer.analysis.waits import host_waits
from traceanalyzer.trace.tables import KERNEL, MISSING

Bools = npt.NDArray[np.bool_]

MOST_LATENCY_NS = 5_000.0
"""A kernel that was queued starts within this time of the one before it; longer gaps have other causes."""


@dataclass(frozen=True)
class Gaps:
    """All gaps of a device in order of time, shapes (n,): where they are, whether they end inside a step, their class.

    `latency_ns` is the median length of the queued ones, 0 where there is none.
    """

    start: Ints
    end: Ints
    inside: Bools
    late: Bools
    waited: Bools
    latency_ns: float


def classed_gaps(timeline: Timeline, step_start: Ints, step_end: Ints) -> Gaps:
    """The gaps of a device, against steps in order of time that do not overlap."""
    start, end = intervals.gaps(timeline.busy)
    if not len(start):
        none = np.zeros(0, np.bool_)
        return Gaps(start, end, none, none, none, 0.0)
    row = following(timeline.table["start_ns"].to_numpy(np.int64), end)
    called, returned = (timeline.table[name].to_numpy(np.int64)[row] for name in ("launch_start_ns", "launch_end_ns"))
    kernel = timeline.table["kind"].to_numpy()[row] == KERNEL
    step = np.searchsorted(step_start, start, side="right") - 1
    inside = (step >= 0) & (end < step_end[np.maximum(step, 0)])
    recorded = intervals.covered(timeline.unrecorded, start, end) == 0
    waited = _waited(timeline, start, end)
    behind = late(called, returned, kernel, start)
    known = (called != MISSING) & recorded & ~waited
    queued = (end - start)[known & ~behind].astype(np.float64)
    queued = queued[queued <= MOST_LATENCY_NS]
    return Gaps(start, end, inside, known & behind, waited, float(np.median(queued)) if len(queued) else 0.0)


def _waited(timeline: Timeline, start: Ints, end: Ints) -> Bools:
    """Whether the host was waiting when a gap began, and stopped in it."""
    begins, ends = host_waits(timeline)
    if not len(ends):
        return np.zeros(len(start), np.bool_)
    order = np.argsort(ends, kind="stable")
    begins, ends = begins[order], ends[order]
    place = np.searchsorted(ends, start, side="left")
    safe = np.minimum(place, len(ends) - 1)
    found: Bools = (place < len(ends)) & (begins[safe] < start) & (ends[safe] <= end)
    return found
