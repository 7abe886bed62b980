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

Idle time is divided among its causes in `idle`, whose result is kept beside the table.

What could be wrong: a launch that waits very long on another stream or rank looks like unrecorded time.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd

from traceanalyzer.analysis import idle, intervals
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.trace.tables import KERNEL

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


_WORK = ["start_ns", "duration_ns", "tensor_core", "compute_ns", "memory_ns"]


@dataclass(frozen=True)
class Ledger:
    """Rows phase, bucket, ns (int64) that sum to the span; `beats_peak`: kernels whose F / peak exceeds their time.

    `idle` is every gap with its causes, which sum to the idle buckets.
    """

    table: pd.DataFrame
    beats_peak: int
    idle: idle.Divided

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
    rows, beats_peak = _tensor_core(table.loc[tensor, _WORK], phase[tensor], names, higher.length)
    for mask, bucket in ((plain, "no_tensor_core"), (comm, "communication"), (~kernel, "memcpy")):
        own_start, own_end = intervals.owned(start[mask], end[mask])
        free = (own_end - own_start) - intervals.covered(higher, own_start, own_end)
        rows.append(_per_phase(phase[mask], names, bucket, free))
        higher = intervals.union(np.concatenate((higher.starts, start[mask])), np.concatenate((higher.ends, end[mask])))
    divided = idle.divide(timeline)
    rows.append(divided.table()[["phase", "bucket", "ns"]])
    total = pd.concat(rows, ignore_index=True).groupby(["phase", "bucket"], sort=True)["ns"].sum().reset_index()
    return Ledger(total[total["ns"] > 0].reset_index(drop=True), beats_peak, divided)


def _per_phase(phase: np.ndarray, names: pd.Index, bucket: str, ns: np.ndarray) -> pd.DataFrame:
    """Whole nanoseconds of one bucket summed per phase, as rows phase, bucket, ns.

    Exact: sums stay far below 2**53.

    Args:
        phase: the phase of each value, an index into `names`.
        names: of the phases.
        bucket: what the values are.
        ns: the values.
    """
    labels = np.asarray(names, object)
    total = np.bincount(phase, weights=ns, minlength=len(labels))
    return pd.DataFrame({"phase": labels, "bucket": bucket, "ns": total.astype(np.int64)})


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
        pd.DataFrame({"phase": np.asarray(names, object), "bucket": bucket, "ns": ns})
        for bucket, ns in zip(buckets, whole, strict=True)
    ]
    return rows, int((known & (np.nan_to_num(compute) > duration)).sum())
