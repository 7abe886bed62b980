"""The runtime calls of one step, in order of their threads, with what the host did before each of them.

Calls inside other calls (a driver call of a runtime call) belong to the outer one. What the host did between two calls
is its own work (see `idle.host`) or launching: ops and the short Python between them.

What could be wrong: a thread that launches for several devices does so in one order, which is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.attribution import GRAPH_LAUNCH
from traceanalyzer.analysis.idle.host import Host
from traceanalyzer.analysis.intervals import Ints
from traceanalyzer.analysis.timeline import Timeline

_GRAPH = re.compile(GRAPH_LAUNCH)
_OWN = ("host", "host_in_step", "wait_input", "wait_rank")


@dataclass(frozen=True)
class Calls:
    """Calls in order of their beginning. Times in nanoseconds; arrays have one element per call.

    Args:
        start, end, thread: of each call.
        kind: launch, graph_launch, sync or alloc.
        gap: from the end of the call before it on its thread, 0 for the first one.
        own: how much of the gap was the host's own work.
        place_of: place of the call that launched something, by the row of the trace's launches.
    """

    start: Ints
    end: Ints
    thread: Ints
    kind: npt.NDArray[np.object_]
    gap: Ints
    own: Ints
    place_of: Mapping[int, int]


def calls_of(line: Timeline, launched: Ints, following: int | None) -> Calls:
    """The calls of the threads that launched some activity, from the first of these launches to the last.

    Args:
        line: the device.
        launched: rows of the trace's launches.
        following: the one of them that belongs to the next step: what the host did before it lies between two steps.
    """
    launches, host = line.trace.launches, Host(line)
    of, begin = launches["thread"].to_numpy(np.int64), launches["start_ns"].to_numpy(np.int64)
    until = begin + launches["duration_ns"].to_numpy(np.int64)
    inside = (begin >= begin[launched].min()) & (begin <= begin[launched].max())
    rows = np.flatnonzero(np.isin(of, np.unique(of[launched])) & inside)
    reach = pd.Series(until[rows]).groupby(of[rows]).cummax().groupby(of[rows]).shift(1)
    outer = ~(begin[rows] < reach.to_numpy(np.float64))
    kept = rows[outer]
    places = pd.Series(np.where(outer, np.cumsum(outer) - 1, np.nan)).groupby(of[rows]).ffill()
    place_of = dict(zip(rows.tolist(), places.astype(np.int64).tolist(), strict=True))
    before = np.nan_to_num(reach.to_numpy(np.float64)[outer], nan=-1.0).astype(np.int64)
    gap = np.where(before >= 0, begin[kept] - before, 0)
    own_last = max((int(until[row]) for row in launched.tolist() if row != following), default=0)
    last = int(begin[following]) if following is not None else -1
    between = (begin[kept] > own_last) & (begin[kept] <= last)
    did = host.did(of[kept], begin[kept] - gap, begin[kept], between)
    own = np.sum([did[cause] for cause in _OWN], axis=0)
    return Calls(begin[kept], until[kept], of[kept], _kinds(line, host, kept), gap, own, place_of)


def _kinds(line: Timeline, host: Host, rows: Ints) -> npt.NDArray[np.object_]:
    names = line.trace.launches["name"].to_numpy(np.int64)[rows]
    graphs = [int(code) for code in np.unique(names) if _GRAPH.search(line.trace.text(int(code)))]
    kind = np.where(np.isin(names, graphs), "graph_launch", "launch").astype(object)
    kind[host.waits[rows]], kind[host.allocates[rows]] = "sync", "alloc"
    return kind
