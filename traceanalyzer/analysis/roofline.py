"""Where each kernel stands against the roofline, grouped by name and phase.

Attainable speed is min(peak, arithmetic intensity x bandwidth) (Williams, Waterman, Patterson, CACM 2009); in time: a
kernel needs at least max(F / peak, Q / bandwidth), and what it takes beyond that is wasted; one that beats its ideal,
because a cache served it, wasted nothing. F and Q are sums over the
executions whose work is known; where some executions are unknown the totals are unknown too, while the achieved rates
still come from the known ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from traceanalyzer.analysis.intervals import Floats
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.trace.tables import KERNEL

LATENCY_FACTOR = 3.0
LATENCY_BELOW_NS = 10_000
"""A kernel is bound by latency when it takes 3x its ideal time and still under 10 us: neither roof is near."""


def grid_blocks(kernels: pd.DataFrame) -> Floats:
    """Thread blocks of each kernel's grid; NaN where none was recorded. Shape: (kernels,)."""
    grid = kernels[["grid_x", "grid_y", "grid_z"]].to_numpy(np.float64)
    return np.where((grid > 0).all(axis=1), grid.prod(axis=1), np.nan)


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
        computed = grid_blocks(kernel)[row[valid]] / timeline.device.num_sms
        blocks = np.where(np.isnan(blocks), computed, blocks)
    fill[valid] = np.minimum(blocks, 1.0)
    return fill


def _sums(timeline: Timeline) -> Iterator[tuple[str, np.ndarray]]:
    """What is summed over the executions, one column after the other: together they would outweigh the table."""
    table = timeline.table
    duration = table["duration_ns"].to_numpy(np.float64)
    compute, memory = table["compute_ns"].to_numpy(np.float64), table["memory_ns"].to_numpy(np.float64)
    has_ideal = ~np.isnan(compute) & ~np.isnan(memory)
    yield "duration", duration
    yield "duration_ns", table["duration_ns"].to_numpy(np.int64)
    for name in ("flops", "bytes"):
        value = table[name].to_numpy(np.float64)
        yield f"{name}_known", np.nan_to_num(value)
        yield f"{name}_time", np.where(np.isnan(value), 0.0, duration)
    yield "compute", np.nan_to_num(compute)
    yield "memory", np.nan_to_num(memory)
    yield "both_time", np.where(has_ideal, duration, 0.0)
    ideal = np.where(has_ideal, np.maximum(np.nan_to_num(compute), np.nan_to_num(memory)), 0.0)
    yield "ideal", ideal
    yield "wasted", np.where(has_ideal, np.maximum(duration - ideal, 0.0), 0.0)
    fill = grid_fill(timeline)
    yield "fill_time", np.where(np.isnan(fill), 0.0, duration)
    yield "filled", np.nan_to_num(fill) * duration


def by_kernel(timeline: Timeline) -> pd.DataFrame:
    """One row per (phase, kernel name), longest first.

    Columns: name (string code), phase, category, role, tensor_core (i8), dtype, count, duration_ns (int64, sum), flops,
    bytes, arithmetic_intensity, achieved_tflops, achieved_gbs, grid_fill, bound, source, wasted_ns; NaN is unknown.
    """
    table = timeline.table
    phase, phases = pd.factorize(table["phase"], sort=True)
    name, names = pd.factorize(table["name"].to_numpy(), sort=True)
    group, pairs = pd.factorize(phase * max(1, len(names)) + name, sort=True)
    phase, name = pairs // max(1, len(names)), pairs % max(1, len(names))
    total = pd.DataFrame({"phase": np.asarray(phases, object)[phase], "name": names[name]})
    for column, values in _sums(timeline):
        total[column] = pd.Series(values).groupby(group).sum().to_numpy()
    total["count"] = np.bincount(_distinct(group, table["call"].to_numpy(np.int64)), minlength=len(pairs))
    longest = np.argsort(table["duration_ns"].to_numpy(), kind="stable")
    for column in ("category", "role", "dtype", "tensor_core"):
        total[column] = _last_known(table[column], longest, group, len(pairs))
    total["source"] = _sources(table["source"], group, len(pairs))
    total = _rates(total)
    return total.sort_values(["duration_ns", "name"], ascending=[False, True], kind="stable").reset_index(drop=True)


def _distinct(group: np.ndarray, call: np.ndarray) -> np.ndarray:
    """The group of every distinct call in it: pieces of one call count once. Calls are not negative."""
    if (np.diff(call) > 0).all():
        return group
    several = int(call.max(initial=0)) + 1
    return np.asarray(pd.unique(group * several + call) // several)


def _last_known(column: pd.Series, order: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """The last value that is known of each group's rows, taken in `order`; None where none is."""
    known = order[column.notna().to_numpy()[order]]
    row = np.full(groups, -1, np.int64)
    row[group[known]] = known  # of several rows of a group the last one stays
    if (row >= 0).all():
        return np.asarray(column.to_numpy()[row])
    found = np.full(groups, None, object)
    found[row >= 0] = column.to_numpy(object)[row[row >= 0]]
    return found


def _sources(sources: pd.Series, group: np.ndarray, groups: int) -> np.ndarray:
    """Where the known work of each group came from; executions of one name have one source or none."""
    code, names = pd.factorize(sources.to_numpy(object), sort=True)
    known = names[code] != "none"
    first = np.full(groups, "none", object)
    pairs = np.sort(pd.unique(group[known] * max(1, len(names)) + code[known]))[::-1]
    first[pairs // max(1, len(names))] = names[pairs % max(1, len(names))]  # of several the first by name stays
    return first


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
    is below 1. Unknown without a bandwidth or where no bytes are known. Kernels that communicate are not counted: their
    bytes cross links.
    """
    kernel = (timeline.table["kind"] == KERNEL).to_numpy() & (timeline.table["category"] != "comm").to_numpy()
    memory = timeline.table["memory_ns"].to_numpy(np.float64)[kernel]
    duration = timeline.table["duration_ns"].to_numpy(np.float64)[kernel]
    known = ~np.isnan(memory)
    if not duration[known].sum():
        return None, None
    return float(memory[known].sum()) / timeline.recorded_ns, float(duration[known].sum() / duration.sum())
