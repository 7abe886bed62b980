"""Step boundaries where no label gives them: the host times at which one forward pass ends and the next begins.

Tried in this order, each only where the one before found nothing:

    1. token ids are looked up (`inputs`), and a graph that holds a whole pass is launched: each starts a step
    2. the lm_head GEMM, with the sampling after it, ends a step
    3. the layers' repeating kernel sequence breaks off and starts again (`periodic`)
    4. otherwise everything between two profiler steps or named ranges is one piece

Profiler steps and named ranges cut in every case: no forward pass straddles them. Pieces without layer work are no
step.

What could be wrong with it: work between two inputs (sampling, preparing the next one) counts to the earlier step; a
lone kernel long after a step's last work is left out of it, so that a pause between requests does not stretch a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.steps import periodic
from traceanalyzer.analysis.steps.inputs import Inputs
from traceanalyzer.analysis.steps.model import Bools, Ints
from traceanalyzer.analysis.steps.tokens import GEMM, HEAD_WIDER, LAYER
from traceanalyzer.trace.tables import MISSING

CORE = (*LAYER, "norm", "rope", "sampling", "softmax")
_AFTER_HEAD = ("sampling", "softmax", "sort_scan", "reduction", "memcpy", "elementwise", "copy", "embedding", "memset")
_ATTENTION = ("attention", "kv_cache")
_SLACK_NS = 1_000_000
_GRAPH_MIN_ROWS = 8
_GRAPH_MIN_ATTENTION = 2


@dataclass(frozen=True)
class Segments:
    """Pieces of the run, in host time. `group` aligns with rows; `cuts[i]` starts piece i - 1 (piece -1 comes before).

    `how` says what the boundaries rest on: input, graph, lm_head, period or none. `opened` tells for each group
    whether its beginning was seen (False: the window opened in the middle of it). `input` is the row of
    `Inputs.frame` that starts the group, MISSING for none.
    """

    group: Ints
    groups: int
    how: str
    opened: Bools
    input: Ints
    cuts: Ints
    names: Ints

    def locate(self, time_ns: Ints) -> Ints:
        """The group of other host events of this run, by their time."""
        piece = np.searchsorted(self.cuts, time_ns, side="right")
        return self.names[piece]


def segment(rows: pd.DataFrame, graph: Bools, inputs: Inputs, fences: Ints) -> Segments:
    """Cut a run into forward passes.

    Args:
        rows: from `tokens.step_rows`, in order of submission.
        graph: which rows a graph launch started.
        inputs: the looked-up inputs.
        fences: host times of profiler steps and named ranges, start and end, that no pass straddles.
    """
    known = rows["thread"].to_numpy() != MISSING
    times = rows["time_ns"].to_numpy()
    starts, how = _starts(rows, graph, inputs)
    cuts = np.unique(np.concatenate([starts, fences]).astype(np.int64))
    piece = np.where(known, np.searchsorted(cuts, times, side="right"), MISSING)
    piece = _trimmed(rows, piece)
    layered = rows["category"].isin(LAYER).to_numpy() & (piece >= 0)
    kept = np.unique(piece[layered])
    names = np.full(len(cuts) + 2, MISSING, np.int64)
    names[kept] = np.arange(len(kept))
    begin = np.concatenate([[np.iinfo(np.int64).min], cuts])
    opened = np.isin(begin[kept], starts) if len(starts) else np.ones(len(kept), np.bool_)
    return Segments(
        group=np.where(piece >= 0, names[piece], MISSING),
        groups=len(kept),
        how=how,
        opened=opened,
        input=_input_of(inputs, begin[kept], np.append(begin[1:], np.iinfo(np.int64).max)[kept]),
        cuts=cuts,
        names=names[:-1],
    )


def _starts(rows: pd.DataFrame, graph: Bools, inputs: Inputs) -> tuple[Ints, str]:
    """Host times at which forward passes start, and what they rest on."""
    attention = rows[rows["category"].isin(_ATTENTION) & (rows["thread"] != MISSING)]["time_ns"].to_numpy()
    looked_up = inputs.frame["time_ns"].to_numpy(np.int64)
    graphs = _graph_starts(rows, graph)
    if len(looked_up):
        return np.union1d(looked_up, _own(graphs, looked_up, attention)), "input"
    if len(graphs):
        return graphs, "graph"
    ends = _head_ends(rows)
    if len(ends):
        return ends, "lm_head"
    breaks = periodic.breaks(rows)
    return (breaks, "period") if len(breaks) else (np.empty(0, np.int64), "none")


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
    attention = inside["category"].isin(_ATTENTION)
    per_launch = attention.groupby(inside["time_ns"]).agg(["size", "sum"])
    whole = per_launch[(per_launch["size"] >= _GRAPH_MIN_ROWS) & (per_launch["sum"] >= _GRAPH_MIN_ATTENTION)]
    launches = whole.index.to_numpy(np.int64)
    if not len(launches):
        return launches
    tail = rows[rows["category"].isin((*GEMM, "sampling", "softmax")) & ~graph & (rows["thread"] != MISSING)]
    tails = tail["time_ns"].to_numpy()
    tails = np.concatenate([[np.iinfo(np.int64).min], tails])
    after_tail = tails[np.searchsorted(tails, launches, side="left") - 1] + 1
    previous = np.concatenate([[np.iinfo(np.int64).min + 1], launches[:-1] + 1])
    starts: Ints = np.maximum(after_tail, previous)
    return starts


def _head_ends(rows: pd.DataFrame) -> Ints:
    """Times of the first layer work after each lm_head and its sampling; empty where no lm_head can be told.

    It is the widest GEMM of all, and rarer than any other: once per step, where every other runs once per layer.
    """
    keep = rows["category"].isin(GEMM) & (rows["n"] > 0) & (rows["batch"] <= 1) & (rows["thread"] != MISSING)
    gemm = rows[keep]
    counts = gemm.groupby(["n", "k"]).size()
    if len(counts) < 2:
        return np.empty(0, np.int64)
    width = counts.index.get_level_values("n").to_numpy()
    widest = counts[width == width.max()]
    second = width[width < width.max()].max(initial=0)
    rarest_other = counts[width < width.max()].min() if second else 0
    if len(widest) != 1 or width.max() < HEAD_WIDER * second or widest.iloc[0] * 2 > rarest_other:
        return np.empty(0, np.int64)
    n, k = widest.index[0]
    head = ((rows["n"] == n) & (rows["k"] == k) & keep).to_numpy()
    following = ~rows["category"].isin(_AFTER_HEAD).to_numpy() & ~head & (rows["thread"] != MISSING).to_numpy()
    position = np.flatnonzero(following)
    next_layer = np.searchsorted(position, np.flatnonzero(head), side="right")
    return rows["time_ns"].to_numpy()[position[next_layer[next_layer < len(position)]]]


def _trimmed(rows: pd.DataFrame, piece: Ints) -> Ints:
    """Leave out what a piece submitted longer after its last core work than all its core work took to submit."""
    times = rows["time_ns"]
    core = times.where(rows["category"].isin(CORE)).groupby(piece)
    first, last = core.transform("min"), core.transform("max")
    late = (times > last + (last - first).clip(lower=_SLACK_NS)).to_numpy()
    return np.where(late & (piece >= 0), MISSING, piece)


def _input_of(inputs: Inputs, begin: Ints, end: Ints) -> Ints:
    """For each piece the first input looked up inside it."""
    times = inputs.frame["time_ns"].to_numpy(np.int64)
    order = np.argsort(times, kind="stable")
    if not len(times):
        return np.full(len(begin), MISSING, np.int64)
    found = np.searchsorted(times[order], begin, side="left")
    inside = found < len(times)
    row = order[np.minimum(found, len(times) - 1)]
    return np.where(inside & (times[row] < end), row, MISSING)


def fence_times(*frames: pd.DataFrame) -> Ints:
    """The starts and ends of ranges, as fences."""
    edges: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    for frame in frames:
        edges += [frame["start_ns"].to_numpy(np.int64), frame["end_ns"].to_numpy(np.int64)]
    return np.unique(np.concatenate(edges))
