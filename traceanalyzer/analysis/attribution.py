"""Who launched what: kernel -> the runtime call that submitted it -> the operator that made the call.

A kernel and its launch share a correlation id. The owning operator is the innermost one that encloses the launch call
on the launching thread; where a trace records no launches (some ROCm traces), the external id that kernel and operator
share stands in. What could be wrong: threads whose operators overlap without nesting (clock jitter at their edges) may
give the neighbour; kernels launched before the recording began have neither launch nor operator and stay unowned.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.trace.tables import KERNEL, MISSING, Trace

Ints = npt.NDArray[np.int64]

GRAPH_LAUNCH = "GraphLaunch"


def innermost(ops: pd.DataFrame, thread: Ints, time_ns: Ints) -> Ints:
    """The row of the innermost op running at each (thread, time), MISSING where none does.

    Args:
        ops: `Trace.ops`, sorted by (thread, start_ns, -duration_ns).
        thread: thread codes, one per query.
        time_ns: times; an op covers [start, end).
    """
    found = np.full(len(time_ns), MISSING, np.int64)
    if not len(ops):
        return found
    op_thread = ops["thread"].to_numpy(np.int64)
    start = ops["start_ns"].to_numpy(np.int64)
    end = start + ops["duration_ns"].to_numpy(np.int64)
    parent = ops["parent"].to_numpy(np.int64)
    for code in np.unique(thread):
        first, last = np.searchsorted(op_thread, [code, code + 1])
        if first == last:
            continue
        asked = np.flatnonzero(thread == code)
        begun = first + np.searchsorted(start[first:last], time_ns[asked], side="right") - 1
        found[asked] = np.where(begun >= first, begun, MISSING)
    while True:
        over = np.flatnonzero(found >= 0)
        over = over[end[found[over]] <= time_ns[over]]
        if not len(over):
            return found
        found[over] = parent[found[over]]


def launches_of(trace: Trace) -> Ints:
    """For each kernel row the row of the launch with its correlation id (the earliest of several), else MISSING."""
    launches = trace.launches
    known = launches[launches["correlation"] > 0]
    first = known["correlation"].drop_duplicates()  # the table is sorted by start, so the first is the earliest
    lookup = pd.Series(first.index.to_numpy(np.int64), index=first.to_numpy(np.int64))
    found = lookup.reindex(trace.kernels["correlation"].to_numpy(np.int64)).to_numpy(np.float64)
    return np.nan_to_num(found, nan=MISSING).astype(np.int64)


def replayed(trace: Trace, launch: Ints) -> npt.NDArray[np.bool_]:
    """Which kernel rows a graph launch replayed: the op around that launch does not describe their work."""
    kernels = trace.kernels
    graph_names = np.array([GRAPH_LAUNCH in text for text in trace.strings] or [False], np.bool_)
    by_name = np.zeros(len(kernels), np.bool_)
    has = launch >= 0
    by_name[has] = graph_names[trace.launches["name"].to_numpy(np.int64)[launch[has]]]
    correlation = kernels["correlation"]
    shared = correlation.duplicated(keep=False) & (correlation > 0) & (kernels["kind"] == KERNEL)
    in_graph = (kernels["graph_id"] > 0) | (kernels["graph_node_id"] > 0)
    return by_name | shared.to_numpy(np.bool_) | in_graph.to_numpy(np.bool_)


def owners(trace: Trace, launch: Ints) -> Ints:
    """For each kernel row the row of the op that owns it, else MISSING. Kernels replayed from a graph have none."""
    op = np.full(len(trace.kernels), MISSING, np.int64)
    has = np.flatnonzero(launch >= 0)
    calls = trace.launches.iloc[launch[has]]
    op[has] = innermost(trace.ops, calls["thread"].to_numpy(np.int64), calls["start_ns"].to_numpy(np.int64))
    external = trace.kernels["external_id"].to_numpy(np.int64)
    lost = np.flatnonzero((op < 0) & (external > 0))
    known = trace.ops["external_id"]
    known = known[known > 0].drop_duplicates()
    lookup = pd.Series(known.index.to_numpy(np.int64), index=known.to_numpy(np.int64))
    op[lost] = np.nan_to_num(lookup.reindex(external[lost]).to_numpy(np.float64), nan=MISSING).astype(np.int64)
    op[replayed(trace, launch)] = MISSING
    return op
