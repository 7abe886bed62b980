"""Step boundaries where no label gives them: the host times at which one forward pass ends and the next begins.

Threads that each run passes of their own (replicas, requests served side by side) are cut each for itself, in a lane;
threads that only help follow the lane that works on their device. Within a lane, in this order, each only where the one
before found nothing:

    1. token ids are looked up (`inputs`), and a graph that holds a whole pass is launched: each starts a step
    2. marks that stand once in a pass (`marks`): the lm_head GEMM, the lookup's kernel, sampling
    3. the layers' repeating kernel sequence breaks off and starts again (`periodic`)
    4. otherwise everything between two profiler steps or named ranges is one piece, of nobody knows how many passes

Profiler steps and named ranges cut in every case: no forward pass straddles them. Pieces without layer work are no
step.

What could be wrong with it: work between two inputs (sampling, preparing the next one) counts to the earlier step; a
lone kernel long after a step's last work is left out of it, so that a pause between requests does not stretch a step.
A pass whose layers are launched by several threads that all look ids up would be counted once per thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceanalyzer.analysis.steps import marks, periodic
from traceanalyzer.analysis.steps.inputs import Inputs
from traceanalyzer.analysis.steps.model import Bools, Ints
from traceanalyzer.analysis.steps.tokens import GEMM, LAYER
from traceanalyzer.trace.tables import MISSING

CORE = (*LAYER, "norm", "rope", "sampling", "softmax")
_SLACK_NS = 1_000_000
_GRAPH_MIN_ROWS = 8
_GRAPH_MIN_ATTENTION = 2
_NOWHERE = np.empty(0, np.int64)
_TRUST = ("input", "graph", *marks.KINDS, "period", "none")
"""What boundaries may rest on, the most trusted first."""


@dataclass(frozen=True)
class Lane:
    """The pieces of one lane, in host time: `cuts[i]` starts piece i (piece -1 comes before the first).

    `names` is the group of each piece from -1 on, MISSING for none, counted over all lanes.
    """

    cuts: Ints
    names: Ints


@dataclass(frozen=True)
class Segments:
    """Pieces of the run. `group` aligns with rows.

    `how` says what the boundaries rest on (`_TRUST`). `opened` and `closed` tell for each group whether its beginning
    and its end were seen (False: the window opened or closed in the middle of it, or its boundaries are unknown).
    `input` is the row of `Inputs.frame` that starts the group, MISSING for none. `lane_of` is the lane of each thread.
    """

    group: Ints
    groups: int
    how: str
    opened: Bools
    closed: Bools
    input: Ints
    lanes: tuple[Lane, ...]
    lane_of: Mapping[int, int]

    def locate(self, thread: Ints, time_ns: Ints) -> Ints:
        """The group of other host events of this run, by (thread, time); MISSING on threads of no lane."""
        out = np.full(len(thread), MISSING, np.int64)
        lane = _mapped(thread, self.lane_of, 0 if len(self.lanes) == 1 else MISSING)
        for i, pieces in enumerate(self.lanes):
            here = lane == i
            out[here] = pieces.names[np.searchsorted(pieces.cuts, time_ns[here], side="right")]
        return out


def segment(rows: pd.DataFrame, graph: Bools, inputs: Inputs, fences: pd.DataFrame) -> Segments:
    """Cut a run into forward passes.

    Args:
        rows: from `tokens.step_rows`, in order of submission.
        graph: which rows a graph launch started.
        inputs: the looked-up inputs.
        fences: from `fences`.
    """
    lane_of = _lanes(rows, graph, inputs)
    count = max(lane_of.values(), default=0) + 1
    lane = _mapped(rows["thread"].to_numpy(np.int64), lane_of, MISSING)
    input_lane = _mapped(inputs.frame["thread"].to_numpy(np.int64), lane_of, 0 if count == 1 else MISSING)
    fence_lane = _mapped(fences["thread"].to_numpy(np.int64), lane_of, MISSING)
    rows_of, inputs_of, fences_of = _places(lane), _places(input_lane), _places(fence_lane)
    fence_times = fences["time_ns"].to_numpy(np.int64)
    group = np.full(len(rows), MISSING, np.int64)
    lanes: list[Lane] = []
    pieces: list[pd.DataFrame] = []
    found = 0
    for i in range(count):
        here = rows_of.get(i, _NOWHERE)
        fenced = fence_times[np.concatenate([fences_of.get(i, _NOWHERE), fences_of.get(MISSING, _NOWHERE)])]
        looked_up = inputs.frame["time_ns"].iloc[inputs_of.get(i, _NOWHERE)]
        cuts, piece, frame = _cut(rows.iloc[here], graph[here], looked_up, fenced)
        names = np.full(len(cuts) + 1, MISSING, np.int64)
        names[frame["piece"]] = np.arange(found, found + len(frame))
        group[here[piece >= 0]] = names[piece[piece >= 0]]
        found += len(frame)
        lanes.append(Lane(cuts, names))
        pieces.append(frame)
    each = pd.concat(pieces, ignore_index=True)
    return Segments(
        group=group,
        groups=found,
        how=min(each["how"], key=_TRUST.index, default="none"),
        opened=each["opened"].to_numpy(np.bool_),
        closed=each["closed"].to_numpy(np.bool_),
        input=each["input"].to_numpy(np.int64),
        lanes=tuple(lanes),
        lane_of=lane_of,
    )


def _places(key: Ints) -> dict[int, Ints]:
    """Where each key stands, in order."""
    order = np.argsort(key, kind="stable")
    keys, first = np.unique(key[order], return_index=True)
    return dict(zip(keys.tolist(), np.split(order, first[1:]), strict=False))


def _mapped(thread: Ints, lane_of: Mapping[int, int], absent: int) -> Ints:
    """The lane of each thread."""
    threads, back = np.unique(thread, return_inverse=True)
    return np.array([lane_of.get(key, absent) for key in threads.tolist()], np.int64)[back]


def _lanes(rows: pd.DataFrame, graph: Bools, inputs: Inputs) -> dict[int, int]:
    """The lane of every thread that submitted anything.

    A thread with layer work has a lane of its own where its own boundaries rest on as good a ground as any thread's.
    """
    thread = rows["thread"].to_numpy(np.int64)
    known = np.unique(thread[thread != MISSING]).tolist()
    layered = np.unique(thread[rows["category"].isin(LAYER).to_numpy() & (thread != MISSING)]).tolist()
    if len(layered) < 2:
        return dict.fromkeys(known, 0)
    rows_of, inputs_of = _places(thread), _places(inputs.frame["thread"].to_numpy(np.int64))
    ground: dict[int, str] = {}
    for key in layered:
        here = rows_of[key]
        looked_up = inputs.frame["time_ns"].to_numpy(np.int64)[inputs_of.get(key, _NOWHERE)]
        ground[key] = _starts(rows.iloc[here], graph[here], looked_up)[1]
    best = min(ground.values(), key=_TRUST.index)
    own = [key for key in layered if ground[key] == best]
    if len(own) < 2 or best == "none":
        return dict.fromkeys(known, 0)
    lane_of = {key: i for i, key in enumerate(own)}
    calls = pd.crosstab(thread, rows["device"].to_numpy(np.int64))
    for key in known:
        if key not in lane_of:
            lane_of[key] = lane_of[int(calls.loc[own, calls.loc[key].idxmax()].idxmax())]
    return lane_of


def _cut(rows: pd.DataFrame, graph: Bools, looked_up: pd.Series, fences: Ints) -> tuple[Ints, Ints, pd.DataFrame]:
    """Cut one lane.

    Args:
        rows, graph: of the lane.
        looked_up: times of its inputs, indexed by their row in `Inputs.frame`.
        fences: times that no pass straddles.

    Returns:
        The cuts, the piece of each row (counted from 0, MISSING for none) and one row per piece with layer work:
        piece, how, opened, closed, input.
    """
    starts, how = _starts(rows, graph, looked_up.to_numpy(np.int64))
    cuts = np.unique(np.concatenate([starts, fences]).astype(np.int64))
    piece = _trimmed(rows, np.searchsorted(cuts, rows["time_ns"].to_numpy(np.int64), side="right"))
    layered = rows["category"].isin(LAYER).to_numpy() & (piece >= 0)
    kept = np.unique(piece[layered])
    edges = np.concatenate([[np.iinfo(np.int64).min], cuts, [np.iinfo(np.int64).max]])
    seen = np.full(len(kept), how != "none")
    frame = pd.DataFrame(
        {
            "piece": kept,
            "how": how,
            "opened": np.isin(edges[kept], starts),
            "closed": seen & ((np.arange(len(kept)) < len(kept) - 1) | (len(kept) == 1)),
            "input": _input_of(looked_up, edges[kept], edges[kept + 1]),
        }
    )
    return cuts, piece, frame


def _starts(rows: pd.DataFrame, graph: Bools, looked_up: Ints) -> tuple[Ints, str]:
    """Host times at which forward passes start, and what they rest on."""
    attention = rows["time_ns"].to_numpy(np.int64)[rows["category"].isin(marks.ATTENTION)]
    graphs = _graph_starts(rows, graph)
    if len(looked_up):
        return np.union1d(looked_up, _own(graphs, looked_up, attention)), "input"
    found, how = marks.starts(rows, attention)
    if len(graphs):
        return np.union1d(graphs, _beside(found, graphs, attention)), "graph"
    if len(found):
        return found, how
    breaks = periodic.breaks(rows)
    return (breaks, "period") if len(breaks) else (np.empty(0, np.int64), "none")


def _beside(found: Ints, graphs: Ints, attention: Ints) -> Ints:
    """Marks that start passes beside those of graphs: attention was submitted since the start before, and follows."""
    edges = np.concatenate([[np.iinfo(np.int64).min], graphs, [np.iinfo(np.int64).max]])
    after = np.searchsorted(edges, found, side="right")
    here = np.searchsorted(attention, found, side="left")
    before = here > np.searchsorted(attention, edges[after - 1], side="left")
    follows = here < np.searchsorted(attention, edges[np.minimum(after, len(edges) - 1)], side="left")
    before[:1] |= here[:1] == 0  # the recording opened before the pass did
    own: Ints = found[before & follows]
    return own


def _own(graphs: Ints, looked_up: Ints, attention: Ints) -> Ints:
    """Graph starts that are passes of their own: attention was submitted since the last looked-up input already."""
    before = np.searchsorted(looked_up, graphs, side="right") - 1
    since = np.where(before >= 0, looked_up[np.maximum(before, 0)], np.iinfo(np.int64).min)
    done = np.searchsorted(attention, graphs, side="left") > np.searchsorted(attention, since, side="left")
    own: Ints = graphs[done | (before < 0)]
    return own


def _graph_starts(rows: pd.DataFrame, graph: Bools) -> Ints:
    """Where the pass of each whole-model graph begins: after the sampling that follows the graph before it."""
    inside = rows[graph]
    if not len(inside):
        return np.empty(0, np.int64)
    attention = inside["category"].isin(marks.ATTENTION)
    per_launch = attention.groupby(inside["time_ns"]).agg(["size", "sum"])
    whole = per_launch[(per_launch["size"] >= _GRAPH_MIN_ROWS) & (per_launch["sum"] >= _GRAPH_MIN_ATTENTION)]
    launches = whole.index.to_numpy(np.int64)
    if not len(launches):
        return launches
    tail = rows[rows["category"].isin((*GEMM, "sampling", "softmax")) & ~graph]
    tails = tail["time_ns"].to_numpy()
    tails = np.concatenate([[np.iinfo(np.int64).min], tails])
    after_tail = tails[np.searchsorted(tails, launches, side="left") - 1] + 1
    previous = np.concatenate([[np.iinfo(np.int64).min + 1], launches[:-1] + 1])
    starts: Ints = np.maximum(after_tail, previous)
    return starts


def _trimmed(rows: pd.DataFrame, piece: Ints) -> Ints:
    """Leave out what a piece submitted longer after its last core work than all its core work took to submit."""
    times = rows["time_ns"]
    core = times.where(rows["category"].isin(CORE)).groupby(piece)
    first, last = core.transform("min"), core.transform("max")
    late = (times > last + (last - first).clip(lower=_SLACK_NS)).to_numpy()
    return np.where(late & (piece >= 0), MISSING, piece)


def _input_of(looked_up: pd.Series, begin: Ints, end: Ints) -> Ints:
    """For each piece the first input looked up inside it."""
    if not len(looked_up):
        return np.full(len(begin), MISSING, np.int64)
    ordered = looked_up.sort_values(kind="stable")
    times, row = ordered.to_numpy(np.int64), ordered.index.to_numpy(np.int64)
    found = np.searchsorted(times, begin, side="left")
    inside = found < len(times)
    found = np.minimum(found, len(times) - 1)
    return np.where(inside & (times[found] < end), row[found], MISSING)


def fences(everywhere: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """The starts and ends of ranges that no pass straddles, as thread and time_ns.

    Args:
        everywhere: ranges that fence all threads (their thread becomes MISSING).
        own: ranges that fence the thread that they are on.
    """
    frames = [
        pd.DataFrame({"thread": thread, "time_ns": ranges[edge].to_numpy(np.int64)})
        for ranges, thread in ((everywhere, MISSING), (own, own["thread"].to_numpy(np.int64)))
        for edge in ("start_ns", "end_ns")
    ]
    return pd.concat(frames, ignore_index=True).astype(np.int64)
