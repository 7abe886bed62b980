"""What a reader must know before believing the figures: notes that only the analysis can make.

The reader notes what was lost or repaired in the file; here is what the results themselves give away: kernels faster
than the limits allow, work that is not known and why, time that was not recorded.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pandas as pd

from traceanalyzer.analysis.attribution import launches_of, replayed
from traceanalyzer.analysis.devices import DeviceInfo
from traceanalyzer.analysis.ledger import Ledger
from traceanalyzer.analysis.phases import KNOWN_ENOUGH
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.analysis.unknown import unknown_by_time
from traceanalyzer.trace.collector import section
from traceanalyzer.trace.tables import KERNEL, Note

_NAMED = 3
"""How many kinds of kernels without work a note names."""
_LONGEST_NAME = 60


def contradictions(analysed: Sequence[tuple[Timeline, Ledger]]) -> list[Note]:
    """What contradicts the limits or weakens the times of the devices: a peak, a work model or the recording is off."""
    lines = [line for line, _ in analysed]
    beats = sum(ledger.beats_peak for _, ledger in analysed)
    notes = [Note("kernel_beats_compute_peak", "warning", beats)] if beats else []
    cached = sum(_beats_bandwidth(line.table) for line in lines)
    if cached:
        notes.append(Note("kernel_beats_bandwidth", "info", cached))
    if not any(len(line.table) for line in lines):
        notes.append(Note("no_device_activity", "error"))
    if any(_lacks_limits(line.device) for line in lines):
        notes.append(Note("gpu_unknown", "warning", 1))
    if any(line.trace.metadata.with_stack and _idles(line, ledger) for line, ledger in analysed):
        notes.append(Note("stacks_slow_the_host", "warning"))
    unrecorded = sum(line.unrecorded.length - line.between.length for line in lines)
    if unrecorded:
        notes.append(Note("unrecorded_device_time", "warning", 1, f"{unrecorded / 1e6:.2f}"))
    return notes


def windows(lines: Sequence[Timeline]) -> list[Note]:
    """Says that several windows are one report, how much time lies between them, and what their beginning distorts."""
    notes = []
    longest = max(lines, key=lambda line: line.between.length)
    count = max(len(line.trace.windows) for line in lines)
    if count > 1:
        notes.append(Note("windows_joined", "info", count, f"{longest.between.length / 1e9:.3g}"))
    if any(section(line.trace.metadata.collector, "window").get("cold_start") is True for line in lines):
        notes.append(Note("cold_start", "info"))
    return notes


def unknown_work(line: Timeline) -> list[Note]:
    """Says why the work of many kernels is unknown, where it is: graphs, no shapes recorded, or ops without a model.

    The detail is their share of the kernel time, then the `_NAMED` kinds that take most of it.
    """
    compute = (line.table["kind"] == KERNEL) & (line.table["category"] != "comm")
    kernels = line.table.loc[compute, ["kernel", "duration_ns", "flops", "bytes"]]
    time = kernels["duration_ns"].sum()
    unknown = kernels[kernels["bytes"].isna() | kernels["flops"].isna()]
    share = unknown["duration_ns"].sum() / time if time else 0.0
    if share <= 1 - KNOWN_ENOUGH or line.device.kind == "cpu":  # a CPU's views and wrappers have no work
        return []
    longest = unknown_by_time(line).head(_NAMED)
    kinds = [f"{_kind(row)} {100 * row['duration_ns'] / time:.1f} %" for row in longest.to_dict("records")]
    percent = ", ".join([f"{100 * share:.0f} %", *kinds])
    in_graph = replayed(line.trace, launches_of(line.trace))[unknown["kernel"].to_numpy()]
    if in_graph.sum() > len(unknown) / 2:
        return [Note("unknown_work_in_graphs", "warning", len(unknown), percent)]
    if not line.trace.metadata.record_shapes:
        return [Note("unknown_work_without_shapes", "warning", len(unknown), percent)]
    return [Note("unknown_work_of_ops", "warning", len(unknown), percent)]


def _kind(row: Mapping[Hashable, Any]) -> str:
    """What a kind of kernel does, and for which op where one is known."""
    role = str(row["role"]) if row["role"] == row["category"] else f"{row['category']} {row['role']}"
    return f"{role} of {row['op'][:_LONGEST_NAME]}" if row["op"] else role


def _beats_bandwidth(table: pd.DataFrame) -> int:
    """Kernels whose bytes need clearly longer than they took: a cache served them, or their bytes are counted wrong."""
    beats = (table["memory_ns"] > 1.05 * table["duration_ns"]) & (table["kind"] == KERNEL)
    return int(beats.sum())


def _lacks_limits(device: DeviceInfo) -> bool:
    """Whether a GPU is neither in the catalogue nor described well enough by the user."""
    described = bool(device.peaks_tflops) and device.bandwidth_gbs is not None
    return device.kind != "cpu" and device.gpu is None and not described


def _idles(line: Timeline, ledger: Ledger) -> bool:
    """Whether the device waits for its host for a tenth of the span or more."""
    return ledger.total_ns("idle_launch", "idle_host") >= 0.1 * max(line.span_ns, 1)
