"""What cannot be true of a whole recording: launches that nothing answers, replays with kernels missing, steps cut off.

A profiler that runs out of buffers drops activity records without a word. Three things give it away:

    launches without kernels   a launch call before the last answered one whose kernel or graph was not recorded
    replays with holes         a replay that lacks nodes which the other replays of its graph ran; where nodes have no
                               ids, a sequence of kernels that occurs once and is that of several others with holes
    steps without kernels      a labelled step whose launches nothing answers at all

Steps that lost kernels in any of these ways are not complete, so no average is made of them. Launches after the last
answered one are the window's end, not a loss: the steps that they belong to are cut.

What could be wrong: a graph whose conditional nodes run in some replays only looks like one that lost them; of launches
that are never answered by design (into a capture that was not replayed) the steps have none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.steps import Steps
from traceanalyzer.analysis.steps.model import Bools, Ints
from traceanalyzer.analysis.steps.submission import SpanMap, graph_launched, unanswered_launches
from traceanalyzer.trace.tables import MISSING, Note, Trace

_SEVERAL = 3
"""Replays of one graph from which on the usual number of kernels is known."""
_MOST_HOLES = 0.2
"""A replay without ids that lacks more than this share of another's kernels is another graph."""
_MOST_GRAPHS, _MOST_LOOKED_AT = 50, 200
"""Graphs without ids that replays are compared with, and replays that are: more of them are no loss of a few."""


def check(trace: Trace, activity: Activity, found: Steps) -> tuple[Steps, tuple[Note, ...]]:
    """The steps, those that lost kernels marked as not complete; and what has to be told.

    Args:
        trace, activity: what was read, and what ran.
        found: the steps.
    """
    if activity.on_cpu or found.facts.workload == "capture":
        return found, ()
    notes = []
    lost = _unanswered_inside(trace, activity)
    if len(lost):
        percent = 100 * len(lost) / max(1, len(trace.launches))
        notes.append(Note("launches_without_kernels", "warning", len(lost), f"{percent:.2g} %"))
    empty = _labels_without_kernels(trace, found.labelled, lost)
    if empty:
        notes.append(Note("steps_without_kernels", "warning", empty))
    holes = replays_with_holes(trace, activity)
    if len(holes):
        notes.append(Note("replays_with_holes", "warning", len(holes)))
    marked = _marked(activity, found, holes)
    cut = marked.table[~marked.table["complete"].to_numpy(np.bool_)]
    if len(cut) and len(marked.table) > len(cut):
        notes.append(Note("steps_cut", "info", len(cut)))
    return marked, tuple(notes)


def replays_with_holes(trace: Trace, activity: Activity) -> Ints:
    """The launches (rows of `Trace.launches`) of the graph replays that lack kernels which their like have."""
    inside = np.flatnonzero(graph_launched(trace, activity))
    if not len(inside):
        return np.empty(0, np.int64)
    table = activity.table
    kernel = table["kernel"].to_numpy()[inside]
    frame = pd.DataFrame({
        **{name: table[name].to_numpy()[inside].astype(np.int64) for name in ("launch", "name", "start_ns")},
        "graph": trace.kernels["graph_id"].to_numpy()[kernel].astype(np.int64),
    }, copy=False)  # fmt: skip
    known = frame["graph"] > 0
    return np.union1d(_fewer_nodes(frame[known]), _holes_by_name(frame[~known]))


def _fewer_nodes(frame: pd.DataFrame) -> Ints:
    """Replays that ran fewer kernels than most of their graph's replays did."""
    counts = frame.groupby(["graph", "launch"]).size().rename("count").reset_index()
    by_graph = counts.groupby("graph")["count"]
    usual = by_graph.transform(lambda column: column.mode().max())
    short = (by_graph.transform("size") >= _SEVERAL) & (counts["count"] < usual)
    return np.asarray(counts.loc[short, "launch"], np.int64)


def _holes_by_name(frame: pd.DataFrame) -> Ints:
    """Replays whose sequence of names occurs once and is, with a few holes, one that several others ran."""
    ordered = frame.sort_values(["launch", "start_ns"], kind="stable")
    launches, first = np.unique(ordered["launch"].to_numpy(np.int64), return_index=True)
    names = np.split(ordered["name"].to_numpy(np.int32), first[1:])
    keys = [sequence.tobytes() for sequence in names]
    times = Counter(keys)
    usual = [
        np.frombuffer(key, np.int32).tolist() for key, count in times.most_common(_MOST_GRAPHS) if count >= _SEVERAL
    ]
    counts = [Counter(whole) for whole in usual]
    found = []
    for place in [place for place, key in enumerate(keys) if times[key] == 1][:_MOST_LOOKED_AT]:
        part = names[place].tolist()
        own = Counter(part)
        if any(
            len(part) < len(whole) <= len(part) / (1 - _MOST_HOLES) and own <= count and _is_inside(part, whole)
            for whole, count in zip(usual, counts, strict=True)
        ):
            found.append(place)
    return launches[found]


def _is_inside(part: list[int], whole: list[int]) -> bool:
    """Whether `part` is `whole` with holes."""
    rest = iter(whole)
    return all(one in rest for one in part)


def _unanswered_inside(trace: Trace, activity: Activity) -> Ints:
    """Launches without a recorded kernel before the last one that has one."""
    rows = unanswered_launches(trace, activity)
    launch = activity.table["launch"].to_numpy(np.int64)
    inside: Ints = rows[rows < launch.max(initial=MISSING)]
    return inside


def _labels_without_kernels(trace: Trace, spans: pd.DataFrame, lost: Ints) -> int:
    """How many labelled steps launched work of which nothing was recorded."""
    if not len(lost) or not len(spans):
        return 0
    where = SpanMap(spans.assign(owner=np.arange(len(spans))))
    calls = trace.launches
    answered = np.isin(calls["correlation"].to_numpy(np.int64), trace.kernels["correlation"].to_numpy(np.int64))
    thread, time = calls["thread"].to_numpy(np.int64), calls["start_ns"].to_numpy(np.int64)
    unheard = np.unique(where.locate(thread[lost], time[lost]))
    heard = np.unique(where.locate(thread[answered], time[answered]))
    return len(np.setdiff1d(unheard[unheard >= 0], heard))


def _marked(activity: Activity, found: Steps, holes: Ints) -> Steps:
    if not len(holes):
        return found
    in_hole: Bools = np.isin(activity.table["launch"].to_numpy(np.int64), holes)
    step = found.activity_step.astype(np.int64)[in_hole]
    complete = found.table["complete"].to_numpy(np.bool_, copy=True)
    complete[np.unique(step[step >= 0])] = False
    return replace(found, table=found.table.assign(complete=complete))
