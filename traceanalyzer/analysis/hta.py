"""Holistic Trace Analysis (HTA) on our own tables: its figures, to stand beside ours.

The only module that imports `hta`, and only when there is something to ask. HTA's own loader rounds times, merges
devices and counts host rows as GPU work; here it gets frames that were made from a `Timeline`, in whole nanoseconds:
the GPU's activity and the calls that launched it. Every device goes in whole, and once more in contiguous pieces of its
phases, because HTA takes everything between a frame's first and last activity for its time.

What could be wrong: HTA's definitions are its own (see docs/method.md). It may fail on a trace; then there is a note,
and no figure. It copies its frames several times, so very large traces are left out. Two functions that are private to
HTA stand in for public ones that call Python for every row; tests hold that both say the same.
"""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import numpy as np
import pandas as pd

from traceanalyzer.analysis.attribution import replayed
from traceanalyzer.analysis.intervals import Ints
from traceanalyzer.analysis.phases import ORDER
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.catalog.kernel_rules import NAME_LIMIT
from traceanalyzer.trace.tables import KERNEL, MEMCPY, MEMSET, MISSING, Note

MOST_ROWS = 300_000
"""Activities of all devices together above which HTA is not asked: it takes some 10 us and 600 bytes for each."""
MOST_STREAMS = 128
"""Streams of all devices together above which HTA is not asked: each is a pass of some milliseconds."""
MOST_PIECES = 64
"""Pieces of a device's phases above which only the whole device is asked about; of several streams fewer."""
KERNEL_DELAY_NS = 30_000
"""HTA's default for the longest gap that is the ordinary delay between two kernels (its 30 us)."""

_DISTRIBUTIONS = ("HolisticTraceAnalysis", "traceinsight")
_CATEGORIES: Mapping[int, str] = {KERNEL: "kernel", MEMCPY: "gpu_memcpy", MEMSET: "gpu_memset"}
_LAUNCH_CATEGORY = "cuda_runtime"
_TYPES = (_COMPUTATION, _COMMUNICATION, _MEMORY) = ("COMPUTATION", "COMMUNICATION", "MEMORY")
_FAILURES = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError, NameError, OSError,
    RuntimeError, TypeError, ValueError, pd.errors.DataError, pd.errors.IndexingError, pd.errors.InvalidIndexError,
)  # fmt: skip
"""What other people's code raises on data that it did not expect."""


@dataclass(frozen=True)
class Temporal:
    """HTA's temporal breakdown, in nanoseconds: `kernel_ns` is first start to last end, the others divide it."""

    kernel_ns: int
    idle_ns: int
    compute_ns: int
    non_compute_ns: int


@dataclass(frozen=True)
class Scope:
    """A whole device (`phase` None), or one phase of it in so many contiguous pieces, whose figures are added.

    `idle_ns` is by stream and HTA's category, and may be negative where kernels of a stream overlap. `types_ns` is by
    HTA's kernel type, or types that ran at once. `overlap_share` is the share of communication during which computation
    ran, of a whole device; None without communication.
    """

    phase: str | None
    pieces: int
    temporal: Temporal
    idle_ns: Mapping[int, Mapping[str, int]]
    types_ns: Mapping[str, int]
    overlap_share: float | None


@dataclass(frozen=True)
class Launches:
    """HTA's launch statistics of an eager run; `delay_ns` is from the call's return to the kernel's start, at least 0.

    `coverage` is the share of the device's activity whose launch HTA sees.
    """

    count: int
    coverage: float
    cpu_ns_mean: float
    gpu_ns_mean: float
    delay_ns_mean: float
    delay_ns_p50: float
    delay_ns_p99: float


@dataclass(frozen=True)
class Queue:
    """HTA's queue length of one stream, over the instants at which it changes; `coverage` as for `Launches`."""

    stream: int
    coverage: float
    mean: float
    p50: float
    longest: float


@dataclass(frozen=True)
class DeviceFigures:
    """What HTA says of one device. `launches` is None and `queues` empty unless the run is eager and NVIDIA's."""

    timeline: Timeline
    whole: Scope
    phases: tuple[Scope, ...]
    pieces_omitted: int
    launches: Launches | None
    queues: tuple[Queue, ...]


@dataclass(frozen=True)
class Figures:
    """What HTA says of a run; `source` is the distribution and its version."""

    source: str
    devices: tuple[DeviceFigures, ...]


def ask(timelines: Sequence[Timeline]) -> tuple[Figures | None, tuple[Note, ...]]:
    """HTA's figures for the GPUs of a run, or None with a note why not; None alone where there is no GPU work."""
    lines = [line for line in timelines if line.device.kind != "cpu" and len(line.table)]
    if not lines:
        return None, ()
    rows = sum(len(line.table) for line in lines)
    streams = sum(line.table["stream"].nunique() for line in lines)
    if rows > MOST_ROWS or streams > MOST_STREAMS:
        much = f"{rows:,} activities on {streams} stream{'s' if streams > 1 else ''}"
        return None, (Note("hta_left_out", "info", 1, much),)
    try:
        with _quiet():
            return Figures(_source(), tuple(_device(line) for line in lines)), ()
    except _FAILURES as error:
        return None, (Note("hta_failed", "info", 1, type(error).__name__),)


@contextmanager
def _quiet() -> Iterator[None]:
    """HTA logs to the root handlers and its pandas calls warn; neither is for the reader of a report."""
    log = logging.getLogger("hta")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _source() -> str:
    """The distribution that brings the package that is imported: of the two names the one that holds it."""
    import hta

    for name in _DISTRIBUTIONS:
        try:
            place = metadata.distribution(name).locate_file("hta/__init__.py")
        except metadata.PackageNotFoundError:
            continue
        if str(place) == hta.__file__:
            return f"{name} {metadata.version(name)}"
    return "hta"


def _device(line: Timeline) -> DeviceFigures:
    symbols, frame, first = _frame(line)
    phase = line.table.sort_values("start_ns", kind="stable")["phase"].to_numpy(object)
    cuts = np.flatnonzero(phase[1:] != phase[:-1]) + 1
    edges = [0, *cuts.tolist(), len(phase)]
    pieces: dict[str, list[tuple[int, int]]] = {}
    for begin, end in itertools.pairwise(edges):
        pieces.setdefault(str(phase[begin]), []).append((begin, end))
    whole = _injected([frame], symbols)
    overall = _scope(whole, None)
    if len(edges) == 2:
        parts = [replace(overall, phase=str(phase[0]))]
    elif len(cuts) * line.table["stream"].nunique() < MOST_PIECES:
        parts = [
            _scope(_injected([_piece(frame, first, *rows) for rows in pieces[name]], symbols), name)
            for name in sorted(pieces, key=ORDER.index)
        ]
    else:
        parts = []
    eager = _eager(line)
    return DeviceFigures(
        timeline=line,
        whole=overall,
        phases=tuple(parts),
        pieces_omitted=0 if parts else len(cuts) + 1,
        launches=_launches(whole, len(phase)) if eager else None,
        queues=_queues(whole, len(phase)) if eager else (),
    )


def _eager(line: Timeline) -> bool:
    """Whether HTA's launch statistics say something: it knows CUDA's calls, and none that replays a graph."""
    kernel, launch = line.table["kernel"].to_numpy(), line.table["launch"].to_numpy(np.int64)
    if line.device.kind != "cuda" or not (launch >= 0).any():
        return False
    every = np.full(len(line.trace.kernels), MISSING, np.int64)
    every[kernel] = launch
    return not replayed(line.trace, every)[kernel].any()


def _frame(line: Timeline) -> tuple[Any, pd.DataFrame, int]:
    """HTA's table of symbols, its frame of a device, and the row at which the GPU's activity begins in that frame.

    First come the launch calls, then the activity in start order. Events are numbered from 1: HTA takes event 0 for "no
    event". Times are nanoseconds since the first of them.
    """
    from hta.common.trace import transform_correlation_to_index
    from hta.common.trace_symbol_table import TraceSymbolTable

    trace, rows = line.trace, line.table.sort_values("start_ns", kind="stable")
    correlation = trace.kernels["correlation"].to_numpy(np.int64)[rows["kernel"].to_numpy(np.int64)]
    correlation = np.where(correlation > 0, correlation, MISSING)
    calls = trace.launches[trace.launches["correlation"].isin(correlation[correlation > 0])]
    calls = calls.drop_duplicates("correlation")  # a thousand calls of one id, each with a thousand kernels, are a bomb

    symbols = TraceSymbolTable()
    symbols.add_symbols([*_CATEGORIES.values(), _LAUNCH_CATEGORY])
    codes, place = np.unique(np.concatenate((calls["name"], rows["name"])), return_inverse=True)
    names = [trace.text(int(code))[:NAME_LIMIT] for code in codes]
    symbols.add_symbols(names)
    number = symbols.get_sym_id_map()
    category = np.array([number[_CATEGORIES[kind]] for kind in sorted(_CATEGORIES)], np.int32)
    start = np.concatenate((calls["start_ns"], rows["start_ns"])).astype(np.int64)
    numbers = np.arange(1, len(start) + 1, dtype=np.int64)
    host = np.full(len(calls), MISSING, np.int64)
    frame = pd.DataFrame({
        "index": numbers,
        "cat": np.concatenate((np.full(len(calls), number[_LAUNCH_CATEGORY]), category[rows["kind"].to_numpy()])),
        "name": np.array([number[name] for name in names], np.int64)[place],
        "pid": np.concatenate((np.zeros(len(calls), np.int64), rows["device"])),
        "tid": np.concatenate((calls["thread"], rows["stream"])),
        "ts": start - start.min(),
        "dur": np.concatenate((calls["duration_ns"], rows["duration_ns"])).astype(np.int64),
        "stream": np.concatenate((host, rows["stream"])),
        "correlation": np.concatenate((calls["correlation"], correlation)).astype(np.int64),
    }, index=pd.Index(numbers))  # fmt: skip
    return symbols, transform_correlation_to_index(frame, symbols), len(calls)


def _piece(frame: pd.DataFrame, first: int, begin: int, end: int) -> pd.DataFrame:
    """Some of the activity, from one row of it to before another, with the calls that launched it."""
    linked = frame["index_correlation"].to_numpy(np.int64)[first + begin : first + end]
    calls = np.unique(linked[linked > 0]) - 1
    return frame.iloc[np.concatenate((calls, np.arange(first + begin, first + end)))]


def _injected(frames: Sequence[pd.DataFrame], symbols: Any) -> Any:
    """A trace of HTA's that was never a file: one rank per frame."""
    from hta.common.trace import Trace

    made = Trace(trace_files={}, trace_dir="/nonexistent")
    made.symbol_table = symbols
    made.traces = dict(enumerate(frames))
    made.meta_data = {rank: {"device_type": "UNKNOWN"} for rank in made.traces}
    made.min_ts, made.is_parsed = 0, True
    return made


def _scope(trace: Any, phase: str | None) -> Scope:
    """HTA's figures for all ranks of one of our traces, added."""
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis
    from hta.utils.utils import get_kernel_type

    kinds = [get_kernel_type(text) for text in trace.symbol_table.get_sym_table()]
    code, names = pd.factorize(pd.Index(kinds, dtype=object))
    times = np.zeros(4, np.int64)
    types_ns: dict[str, int] = {}
    idle_ns: dict[int, dict[str, int]] = {}
    for rank, frame in trace.traces.items():
        gpu = frame.loc[frame["stream"] != MISSING, ["ts", "dur", "name"]]
        gpu["kernel_type"] = pd.Categorical.from_codes(code[gpu["name"].to_numpy()], names)
        times += _temporal(gpu)
        split = BreakdownAnalysis._get_gpu_kernel_type_time(gpu, list(_TYPES))
        for name, ns in split[["kernel_type", "sum"]].itertuples(index=False):
            if ns:  # where one type ends as another begins HTA lists an overlap of nothing
                types_ns[str(name)] = types_ns.get(str(name), 0) + int(ns)
        causes, _ = BreakdownAnalysis.get_idle_time_breakdown(trace, KERNEL_DELAY_NS, rank=rank, visualize=False)
        for stream, category, ns in causes[["stream", "idle_category", "idle_time"]].itertuples(index=False):
            of_stream = idle_ns.setdefault(int(stream), {})
            of_stream[str(category)] = of_stream.get(str(category), 0) + round(ns)
    return Scope(phase, len(trace.traces), Temporal(*times.tolist()), idle_ns, types_ns, _overlap(types_ns))


def _temporal(gpu: pd.DataFrame) -> Ints:
    """Kernel, idle, compute and other time of one rank, put together as in `get_temporal_breakdown`."""
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis
    from hta.utils.utils import merge_kernel_intervals

    idle, whole = BreakdownAnalysis._get_idle_time_for_kernels(gpu[["ts", "dur"]].copy())
    merged = merge_kernel_intervals(gpu.loc[gpu["kernel_type"] == _COMPUTATION, ["ts", "dur"]].copy())
    compute = (merged["end"] - merged["ts"]).sum()
    return np.array([whole, idle, compute, whole - idle - compute], np.int64)


def _overlap(types_ns: Mapping[str, int]) -> float | None:
    """Communication during which computation ran, as a share of all communication."""
    communication = {name: ns for name, ns in types_ns.items() if _COMMUNICATION in name}
    total = sum(communication.values())
    return sum(ns for name, ns in communication.items() if _COMPUTATION in name) / total if total else None


def _launches(trace: Any, rows: int) -> Launches | None:
    from hta.analyzers.cuda_kernel_analysis import CudaKernelAnalysis

    found = CudaKernelAnalysis.cuda_kernel_launch_stats(trace, ranks=[0], visualize=False)[0]
    if not len(found):
        return None
    delay = found["launch_delay"]
    return Launches(
        count=len(found),
        coverage=len(found) / rows,
        cpu_ns_mean=float(found["cpu_duration"].mean()),
        gpu_ns_mean=float(found["gpu_duration"].mean()),
        delay_ns_mean=float(delay.mean()),
        delay_ns_p50=float(delay.quantile(0.5)),
        delay_ns_p99=float(delay.quantile(0.99)),
    )


def _queues(trace: Any, rows: int) -> tuple[Queue, ...]:
    from hta.analyzers.trace_counters import TraceCounters

    found = TraceCounters.get_queue_length_summary(trace, ranks=[0])
    if found is None:
        return ()
    told = found["queue_length"]
    return tuple(
        Queue(int(stream), row["count"] / 2 / rows, float(row["mean"]), float(row["50%"]), float(row["max"]))
        for (_, stream), row in told.iterrows()
    )
