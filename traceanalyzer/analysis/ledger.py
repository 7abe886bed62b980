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
    idle_launch    the launch call of the kernel that ends the gap had not returned when the gap began
    idle_artefact  unrecorded time (see `timeline`): the recording was cut, the device was not idle
    idle_host      on a CPU device: time outside every op of the recording
    idle_unknown   everything else (short gaps between queued kernels, launches outside the window)

What could be wrong: a launch that waits on another stream or rank looks like an artefact when that wait is long; the
threshold is far above what queues show.
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

    parts: list[pd.DataFrame] = []
    higher = intervals.union(start[tensor], end[tensor])
    tensor_rows, beats_peak = _tensor_core(table[tensor], start[tensor], end[tensor], higher.length)
    parts.append(tensor_rows)
    for mask, bucket in ((plain, "no_tensor_core"), (comm, "communication"), (~kernel, "memcpy")):
        own_start, own_end = intervals.owned(start[mask], end[mask])
        free = (own_end - own_start) - intervals.covered(higher, own_start, own_end)
        parts.append(pd.DataFrame({"phase": table["phase"].to_numpy()[mask], "bucket": bucket, "ns": free}))
        higher = intervals.union(np.concatenate((higher.starts, start[mask])), np.concatenate((higher.ends, end[mask])))
    parts.append(_idle(timeline, start))
    rows = pd.concat([part.astype({"ns": np.int64}) for part in parts], ignore_index=True)
    total = rows.groupby(["phase", "bucket"], sort=True)["ns"].sum().reset_index()
    return Ledger(total[total["ns"] > 0].reset_index(drop=True), beats_peak)


def _tensor_core(table: pd.DataFrame, start: Ints, end: Ints, total: int) -> tuple[pd.DataFrame, int]:
    """Split the union of the tensor-core kernels into useful, memory, other and unknown, in whole nanoseconds."""
    duration = (end - start).astype(np.float64)
    weight = np.divide(intervals.shared_time(start, end), duration, out=np.zeros_like(duration), where=duration > 0)
    compute = table["compute_ns"].to_numpy(np.float64)
    memory = table["memory_ns"].to_numpy(np.float64)
    compute = np.where(table["tensor_core"].to_numpy() == 1, compute, np.nan)
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
    phase = table["phase"].to_numpy()
    rows = pd.concat(
        [pd.DataFrame({"phase": phase, "bucket": name, "ns": weight * value}) for name, value in buckets.items()],
        ignore_index=True,
    )
    rows = rows.groupby(["phase", "bucket"], sort=True)["ns"].sum().reset_index()
    rows["ns"] = intervals.largest_remainder(rows["ns"].to_numpy(np.float64), total)
    beats = int((known & (np.nan_to_num(compute) > duration)).sum())
    return rows, beats


def _idle(timeline: Timeline, start: Ints) -> pd.DataFrame:
    gap_start, gap_end = intervals.gaps(timeline.busy)
    if timeline.device.kind == "cpu":
        cause = np.full(len(gap_start), "idle_host", dtype=object)
    else:
        cause = _causes(timeline, start, gap_start, gap_end)
    phase = _gap_phases(counted_steps(timeline.steps), gap_start)
    return pd.DataFrame({"phase": phase, "bucket": cause, "ns": gap_end - gap_start})


def _causes(timeline: Timeline, start: Ints, gap_start: Ints, gap_end: Ints) -> np.ndarray:
    """The cause of each gap, from the launch call of the first activity that ends it."""
    returned = timeline.table["launch_end_ns"].to_numpy(np.int64)
    if not len(gap_start):
        return np.empty(0, dtype=object)
    launched = returned[following(start, gap_end)]
    late = (launched != MISSING) & (launched > gap_start)
    unrecorded = intervals.covered(timeline.unrecorded, gap_start, gap_end) > 0
    return np.select([unrecorded, late], ["idle_artefact", "idle_launch"], "idle_unknown").astype(object)


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
