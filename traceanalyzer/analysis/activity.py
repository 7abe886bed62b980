"""What ran on the device: one row per GPU activity, or per piece of CPU work in a CPU-only run.

`Activity.table` is the spine of the analysis; later stages add columns aligned to its rows, never other orders.

    kernel i32       row in Trace.kernels (MISSING on a CPU device)
    op i32           row in Trace.ops that owns it: the innermost op enclosing the launch (MISSING: none recorded)
    launch i32       row in Trace.launches (MISSING: launched before the window, or not recorded)
    name i32         string code; on a CPU device the op's name
    kind i8          KERNEL, MEMCPY, MEMSET
    start_ns i64, duration_ns i64, device i32, stream i64
    call i32         counts as one execution per distinct value (a CPU op's self time can be several pieces)

sorted by (device, start_ns).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceanalyzer.analysis import cpu
from traceanalyzer.analysis.attribution import launches_of, owners
from traceanalyzer.errors import UnsupportedTraceError
from traceanalyzer.trace.tables import Trace

_CUT_SHORT = frozenset({"truncated_json", "truncated_compression"})
"""Notes that say the file ends too early: what it does not hold may have been in the lost part."""
_IMPOSSIBLE = frozenset({"events_without_time", "negative_duration", "absurd_duration", "out_of_range"})
"""Notes on events left out for their times; the detail says of which kind they were."""
_KERNELS = re.compile(r"\bkernels (\d+)")


@dataclass(frozen=True)
class Activity:
    """The device activity of one trace. `on_cpu`: the device is the CPU and the rows are ops, not GPU kernels."""

    table: pd.DataFrame
    on_cpu: bool


def build(trace: Trace) -> Activity:
    """What ran on the devices of a trace: its GPU kernels, copies and fills; without any, the ops of a CPU run.

    A GPU run whose file was cut before its GPU records has an empty table: the file is analysed as far as it is whole.

    Raises:
        UnsupportedTraceError: there is no GPU activity, and the ops are not those of a CPU run (see `analysis.cpu`), or
            no GPU kernel has times that can be true.
    """
    if not len(trace.kernels):
        _refuse_impossible(trace)
        if not cpu.is_gpu_run(trace):
            return Activity(cpu.activity_table(trace), on_cpu=True)
        if not _CUT_SHORT & {note.code for note in trace.quality}:
            raise UnsupportedTraceError(
                f"{trace.source.name} is a GPU run without its GPU records: {cpu.what_it_holds(trace)}, no GPU kernel",
                "record with ProfilerActivity.CUDA, and keep the profiler running until the GPU has finished",
            )
    kernels = trace.kernels
    launch = launches_of(trace)
    table = pd.DataFrame({
        "kernel": np.arange(len(kernels), dtype=np.int32),
        "op": owners(trace, launch).astype(np.int32),
        "launch": launch.astype(np.int32),
        "name": kernels["name"].to_numpy(np.int32),
        "kind": kernels["kind"].to_numpy(np.int8),
        "start_ns": kernels["start_ns"].to_numpy(np.int64),
        "duration_ns": kernels["duration_ns"].to_numpy(np.int64),
        "device": kernels["device"].to_numpy(np.int32),
        "stream": kernels["stream"].to_numpy(np.int64),
        "call": np.arange(len(kernels), dtype=np.int32),
    })  # fmt: skip
    return Activity(table, on_cpu=False)


def _refuse_impossible(trace: Trace) -> None:
    """Raise for a trace that held kernels of which none was kept: the GPU was recorded, its times were not."""
    found = [_KERNELS.search(note.detail) for note in trace.quality if note.code in _IMPOSSIBLE]
    count = sum(int(match[1]) for match in found if match)
    if count:
        raise UnsupportedTraceError(
            f"{trace.source.name} holds {count} GPU kernel{'s' if count > 1 else ''}, none with times that can be true",
            "record it again; without times there is nothing to analyse",
        )
