"""What HTA says of a file that it loads itself, rounding off: the oracle of the adapter.

Two of its ways are put right, because they are errors and no definitions: rows of the host that carry a stream number
count as the GPU's work there, and the file's first event counts as the launch of every kernel that has none. Everything
else is HTA's own: reading, linking, and the public analyses, which walk the rows one by one.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")


@contextmanager
def quiet() -> Iterator[None]:
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # read at every call by one release, once by another
    logging.getLogger("hta").setLevel(logging.CRITICAL + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def load(path: Path) -> Any:
    """HTA's trace of a file, as HTA reads it.

    Raises:
        Exception: whatever HTA's loader raises on files that it cannot read.
    """
    from hta.common.trace import Trace

    with quiet():
        trace = Trace(trace_files={0: str(path)})
        trace.parse_traces()
        frame = trace.traces[0]
        names = trace.symbol_table.get_sym_table()
        real = frame["cat"].map(lambda code: names[code] in GPU_CATEGORIES)
        frame = frame[real | ((frame["stream"] == -1) & (frame["index"] != 0))].copy()
        frame["ts"] = frame["ts"] - frame["ts"].min()
        frame.index.name = None
        trace.traces[0] = frame
    return trace


def in_nanoseconds(trace: Any) -> Any:
    """The same trace with whole nanoseconds for its microseconds."""
    from hta.common.trace import Trace

    with quiet():
        made = Trace(trace_files={}, trace_dir="/nonexistent")
    frame = trace.traces[0].copy()
    for column in ("ts", "dur"):
        frame[column] = (frame[column] * 1000).round().astype("int64")
    made.symbol_table, made.traces = trace.symbol_table, {0: frame}
    return made


def temporal(trace: Any) -> list[float]:
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    with quiet():
        found = BreakdownAnalysis.get_temporal_breakdown(trace, visualize=False).iloc[0]
    return [float(found[f"{name}_time(us)"]) for name in ("kernel", "idle", "compute", "non_compute")]


def idle(trace: Any, delay: float) -> dict[tuple[int, str], float]:
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    with quiet():
        found, _ = BreakdownAnalysis.get_idle_time_breakdown(trace, delay, rank=0, visualize=False)
    rows = found[["stream", "idle_category", "idle_time"]].itertuples(index=False)
    return {(int(stream), str(category)): float(time) for stream, category, time in rows}


def types(trace: Any) -> dict[str, float]:
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    with quiet():
        found, _ = BreakdownAnalysis.get_gpu_kernel_breakdown(
            trace, visualize=False, num_kernels=10**9, include_memory_kernels=True
        )
    return {str(name): float(time) for name, time in zip(found["kernel_type"], found["sum"], strict=True)}


def overlap_percent(trace: Any) -> float:
    from hta.analyzers.communication_analysis import CommunicationAnalysis

    with quiet():
        return float(CommunicationAnalysis.get_comm_comp_overlap(trace, visualize=False)["comp_comm_overlap_pctg"][0])


def launches(trace: Any) -> pd.DataFrame:
    from hta.analyzers.cuda_kernel_analysis import CudaKernelAnalysis

    with quiet():
        return CudaKernelAnalysis.cuda_kernel_launch_stats(trace, ranks=[0], visualize=False)[0]


def queues(trace: Any) -> dict[int, tuple[float, float, float]]:
    """Changes, mean and maximum of each stream's queue length."""
    from hta.analyzers.trace_counters import TraceCounters

    with quiet():
        found = TraceCounters.get_queue_length_summary(trace, ranks=[0])
    if found is None:
        return {}
    told = found["queue_length"]
    return {int(stream): (row["count"], row["mean"], row["max"]) for (_, stream), row in told.iterrows()}
