"""The time ledger: every nanosecond of a device's span in exactly one bucket.

What an instant is, in order of precedence: a tensor-core kernel runs > another kernel runs > communication > a copy or
fill > idle. Its phase is that of the winning kernel (the earliest start breaks ties).

Tensor-core kernels that overlap share the time equally, so each gets a weight w on its own duration, and its time
splits into
    useful   w min(F / peak, duration)
    memory   w (max(F / peak, min(duration, Q / bandwidth)) - F / peak)
    other    the rest: tile and wave quantisation, latency, clocks
    unknown  all of it where F is unknown, the rest where Q is.
A kernel that may or may not run on tensor cores counts as one whose FLOPs are unknown: unknown is a band, neither idle
nor useful.

Idle time takes the phase of the step it lies in, between steps that of the following step, and `other` outside the
first and last complete step. Its causes:
    idle_launch    the launch call of the activity that ends the gap began after the gap did; or, for a kernel, was
                   still running (loading a module, building a graph launch). A copy's call may run for as long as
                   it waits for the device, so only its start counts. Counted until a kernel normally starts, 20 us
                   after the call returned; what is longer is unknown.
    idle_artefact  unrecorded time (see `timeline`): the recording was cut, the device was not idle
    idle_host      on a CPU device: time outside every op of the recording
    idle_unknown   everything else (short gaps between queued kernels, launches outside the window)

What could be wrong: a launch that waits very long on another stream or rank looks like unrecorded time.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd

from traceanalyzer.analysis import intervals
from traceanalyzer.analysis.intervals import Ints
from traceanalyzer.analysis.timeline import Timeline, counted_steps, following
from traceanalyzer.trace.tables import KERNEL, MISSING

GROUPS = MappingProxyType({
    "idle_launch": "idle", "idle_graph_launch": "idle", "idle_sync": "idle", "idle_host": "idle", "idle_alloc": "idle",
    "idle_latency": "idle", "idle_wait_rank": "idle", "idle_no_work": "idle", "idle_artefact": "idle",
    "idle_unknown": "idle",
    "communication": "moving", "memcpy": "moving",
    "no_tensor_core": "busy_no_tensor_core",
    "tensor_core_memory": "tensor_core_waiting", "tensor_core_other": "tensor_core_waiting",
    "tensor_core_unknown": "tensor_core_waiting",
    "tensor_core_useful": "tensor_core_useful",
})  # fmt: skip
"""The group each bucket is shown in."""


LAUNCH_LATENCY_NS = 20_000
"""Within this time after its launch call returns, a kernel on an empty queue starts."""


@dataclass(frozen=True)
class Ledger:
    """Rows phase, bucket, ns (int64) that sum to the span; `beats_peak`: kernels whose F / peak exceeds their time."""

    table: pd.DataFrame
    beats_peak: int

    def total_ns(self, *buckets: str) -> int:
        """Time in the given buckets over all phases."""
        return int(self.table.loc[self.table["bucket"].isin(buckets), "ns"].sum())

    def group_ns(self, group: str) -> int:
        """Time in a group over all phases."""
        return self.total_ns(*(bucket for bucket, name in GROUPS.items() if name == group))


def account(timeline: Timeline) -> Ledger:
    """Put the whole span of one device into buckets. The rows sum to `timeline.span_ns` exactly."""
    table = timeline.table
    start = table["start_ns"].to_numpy(np.int64)
    end = start + table["duration_ns"].to_numpy(np.int64)
    kernel = table["kind"].to_numpy() == KERNEL
    comm = kernel & (table["category"] == "comm").to_numpy()
    tensor = kernel & ~comm & (table["tensor_core"].to_numpy() != 0)
    if timeline.device.has_tensor_cores is False:
        tensor[:] = False
    plain = kernel & ~comm & ~tensor
    phase, names = pd.factorize(table["phase"])

    higher = intervals.union(start[tensor], end[tensor])
    rows, beats_peak = _tensor_core(table[tensor], phase[tensor], names, higher.length)
    for mask, bucket in ((plain, "no_tensor_core"), (comm, "communication"), (~kernel, "memcpy")):
        own_start, own_end = intervals.owned(start[mask], end[mask])
        free = (own_end - own_start) - intervals.covered(higher, own_start, own_end)
        rows.append(_by_phase(phase[mask], names, bucket, free))
        higher = intervals.union(np.concatenate((higher.starts, start[mask])), np.concatenate((higher.ends, end[mask])))
    rows.append(_idle(timeline, start))
    total = pd.concat(rows, ignore_index=True).groupby(["phase", "bucket"], sort=True)["ns"].sum().reset_index()
    return Ledger(total[total["ns"] > 0].reset_index(drop=True), beats_peak)


def _by_phase(phase: np.ndarray, names: pd.Index, bucket: str, ns: np.ndarray) -> pd.DataFrame:
    """Whole nanoseconds of one bucket summed per phase. Exact: sums stay far below 2**53."""
    total = np.bincount(phase, weights=ns, minlength=len(names))
    return pd.DataFrame({"phase": names.to_numpy(object), "bucket": bucket, "ns": total.astype(np.int64)})


def _tensor_core(table: pd.DataFrame, phase: np.ndarray, names: pd.Index, total: int) -> tuple[list[pd.DataFrame], int]:
    """Split the union of the tensor-core kernels into useful, memory, other and unknown, in whole nanoseconds."""
    start = table["start_ns"].to_numpy(np.int64)
    duration = table["duration_ns"].to_numpy(np.float64)
    shared = intervals.shared_time(start, start + table["duration_ns"].to_numpy(np.int64))
    weight = np.divide(shared, duration, out=np.zeros_like(duration), where=duration > 0)
    compute = np.where(table["tensor_core"].to_numpy() == 1, table["compute_ns"].to_numpy(np.float64), np.nan)
    memory = table["memory_ns"].to_numpy(np.float64)
    known, sized = ~np.isnan(compute), ~np.isnan(memory)
    useful = np.where(known, np.minimum(np.nan_to_num(compute), duration), 0.0)
    waits = np.where(known & sized, np.maximum(np.minimum(duration, np.nan_to_num(memory)) - useful, 0.0), 0.0)
    rest = duration - useful - waits
    buckets = {
        "tensor_core_useful": useful,
        "tensor_core_memory": waits,
        "tensor_core_other": np.where(known & sized, rest, 0.0),
        "tensor_core_unknown": np.where(known & sized, 0.0, rest),
    }
    exact = [np.bincount(phase, weights=weight * value, minlength=len(names)) for value in buckets.values()]
    whole = intervals.largest_remainder(np.concatenate(exact), total).reshape(len(buckets), len(names))
    rows = [
        pd.DataFrame({"phase": names.to_numpy(object), "bucket": bucket, "ns": ns})
        for bucket, ns in zip(buckets, whole, strict=True)
    ]
    return rows, int((known & (np.nan_to_num(compute) > duration)).sum())


def _idle(timeline: Timeline, start: Ints) -> pd.DataFrame:
    gap_start, gap_end = intervals.gaps(timeline.busy)
    length = gap_end - gap_start
    phase = _gap_phases(counted_steps(timeline.steps), gap_start)
    if timeline.device.kind == "cpu":
        return pd.DataFrame({"phase": phase, "bucket": "idle_host", "ns": length})
    unrecorded = intervals.covered(timeline.unrecorded, gap_start, gap_end)
    launch = np.where(unrecorded > 0, 0, _launch_part(timeline.table, start, gap_start, gap_end))
    parts = {"idle_artefact": unrecorded, "idle_launch": launch, "idle_unknown": length - unrecorded - launch}
    return pd.concat(
        [pd.DataFrame({"phase": phase, "bucket": bucket, "ns": ns}) for bucket, ns in parts.items()],
        ignore_index=True,
    )


def _launch_part(table: pd.DataFrame, start: Ints, gap_start: Ints, gap_end: Ints) -> Ints:
    """How much of each gap the launch call of the activity that ends it explains."""
    if not len(gap_start):
        return gap_start
    row = following(start, gap_end)
    called = table["launch_start_ns"].to_numpy(np.int64)[row]
    returned = table["launch_end_ns"].to_numpy(np.int64)[row]
    is_kernel = table["kind"].to_numpy()[row] == KERNEL
    late = (called != MISSING) & ((called > gap_start) | (is_kernel & (returned > gap_start)))
    part: Ints = np.where(late, np.minimum(gap_end, returned + LAUNCH_LATENCY_NS) - gap_start, 0)
    return part


def _gap_phases(steps: pd.DataFrame, gap_start: Ints) -> np.ndarray:
    """The phase of each gap: of the step it lies in, else of the step that follows, else `other`."""
    phase = np.full(len(gap_start), "other", dtype=object)
    if not len(steps) or not len(gap_start):
        return phase
    ordered = steps.sort_values("start_ns", kind="stable")
    first, last = ordered["start_ns"].to_numpy(np.int64), ordered["end_ns"].to_numpy(np.int64)
    names = ordered["phase"].to_numpy(object)
    reach = np.maximum.accumulate(last)
    inside_or_next = np.searchsorted(reach, gap_start, side="right")
    within = (gap_start >= first[0]) & (inside_or_next < len(names))
    phase[within] = names[inside_or_next[within]]
    return phase
