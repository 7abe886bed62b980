"""One step close up: what the device's streams and the host's launching threads ran, and the gaps between.

The median complete step of a phase stands for it. What could be wrong: it is one step, and slow ones look otherwise;
where the host runs far ahead its rows begin no more than one step's length before the device's, and what it did before
is not shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from traceanalyzer.analysis.idle import Divided
from traceanalyzer.analysis.intervals import Ints
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.trace.tables import MISSING

MOST_ITEMS = 500
"""Items of one row; beyond that the short ones are joined to their neighbours."""
MOST_GAPS = 1000
"""Gaps that are kept, the longest ones."""
MOST_STREAMS, MOST_THREADS = 4, 2

Kind = Literal["op", "call", "stream"]


@dataclass(frozen=True)
class Row:
    """What one stream, or one thread's outermost ops or calls, ran. `number`: of the stream; of threads, from 1.

    `items` has the columns name (string code; MISSING: several joined), category (object; None on the host), start_ns,
    duration_ns (of joined ones first start to last end), busy_ns and count.
    """

    kind: Kind
    number: int
    items: pd.DataFrame


@dataclass(frozen=True)
class Closeup:
    """One step from `start_ns`, where its first launch call (or its first activity) began, to the end of its last one.

    `step` is its row in `Timeline.steps`; `device_ns` is where its own activity begins. `gaps` are the stretches of
    that activity in which the device ran nothing: start_ns, duration_ns, cause (the one that most of the gap goes to, a
    key of `idle.BUCKETS`).
    """

    phase: str
    step: int
    start_ns: int
    device_ns: int
    end_ns: int
    rows: tuple[Row, ...]
    rows_left_out: int
    gaps: pd.DataFrame


def closeups(line: Timeline, idle: Divided) -> list[Closeup]:
    """The median complete prefill step and the median complete decode step, where there are any.

    Args:
        line, idle: of one device.
    """
    found = []
    whole = line.complete_steps
    own = whole[whole["parent_step"] < 0]
    for phase in ("prefill", "decode"):
        steps = own[own["phase"] == phase].sort_values(["duration_ns", "step"], kind="stable")
        if len(steps):
            found.append(_closeup(line, idle, phase, int(steps["step"].iloc[(len(steps) - 1) // 2])))
    return found


def _closeup(line: Timeline, idle: Divided, phase: str, step: int) -> Closeup:
    table = line.table
    inside = table[table["step"] == step]
    begin = int(inside["start_ns"].min())
    end = int((inside["start_ns"] + inside["duration_ns"]).max())
    called = inside["launch_start_ns"].to_numpy(np.int64)
    first = int(called[called != MISSING].min(initial=begin))
    start = max(first, begin - (end - begin))
    streams, streams_left = _streams(line, begin, end)
    threads, threads_left = _threads(line, inside, start, end)
    return Closeup(
        phase, step, start, begin, end, (*threads, *streams), streams_left + threads_left, _gaps(idle, begin, end)
    )


def _gaps(idle: Divided, begin: int, end: int) -> pd.DataFrame:
    """The gaps inside a span, each with the cause that most of it goes to."""
    inside = np.flatnonzero((idle.start >= begin) & (idle.end <= end))
    inside = np.sort(inside[np.argsort(-idle.length[inside], kind="stable")[:MOST_GAPS]])
    causes = np.array(list(idle.parts), object)
    parts = np.stack([ns[inside] for ns in idle.parts.values()])
    return pd.DataFrame({
        "start_ns": idle.start[inside], "duration_ns": idle.length[inside], "cause": causes[parts.argmax(axis=0)],
    })  # fmt: skip


def _streams(line: Timeline, begin: int, end: int) -> tuple[list[Row], int]:
    """The streams with most activity in a span, in order of their number, and how many others there are."""
    table = line.table
    start = table["start_ns"].to_numpy(np.int64)
    ran = table[(start < end) & (start + table["duration_ns"].to_numpy(np.int64) > begin)]
    busiest = ran.groupby("stream")["duration_ns"].sum().sort_values(ascending=False, kind="stable").index
    rows = []
    for stream in sorted(int(number) for number in busiest[:MOST_STREAMS]):
        own = ran[ran["stream"] == stream]
        items = own[["name", "category", "start_ns", "duration_ns"]]
        rows.append(Row("stream", stream, joined(items, begin, end)))
    return rows, max(0, len(busiest) - MOST_STREAMS)


def _threads(line: Timeline, inside: pd.DataFrame, start: int, end: int) -> tuple[list[Row], int]:
    """Two rows for each of the threads that launched most of a step: its outermost ops, and its calls."""
    launches, ops = line.trace.launches, line.trace.ops
    launch = inside["launch"].to_numpy(np.int64)
    of = launches["thread"].to_numpy(np.int64)[launch[launch >= 0]]
    if line.device.kind == "cpu":
        return [], 0
    threads, count = np.unique(of, return_counts=True)
    busiest = threads[np.argsort(-count, kind="stable")]
    rows: list[Row] = []
    for number, thread in enumerate(busiest[:MOST_THREADS].tolist(), 1):
        outermost = ops[(ops["thread"] == thread) & (ops["parent"] < 0)]
        calls = launches[launches["thread"] == thread]
        sources: Mapping[Kind, pd.DataFrame] = {"op": outermost, "call": calls}
        for kind, frame in sources.items():
            items = joined(_within(frame, start, end), start, end)
            if len(items):
                rows.append(Row(kind, number, items))
    return rows, max(0, len(busiest) - MOST_THREADS)


def _within(frame: pd.DataFrame, start: int, end: int) -> pd.DataFrame:
    """What a thread ran in a span, cut to it."""
    begin = frame["start_ns"].to_numpy(np.int64)
    stop = begin + frame["duration_ns"].to_numpy(np.int64)
    kept = (begin < end) & (stop > start)
    begin, stop = np.maximum(begin[kept], start), np.minimum(stop[kept], end)
    return pd.DataFrame({
        "name": frame["name"].to_numpy(np.int64)[kept], "category": None, "start_ns": begin,
        "duration_ns": stop - begin,
    })  # fmt: skip


def joined(items: pd.DataFrame, start: int, end: int) -> pd.DataFrame:
    """The items of a row in order, short neighbours joined where there would be more than `MOST_ITEMS`.

    Args:
        items: name, category, start_ns, duration_ns.
        start, end: the span; a `MOST_ITEMS`-th of it is what can be told apart.

    Returns:
        The columns of `Row.items`. Joined items have no name, the category that takes most of their time, and a count.
    """
    items = items.sort_values("start_ns", kind="stable").reset_index(drop=True)
    group = np.arange(len(items))
    if len(items) > MOST_ITEMS:
        group = _together(items, start, max(1, (end - start) * 2 // MOST_ITEMS))
    begin = items["start_ns"].to_numpy(np.int64)
    ends = begin + items["duration_ns"].to_numpy(np.int64)
    first = np.flatnonzero(np.diff(group, prepend=-1))
    count = np.diff(np.append(first, len(group)))
    reach = np.maximum.reduceat(ends, first) if len(first) else ends
    busy = np.bincount(group, weights=items["duration_ns"], minlength=len(first)).astype(np.int64)
    return pd.DataFrame({
        "name": np.where(count > 1, MISSING, items["name"].to_numpy(np.int64)[first]),
        "category": _most(items, group, first),
        "start_ns": begin[first], "duration_ns": reach - begin[first],
        "busy_ns": np.minimum(busy, reach - begin[first]), "count": count,
    })  # fmt: skip


def _together(items: pd.DataFrame, start: int, width: int) -> Ints:
    """Numbers the groups of items that begin in one bin and are shorter than it; longer ones stand alone."""
    short = items["duration_ns"].to_numpy(np.int64) < width
    place = (items["start_ns"].to_numpy(np.int64) - start) // width
    same = short[1:] & short[:-1] & (place[1:] == place[:-1])
    return np.concatenate(([0], np.cumsum(~same))).astype(np.int64)


def _most(items: pd.DataFrame, group: Ints, first: Ints) -> np.ndarray:
    """The category of each group that takes most of its time."""
    category = items["category"].to_numpy(object)
    if len(first) == len(items):
        return np.asarray(category)
    keyed = items.assign(group=group).groupby(["group", "category"], dropna=False, sort=True, observed=True)
    time = keyed["duration_ns"].sum()
    longest = time.groupby(level="group").idxmax()
    return np.array([key[1] for key in longest], object)
