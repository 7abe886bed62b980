"""How the host gives a phase its work: launch calls, what they cost, how far it is ahead, and what it reads back.

Over the complete steps of one phase. The cost of a launch is the host's time from one launch call to the next within a
step, without the time in which it waited for the device: what a call costs with the ops around it. The queue at a
kernel's start is how many others had been handed over and had not started.

What could be wrong: work of several threads counts as that of one; of a graph each kernel counts as handed over when
the one call that replays it returned.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis import intervals
from traceanalyzer.analysis.attribution import GRAPH_LAUNCH
from traceanalyzer.analysis.intervals import Ints
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.analysis.waits import host_waits
from traceanalyzer.trace.tables import KERNEL, MISSING

SHORT_NS = 5_000
"""A kernel shorter than this costs about as much to launch as to run."""

_READS = re.compile(r"^aten::(item|_local_scalar_dense|nonzero|is_nonzero|equal|allclose)$")
"""Ops whose result the host must have before it goes on. Source: PyTorch's native functions that synchronise."""

Bools = npt.NDArray[np.bool_]

_NEEDED = ["step", "kind", "call", "launch", "start_ns", "duration_ns", "launch_start_ns", "launch_end_ns"]
"""The columns of a timeline's table that are looked at: all of them would be a second table."""


@dataclass(frozen=True)
class HostRead:
    """An op with which the host read a value of the device: how often per step, and how long that took per step."""

    op: str
    per_step: float
    ns_per_step: float


@dataclass(frozen=True)
class LaunchStats:
    """Per complete step of one phase; times in nanoseconds, None unknown.

    Args:
        phase: whose steps these are.
        steps: how many.
        kernels: kernels per step.
        calls: launch calls per step, and of them those that replay a graph.
        graph_calls: see `calls`.
        call_ns: mean duration of a launch call.
        cost_ns: mean time of the host from one launch call to the next.
        queue_median, queue_empty_share: kernels queued at a kernel's start, and the share of kernels that found none.
        short_share, short_time_share: kernels shorter than `SHORT_NS`, of all kernels and of their time.
        known_share: share of the kernels whose launch call was recorded.
        reads: what the host read back, most time first.
    """

    phase: str
    steps: int
    kernels: float
    calls: float | None
    graph_calls: float | None
    call_ns: float | None
    cost_ns: float | None
    queue_median: float | None
    queue_empty_share: float | None
    short_share: float
    short_time_share: float
    known_share: float
    reads: tuple[HostRead, ...]


def launch_stats(line: Timeline, phase: str) -> LaunchStats | None:
    """The statistics of one phase, None where the device has no complete step of it with a kernel."""
    steps = line.complete_steps
    steps = steps[steps["phase"] == phase]
    rows = line.table.loc[line.table["step"].isin(steps.index), _NEEDED]
    kernels = rows[rows["kind"] == KERNEL]
    if not len(kernels) or not len(steps):
        return None
    count = len(steps)
    duration = kernels["duration_ns"].to_numpy(np.float64)
    short = duration < SHORT_NS
    launched = rows[rows["launch"] >= 0].drop_duplicates("launch")
    calls = len(launched)
    graphs = _graph_calls(line, launched["launch"].to_numpy(np.int64))
    depth = _queue(line, kernels)
    return LaunchStats(
        phase=phase,
        steps=count,
        kernels=kernels["call"].nunique() / count,
        calls=calls / count if calls else None,
        graph_calls=graphs / count if calls else None,
        call_ns=float((launched["launch_end_ns"] - launched["launch_start_ns"]).mean()) if calls else None,
        cost_ns=_cost(line, launched),
        queue_median=float(np.median(depth)) if len(depth) else None,
        queue_empty_share=float((depth == 0).mean()) if len(depth) else None,
        short_share=float(short.mean()),
        short_time_share=float(duration[short].sum() / duration.sum()) if duration.sum() else 0.0,
        known_share=float((kernels["launch"] >= 0).mean()),
        reads=_reads(line, steps),
    )


def _graph_calls(line: Timeline, launch: Ints) -> int:
    codes, count = np.unique(line.trace.launches["name"].to_numpy(np.int64)[launch], return_counts=True)
    return sum(
        times for code, times in zip(codes.tolist(), count.tolist(), strict=True)
        if GRAPH_LAUNCH in line.trace.text(code)
    )  # fmt: skip


def _queue(line: Timeline, kernels: pd.DataFrame) -> Ints:
    """How many other activities of the device had been handed over and not started when each kernel did."""
    known = line.table[line.table["launch_end_ns"] != MISSING]
    handed = np.sort(known["launch_end_ns"].to_numpy(np.int64))
    started = np.sort(known["start_ns"].to_numpy(np.int64))
    at = kernels.loc[kernels["launch_end_ns"] != MISSING, "start_ns"].to_numpy(np.int64)
    ahead = np.searchsorted(handed, at, side="right") - np.searchsorted(started, at, side="right")
    return np.asarray(np.maximum(ahead, 0))


def _cost(line: Timeline, launched: pd.DataFrame) -> float | None:
    """From one launch call of a step to the next, without waits; None where no step has two calls."""
    ordered = launched.sort_values(["step", "launch_start_ns"], kind="stable")
    step = ordered["step"].to_numpy(np.int64)
    begin = ordered["launch_start_ns"].to_numpy(np.int64)
    same = step[1:] == step[:-1]
    if not same.any():
        return None
    first, last = begin[:-1][same], begin[1:][same]
    waits_begin, waits_end = host_waits(line)
    waited = intervals.covered(intervals.union(waits_begin, waits_end), first, last)
    return float((last - first - waited).mean())


def _reads(line: Timeline, steps: pd.DataFrame) -> tuple[HostRead, ...]:
    """The outermost reading ops that began in a step or before the next one began."""
    ops, text = line.trace.ops, line.trace.text
    codes = [int(code) for code in ops["name"].unique() if _READS.match(text(int(code)))]
    if not codes:
        return ()
    reading = ops["name"].isin(codes).to_numpy()
    parent = ops["parent"].to_numpy(np.int64)
    inner = np.append(reading, False)[parent]
    found = ops[reading & ~inner]
    begin = found["start_ns"].to_numpy(np.int64)
    first = steps["start_ns"].to_numpy(np.int64)
    length = steps["period_ns"].fillna(steps["end_ns"] - steps["start_ns"]).to_numpy(np.float64)
    place = np.searchsorted(first, begin, side="right") - 1
    within = (place >= 0) & (begin < first[np.maximum(place, 0)] + length[np.maximum(place, 0)])
    groups = found[within].groupby("name")["duration_ns"].agg(["size", "sum"]).reset_index()
    groups = groups.sort_values(["sum", "name"], ascending=[False, True])
    count = len(steps)
    return tuple(
        HostRead(text(int(name)), size / count, total / count) for name, size, total in groups.itertuples(index=False)
    )
