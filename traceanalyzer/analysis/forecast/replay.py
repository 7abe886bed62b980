"""When a step would end if its kernels took other times and were launched as they were.

A kernel starts when the one before it has ended and its own launch call has come through, so

    start = max(end of the one before + gap, launched)

Shorter kernels before one that is waiting for its launch call only make the device wait longer; kernels that were
queued move up. A kernel that is gone frees the host from its launch, and all later calls come earlier by that.

What could be wrong: what the host does between two launches is taken to belong to the first of them; a host that waits
for the device in the middle of a step is taken to come back when it did. Where streams overlap, a kernel's time is what
it adds to the busy time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.late import late
from traceanalyzer.trace.tables import KERNEL, MISSING

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

USUAL_LATENCY_NS = 3_000.0
"""From the return of a launch call, for a copy from its beginning, to the start on an idle device, if none shows it."""
MOST_COST = 5.0
"""A launch counts for at most this many times the median: more is a wait, or work that does not belong to it."""


@dataclass(frozen=True)
class Replay:
    """The activity of some steps, in order of step and start. Shapes: (n,); times in nanoseconds from the step's start.

    Args:
        step: which step each row belongs to.
        adds: what it adds to the busy time.
        gap: idle time before it although its launch was not late.
        ready: when its launch had come through; -inf where that is not known.
        cost: what its launch costs the host; 0 where the call launches more than it.
    """

    step: Ints
    adds: Floats
    gap: Floats
    ready: Floats
    cost: Floats

    def saving(self, duration_ratio: Floats, gone: Bools) -> float:
        """Nanoseconds by which a step would end earlier on average.

        Args:
            duration_ratio: each row's new time over its old one.
            gone: rows that are no longer launched.
        """
        now = self._ends(self.adds, self.gap, self.ready)
        left = np.where(gone, 0.0, 1.0)
        freed = self._cumulative(np.where(gone, self.cost, 0.0))
        ready = np.where(gone, -np.inf, self.ready - freed)
        first = np.append(True, self.step[1:] != self.step[:-1])
        ready[first] = self.ready[first]
        after = self._ends(self.adds * duration_ratio * left, self.gap * left, ready)
        return float((now - after).mean()) if len(now) else 0.0

    def _ends(self, adds: Floats, gap: Floats, ready: Floats) -> Floats:
        """When each step ends: the latest of all chains that begin with a launch and wait for no other one."""
        total = self._cumulative(gap + adds)
        latest = pd.Series(ready + adds - total).groupby(self.step).cummax().to_numpy(np.float64)
        last = np.append(self.step[1:] != self.step[:-1], True) if len(self.step) else np.zeros(0, np.bool_)
        ends: Floats = (total + latest)[last]
        return ends

    def _cumulative(self, values: Floats) -> Floats:
        return np.asarray(pd.Series(values).groupby(self.step).cumsum(), np.float64)


def replay(rows: pd.DataFrame, shares_launch: Bools) -> Replay:
    """What was recorded of some steps.

    Args:
        rows: activity in order of step and start, with the columns of `Timeline.table`.
        shares_launch: rows whose launch call launched others too (a graph).
    """
    step = rows["step"].to_numpy(np.int64)
    start = rows["start_ns"].to_numpy(np.int64)
    end = start + rows["duration_ns"].to_numpy(np.int64)
    reach = pd.Series(end).groupby(step).cummax()
    before = reach.groupby(step).shift(1).to_numpy(np.float64)
    first = np.isnan(before)
    before = np.where(first, start, before)
    origin = pd.Series(start).groupby(step).transform("first").to_numpy(np.float64)
    adds = reach.to_numpy(np.float64) - np.maximum(before, np.minimum(start, reach.to_numpy(np.float64)))
    called, returned = (rows[c].to_numpy(np.int64) for c in ("launch_start_ns", "launch_end_ns"))
    idle = np.maximum(start - before, 0.0)
    is_kernel = (rows["kind"] == KERNEL).to_numpy()
    pinned = late(called, returned, is_kernel, before) & (idle > 0)
    through = np.where(is_kernel, returned, called)  # a copy's call may return only when the copy is done
    known = np.minimum(through + _latency(start - through, pinned, is_kernel), start)
    ready = np.where((called == MISSING) & ~first, -np.inf, np.where(pinned | first, start, known) - origin)
    return Replay(
        step=step,
        adds=np.maximum(adds, 0.0),
        gap=np.where(pinned, 0.0, idle),
        ready=ready,
        cost=np.where(shares_launch | (called == MISSING), 0.0, _cost(called, step)),
    )


def _latency(took: Ints, pinned: Bools, is_kernel: Bools) -> Floats:
    """From a launch call to the start of what it launched on an idle device: the median of kernels, that of others."""
    out = np.full(len(took), USUAL_LATENCY_NS)
    for kind in (is_kernel, ~is_kernel):
        if (pinned & kind).any():
            out[kind] = max(float(np.median(took[pinned & kind])), 0.0)
    return out


def _cost(called: Ints, step: Ints) -> Floats:
    """What each launch costs the host: the time to the next launch call, as far as that is usual."""
    order = np.lexsort((called, step))
    ordered = called[order].astype(np.float64)
    between = np.append(np.diff(ordered), np.nan)
    between[:-1][np.diff(step[order]) != 0] = np.nan
    usual = float(np.nanmedian(between)) if (~np.isnan(between)).any() else 0.0
    cost = np.empty(len(called), np.float64)
    cost[order] = np.clip(np.where(np.isnan(between), usual, between), 0.0, MOST_COST * usual)
    return cost
