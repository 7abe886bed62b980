"""What is known of the steps of one trace before any of them is judged, and what can be asked of it.

What could be wrong with it: "usual" (layers of a step, graph launches) is said of the steps that were recorded; where
most of a recording is unusual, the usual looks odd.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.steps import grids, speculation, tokens
from traceanalyzer.analysis.steps.inputs import Inputs
from traceanalyzer.analysis.steps.join import LabelTable
from traceanalyzer.analysis.steps.model import Bools, Ints
from traceanalyzer.analysis.steps.plan import Plan
from traceanalyzer.analysis.steps.sequence import Order, read_order
from traceanalyzer.analysis.steps.submission import SpanMap, unanswered_launches
from traceanalyzer.trace.tables import MISSING, USER, Trace

_LOST = 0.01
"""Share of a step's launches without a recorded kernel beyond which the step was not recorded whole."""


@dataclass(frozen=True)
class Measured:
    """The groups of a plan and what was measured of them; by group unless said otherwise.

    rows: from `tokens.step_rows`; graph: which activity rows a graph launch replayed; facts: from `tokens.facts`, q as
    the looked-up input says it; grids: what launch grids tell; ids: tokens, batch and length of the input, MISSING
    where there is none; sequence: the groups in order of submission; neighbours: the same, the groups of each thread
    and device together, which share a lane; order: what only that order tells; draft and checked: what `speculation`
    finds where no label names steps.
    """

    trace: Trace
    activity: Activity
    labels: LabelTable
    rows: pd.DataFrame
    graph: Bools
    plan: Plan
    facts: dict[str, Ints]
    grids: grids.Grids
    ids: dict[str, Ints]
    sequence: Ints
    neighbours: Ints
    lane: Ints
    order: Order
    draft: Bools
    checked: Ints


def measured(
    trace: Trace, activity: Activity, labels: LabelTable, rows: pd.DataFrame, inputs: Inputs, graph: Bools, plan: Plan
) -> Measured:
    """Measure the groups of a plan."""
    facts = tokens.facts(rows, plan.rows, inputs.vocabularies, plan.groups)
    ids = {column: _of_input(plan, inputs, column) for column in ("tokens", "batch", "length")}
    length, q = ids["length"], facts["q"]
    facts["q"] = np.where((length > 0) & (q > 0) & (q % np.maximum(length, 1) == 0), length, q)
    sequence, neighbours, lane = _sequences(rows, plan)
    back = np.argsort(neighbours, kind="stable")
    found = read_order(facts["q"][neighbours], facts["k"][neighbours])
    order = Order(
        found.context[back], found.padded[back], found.repeated[back], found.growing[back], found.recomputed[back]
    )
    launched = grids.read(trace, rows, plan.rows, plan.groups)
    draft, checked = _speculation(plan, facts, ids, launched, neighbours, lane)
    return Measured(
        trace, activity, labels, rows, graph, plan, facts, launched, ids, sequence, neighbours, lane, order, draft,
        checked,
    )  # fmt: skip


def _speculation(
    plan: Plan, facts: dict[str, Ints], ids: dict[str, Ints], launched: grids.Grids, neighbours: Ints, lane: Ints
) -> tuple[Bools, Ints]:
    draft, checked = np.zeros(plan.groups, np.bool_), np.full(plan.groups, MISSING, np.int64)
    if plan.labelled.any():
        return draft, checked
    tokens_of = first_known(ids["tokens"], facts["tokens"], launched.tokens, facts["written"])
    sequences = first_known(facts["batch"], launched.sequences)
    logits = first_known(facts["logits"], launched.logits)
    for one in np.unique(lane).tolist():
        order = neighbours[(lane[neighbours] == one) & (facts["layers"][neighbours] > 0)]
        found = speculation.read(facts["layers"][order], tokens_of[order], sequences[order], logits[order])
        draft[order], checked[order] = found.draft, found.checked
    return draft, checked


def first_known(*columns: Ints) -> Ints:
    """Per group the first that is known."""
    out = columns[0].copy()
    for other in columns[1:]:
        out = np.where(out > 0, out, other)
    return np.where(out > 0, out, MISSING)


def _of_input(plan: Plan, inputs: Inputs, column: str) -> Ints:
    out = np.full(plan.groups, MISSING, np.int64)
    has = plan.input != MISSING
    out[has] = inputs.frame[column].to_numpy(np.int64)[plan.input[has]]
    return out


def _sequences(rows: pd.DataFrame, plan: Plan) -> tuple[Ints, Ints, Ints]:
    """Groups in order of submission: all together, with those of each thread and device together, and what these are.

    The thread and device of a group are those of its first layer work. Threads that submit at the same time serve
    sequences of their own; threads that never do are one pool that takes the passes as they come.
    """
    time = rows["time_ns"].to_numpy(np.int64)
    start = np.full(plan.groups, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(start, plan.rows[plan.rows >= 0], time[plan.rows >= 0])
    layer = np.flatnonzero(rows["category"].isin(tokens.LAYER).to_numpy() & (plan.rows >= 0))
    group, first = np.unique(plan.rows[layer], return_index=True)  # rows are in order of submission
    thread, device = np.full(plan.groups, MISSING, np.int64), np.full(plan.groups, MISSING, np.int64)
    thread[group] = rows["thread"].to_numpy(np.int64)[layer[first]]
    device[group] = rows["device"].to_numpy(np.int64)[layer[first]]
    last = np.full(plan.groups, np.iinfo(np.int64).min, np.int64)
    np.maximum.at(last, plan.rows[layer], time[layer])
    sequence = np.argsort(start, kind="stable")
    begins = time[layer[first]][np.argsort(layer[first])]
    ends = last[group][np.argsort(layer[first])]
    if not (begins[1:] < ends[:-1]).any():
        thread = np.full(plan.groups, MISSING, np.int64)
    _, lane = np.unique(np.column_stack([thread, device]), axis=0, return_inverse=True)
    return sequence, np.lexsort((start, device, thread)), lane.reshape(-1)


def are_steps(known: Measured) -> Bools:
    """Groups that are steps: labelled, or with something only a language model's forward pass has."""
    facts = known.facts
    attention = facts["attention"] + facts["kv_writes"] + facts["eager_attention"] > 0
    layered = (known.plan.input != MISSING) & (facts["gemms"] > 0)
    seen = np.zeros(known.plan.groups, np.bool_)
    seen[known.plan.activity[known.plan.activity >= 0]] = True
    kept: Bools = seen & (known.plan.labelled | attention | layered)
    return kept


def words(known: Measured) -> list[str | None]:
    """The phase word of a named range that holds most of a group's rows."""
    frame = known.labels.of(("word",), USER)
    named = [label.phase is not None for label in known.labels.labels]
    frame = frame[[named[i] for i in frame["label"].tolist()]] if len(frame) else frame
    out: list[str | None] = [None] * known.plan.groups
    if not len(frame):
        return out
    spans = SpanMap(frame.assign(owner=frame["label"]))
    found = spans.locate(known.rows["thread"].to_numpy(np.int64), known.rows["time_ns"].to_numpy(np.int64))
    placed = known.plan.rows >= 0
    shares = pd.crosstab(known.plan.rows[placed], found[placed], normalize="index")
    for group in shares.index.tolist():
        best = int(shares.loc[group].idxmax())
        if best != MISSING and shares.loc[group, best] > 0.5:
            out[group] = known.labels.labels[best].phase
    return out


def whole_graphs(known: Measured) -> Bools:
    """Groups of which one graph launch started at least half."""
    group = known.plan.activity
    launch = known.activity.table["launch"].to_numpy(np.int64)
    inside = known.graph & (group >= 0)
    every = np.arange(known.plan.groups)
    launches = pd.Series(launch[inside]).groupby(group[inside]).nunique().reindex(every).fillna(0).to_numpy()
    replayed = np.bincount(group[inside], minlength=known.plan.groups)
    ran = np.bincount(group[group >= 0], minlength=known.plan.groups)
    whole: Bools = (launches == 1) & (2 * replayed >= ran)
    return whole


def encoders(known: Measured) -> Bools:
    """Unlabelled passes without an lm_head over equal q and k, before passes with one that do not continue them."""
    facts, sequence = known.facts, known.neighbours
    q, k = facts["q"][sequence], facts["k"][sequence]
    if known.plan.how == "annotation":
        return np.zeros(known.plan.groups, np.bool_)
    logits = facts["logits"][sequence] > 0
    later = np.append(np.cumsum(logits[::-1])[::-1][1:] > 0, False)
    continued = np.append(k[1:] == k[:-1] + q[1:], False)
    out = np.zeros(known.plan.groups, np.bool_)
    out[sequence] = ~logits & later & (q == k) & (q > 1) & ~continued
    out |= _apart_from_cache(known)
    out &= known.plan.opened | (facts["convs"] > 0)
    return out


def _apart_from_cache(known: Measured) -> Bools:
    """Passes over many queries without a causal mask that write no cache, in a run whose other passes do."""
    facts = known.facts
    writes = facts["kv_writes"] > 0
    followed = np.zeros(known.plan.groups, np.bool_)
    followed[known.sequence] = np.append(np.cumsum(writes[known.sequence][::-1])[::-1][1:] > 0, False)
    apart: Bools = known.grids.unmasked & ~writes & (facts["attention"] > 0) & followed
    return apart


def without_tokens(known: Measured) -> Bools:
    """Passes over many queries without a causal mask that look no token up: an image is made, or looked at."""
    embeds = (known.rows["category"] == "embedding").to_numpy() & (known.plan.rows >= 0)
    looked_up = np.bincount(known.plan.rows[embeds], minlength=known.plan.groups)
    found: Bools = known.grids.unmasked & (looked_up == 0) & (known.plan.input == MISSING)
    return found


def are_complete(known: Measured) -> Bools:
    """Steps recorded whole: both ends seen (or as many layers as other full steps), no kernels lost."""
    count, small = known.facts["layers"], known.draft
    full = _full(np.where(small, 0, count)) | _full(np.where(small, count, 0))
    heads = known.facts["logits"] > 0
    tail = heads | (heads.mean() <= 0.5) if len(heads) else heads
    seen = (known.plan.opened | full) & (known.plan.closed | (full & tail & ~known.plan.cut))
    rows = unanswered_launches(known.trace, known.activity)
    launches = known.trace.launches
    lost = known.plan.locate(launches["thread"].to_numpy(np.int64)[rows], launches["start_ns"].to_numpy(np.int64)[rows])
    missing = np.bincount(lost[lost >= 0], minlength=known.plan.groups)
    ran = known.facts["kernels"]
    whole: Bools = seen & (missing <= _LOST * (ran + missing))
    return whole


def _full(layers: Ints) -> Bools:
    """Passes with as many layers as most others of their model have, 0 being no pass of it."""
    usual = int(np.bincount(layers[layers > 0]).argmax()) if (layers > 0).any() else 0
    full: Bools = (layers == usual) & (layers == layers.max(initial=0)) & ((layers == usual).sum() > 1) & (usual > 0)
    return full
