"""Who launched what: kernel -> the runtime call that submitted it -> the operator that made the call.

A kernel and its launch share a correlation id. The owning operator is the innermost one that encloses the launch call
on the launching thread; where the launch was not recorded, the external id that kernel and operator share stands in.

What could be wrong: threads whose operators overlap without nesting (clock jitter at their edges) may give the
neighbour; kernels launched before the recording began have neither launch nor operator and stay unowned.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.trace.tables import KERNEL, MISSING, Trace

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

GRAPH_LAUNCH = "GraphLaunch"
SUBMITS = re.compile(r"Launch|Memcpy|Memset")
"""Runtime and driver calls that give the device work."""


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
    """For each kernel row the row of the launch that submitted it (the earliest of several), else MISSING.

    Some ROCm traces record no correlation; there kernel and launch share their own external id instead.
    """
    kernels, launches = trace.kernels, trace.launches
    found = _rows_by_key(launches["correlation"], kernels["correlation"].to_numpy(np.int64))
    bare = np.flatnonzero(kernels["correlation"].to_numpy() <= 0)
    uncorrelated = launches["external_id"].where((launches["correlation"] <= 0) & _submitting(trace), MISSING)
    found[bare] = _rows_by_key(uncorrelated, kernels["external_id"].to_numpy(np.int64)[bare])
    return found


def _submitting(trace: Trace) -> Bools:
    """Which launches submit work, by name; queries and synchronisation do not."""
    flags = np.array([SUBMITS.search(text) is not None for text in trace.strings] or [False], np.bool_)
    found: Bools = flags[trace.launches["name"].to_numpy(np.int64)]
    return found


def _rows_by_key(column: pd.Series, keys: Ints) -> Ints:
    """For each key the first row of `column` that holds it; MISSING for none and for keys that are no id (<= 0)."""
    known = column[column > 0].drop_duplicates()
    lookup = pd.Series(known.index.to_numpy(np.int64), index=known.to_numpy(np.int64))
    return np.nan_to_num(lookup.reindex(keys).to_numpy(np.float64), nan=MISSING).astype(np.int64)


def replayed(trace: Trace, launch: Ints) -> Bools:
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
    """For each kernel row the row of the op that owns it, else MISSING. Kernels replayed from a graph have none.

    The external id stands in for a launch that was not recorded, but not in a trace whose ids join kernels to launches.
    """
    op = np.full(len(trace.kernels), MISSING, np.int64)
    has = np.flatnonzero(launch >= 0)
    calls = trace.launches.iloc[launch[has]]
    op[has] = innermost(trace.ops, calls["thread"].to_numpy(np.int64), calls["start_ns"].to_numpy(np.int64))
    external = trace.kernels["external_id"].to_numpy(np.int64)
    own_ids = bool((_submitting(trace) & (trace.launches["correlation"] <= 0).to_numpy()).any())
    lost = np.flatnonzero((op < 0) & (launch < 0) & (not own_ids))
    op[lost] = _rows_by_key(trace.ops["external_id"], external[lost])
    op[replayed(trace, launch)] = MISSING
    return op
