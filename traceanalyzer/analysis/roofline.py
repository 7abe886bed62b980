"""Where each kernel stands against the roofline, grouped by name and phase.

Attainable speed is min(peak, arithmetic intensity x bandwidth) (Williams, Waterman, Patterson, CACM 2009); in time: a
kernel needs at least max(F / peak, Q / bandwidth), and what it takes beyond that is wasted; one that beats its ideal,
because a cache served it, wasted nothing. F and Q are sums over the
executions whose work is known; where some executions are unknown the totals are unknown too, while the achieved rates
still come from the known ones.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.trace.tables import KERNEL

LATENCY_FACTOR = 3.0
LATENCY_BELOW_NS = 10_000
"""A kernel is bound by latency when it takes 3x its ideal time and still under 10 us: neither roof is near."""

SUMMED = (
    "duration",
    "flops_known",
    "bytes_known",
    "flops_time",
    "bytes_time",
    "compute",
    "memory",
    "both_time",
    "ideal",
    "wasted",
)


def grid_fill(timeline: Timeline) -> np.ndarray:
    """Share of the SMs that each kernel's grid can fill at once, min(1, blocks / SMs); NaN where none was recorded."""
    table = timeline.table
    kernel = timeline.trace.kernels
    row = table["kernel"].to_numpy()
    fill = np.full(len(table), np.nan)
    if timeline.device.kind == "cpu" or not len(kernel):
        return fill
    valid = row >= 0
    blocks = kernel["blocks_per_sm"].to_numpy(np.float64)[row[valid]]
    blocks[blocks <= 0] = np.nan
    if timeline.device.num_sms:
        grid = kernel[["grid_x", "grid_y", "grid_z"]].to_numpy(np.float64)[row[valid]]
        computed = np.where((grid > 0).all(axis=1), grid.prod(axis=1) / timeline.device.num_sms, np.nan)
        blocks = np.where(np.isnan(blocks), computed, blocks)
    fill[valid] = np.minimum(blocks, 1.0)
    return fill


def _columns(timeline: Timeline) -> pd.DataFrame:
    table = timeline.table
    duration = table["duration_ns"].to_numpy(np.float64)
    flops, size = table["flops"].to_numpy(np.float64), table["bytes"].to_numpy(np.float64)
    compute, memory = table["compute_ns"].to_numpy(np.float64), table["memory_ns"].to_numpy(np.float64)
    has_flops, has_bytes = ~np.isnan(flops), ~np.isnan(size)
    has_ideal = ~np.isnan(compute) & ~np.isnan(memory)
    ideal = np.where(has_ideal, np.maximum(np.nan_to_num(compute), np.nan_to_num(memory)), 0.0)
    fill = grid_fill(timeline)
    return pd.DataFrame({
        "name": table["name"].to_numpy(), "phase": table["phase"].to_numpy(), "call": table["call"].to_numpy(),
        "duration": duration, "duration_ns": table["duration_ns"].to_numpy(np.int64),
        "flops_known": np.where(has_flops, flops, 0.0), "bytes_known": np.where(has_bytes, size, 0.0),
        "flops_time": np.where(has_flops, duration, 0.0), "bytes_time": np.where(has_bytes, duration, 0.0),
        "compute": np.nan_to_num(compute), "memory": np.nan_to_num(memory),
        "both_time": np.where(has_ideal, duration, 0.0),
        "ideal": ideal,
        "wasted": np.where(has_ideal, np.maximum(duration - ideal, 0.0), 0.0),
        "fill_time": np.where(np.isnan(fill), 0.0, duration), "filled": np.nan_to_num(fill) * duration,
        "category": table["category"].to_numpy(), "role": table["role"].to_numpy(), "dtype": table["dtype"].to_numpy(),
        "tensor_core": table["tensor_core"].to_numpy(), "source": table["source"].to_numpy(),
    })  # fmt: skip


def by_kernel(timeline: Timeline) -> pd.DataFrame:
    """One row per (phase, kernel name), longest first.

    Columns: name (string code), phase, category, role, tensor_core (i8), dtype, count, duration_ns (int64, sum), flops,
    bytes, arithmetic_intensity, achieved_tflops, achieved_gbs, grid_fill, bound, source, wasted_ns; NaN is unknown.
    """
    rows = _columns(timeline)
    sums = [*SUMMED, "duration_ns", "fill_time", "filled"]
    by = rows.groupby(["phase", "name"], sort=True)
    total = by[sums].sum()
    total["count"] = by["call"].nunique()
    longest = rows.sort_values("duration_ns", kind="stable").groupby(["phase", "name"], sort=True)
    for column in ("category", "role", "dtype", "tensor_core"):
        total[column] = longest[column].last()
    total["source"] = by["source"].agg(_source)
    total = _rates(total).reset_index()
    return total.sort_values(["duration_ns", "name"], ascending=[False, True], kind="stable").reset_index(drop=True)


def _source(sources: pd.Series) -> str:
    """Where the known work came from; executions of one name have one source or none."""
    known = sorted(source for source in sources.unique() if source != "none")
    return known[0] if known else "none"


def _rates(total: pd.DataFrame) -> pd.DataFrame:
    """Turn sums into rates; zero denominators and incomplete sums become NaN."""
    duration = total["duration"]
    everything = 1.0 - 1e-12
    flops_all = (total["flops_time"] >= duration * everything) & (total["flops_time"] > 0)
    bytes_all = (total["bytes_time"] >= duration * everything) & (total["bytes_time"] > 0)
    ideal_all = (total["both_time"] >= duration * everything) & (total["both_time"] > 0)
    total["flops"] = total["flops_known"].where(flops_all)
    total["bytes"] = total["bytes_known"].where(bytes_all)
    total["arithmetic_intensity"] = total["flops"] / total["bytes"].where(total["bytes"] > 0)
    total["achieved_tflops"] = total["flops_known"] / total["flops_time"].where(total["flops_time"] > 0) / 1e3
    total["achieved_gbs"] = total["bytes_known"] / total["bytes_time"].where(total["bytes_time"] > 0)
    total["grid_fill"] = total["filled"] / total["fill_time"].where(total["fill_time"] > 0)
    total["wasted_ns"] = total["wasted"].where(ideal_all)
    total["bound"] = _bound(total, ideal_all)
    return total


def _bound(total: pd.DataFrame, known: pd.Series) -> np.ndarray:
    mean = total["duration"] / total["count"].where(total["count"] > 0)
    latency = (total["duration"] > LATENCY_FACTOR * total["ideal"]) & (mean < LATENCY_BELOW_NS)
    memory = total["memory"] > total["compute"]
    return np.select([~known, latency, memory], ["unknown", "latency", "memory"], "compute").astype(object)


def sm_fill(timeline: Timeline) -> float | None:
    """Share of the recorded span in which SMs had blocks: sum of duration x min(1, blocks / SMs) over it.

    An estimate of what DCGM calls SM active; tail waves are ignored. Unknown where under 95 % of the kernel time has a
    grid.
    """
    kernel = timeline.table["kind"].to_numpy() == KERNEL
    duration = timeline.table["duration_ns"].to_numpy(np.float64)[kernel]
    fill = grid_fill(timeline)[kernel]
    known = ~np.isnan(fill)
    if not duration.sum() or duration[known].sum() < 0.95 * duration.sum():
        return None
    return min(1.0, float((duration[known] * fill[known]).sum()) / timeline.recorded_ns)


def bandwidth_share(timeline: Timeline) -> tuple[float | None, float | None]:
    """Share of the peak bandwidth used over the recorded span, and the share of kernel time it stands on.

    Bytes of the kernels whose bytes are known over bandwidth and recorded time: a lower bound while the second figure
    is below 1. Unknown without a bandwidth or where no bytes are known.
    """
    kernels = timeline.table[timeline.table["kind"] == KERNEL]
    memory = kernels["memory_ns"].to_numpy(np.float64)
    duration = kernels["duration_ns"].to_numpy(np.float64)
    known = ~np.isnan(memory)
    if not duration[known].sum():
        return None, None
    return float(memory[known].sum()) / timeline.recorded_ns, float(duration[known].sum() / duration.sum())
