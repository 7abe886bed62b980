"""Judges the measured steps of a trace one by one: the phase of each.

What could be wrong with it: a draft model is told by its few layers, so one of more than a quarter of the target's
layers passes for a target pass.
"""

from __future__ import annotations

from dataclasses import replace
from math import nan

import numpy as np

from traceanalyzer.analysis.steps.follow import Followed, Sequence, follow
from traceanalyzer.analysis.steps.hints import contrasts, step_hints
from traceanalyzer.analysis.steps.labels import is_ours
from traceanalyzer.analysis.steps.measured import Measured, encoders, first_known, whole_graphs, without_tokens, words
from traceanalyzer.analysis.steps.model import NOT_EXECUTED, Bools, Ints
from traceanalyzer.analysis.steps.phase import StepView, Verdict, decide
from traceanalyzer.trace.collector import is_collected
from traceanalyzer.trace.tables import MISSING

_DRAFT_SHARE = 0.25
"""A labelled pass with at most this share of the usual layers is a draft model's."""
_FOLLOWED = 0.8
"""How sure a phase is that only the number of sequences from step to step tells."""


def verdicts(known: Measured) -> list[Verdict]:
    """The phase of every group by its own evidence and its neighbours'."""
    plan, facts, order, grids = known.plan, known.facts, known.order, known.grids
    hints = step_hints(known.trace, known.rows, plan.rows, plan.groups)
    contrast = contrasts(known.rows, plan.rows, facts["layers"])
    named, whole, encoder = words(known), whole_graphs(known), encoders(known)
    others = without_tokens(known)
    collected = is_collected(known.trace.metadata.collector)
    out: list[Verdict] = []
    for i in range(plan.groups):
        view = StepView(
            label=plan.labels[i], word=named[i], tokens=int(facts["tokens"][i]), logits=int(facts["logits"][i]),
            q=int(facts["q"][i]), k=int(facts["k"][i]), batch=int(facts["batch"][i]),
            ids_batch=int(known.ids["batch"][i]), ids_length=int(known.ids["length"][i]),
            grid_tokens=int(grids.tokens[i]), grid_sequences=int(grids.sequences[i]), grid_above=int(grids.above[i]),
            grid_logits=int(grids.logits[i]), checked=int(known.checked[i]),
            hint=hints[i][0], hint_strength=hints[i][1],
            contrast=float(contrast[i]), whole_graph=bool(whole[i]),
            repeated=int(order.repeated[i]), growing=bool(order.growing[i]), fragment=_fragment(known, i),
            encoder=bool(encoder[i]), no_tokens=bool(others[i]), collected=collected and is_ours(plan.labels[i]),
        )  # fmt: skip
        verdict = decide(view)
        if order.padded[i]:
            verdict = replace(verdict, evidence=(*verdict.evidence, f"k={view.k} does not grow: fixed cache"))
        if order.recomputed[i]:
            verdict = replace(verdict, evidence=(*verdict.evidence, "recomputes the pass before"))
        out.append(verdict)
    return out


def _fragment(known: Measured, group: int) -> str:
    """Why a group is too little of a forward pass to judge, or ""."""
    facts = known.facts
    if known.plan.labels[group] is not None or facts["layer_rows"][group] > facts["attention_rows"][group]:
        return ""
    return "fragment: no layer GEMM"


def with_mixed(known: Measured, judged: list[Verdict]) -> tuple[list[Verdict], Followed]:
    """The verdicts with mixed steps among them, and contexts, as following the sequences tells them."""
    groups, out = known.plan.groups, list(judged)
    mixed, decoding = np.zeros(groups, np.bool_), np.full(groups, MISSING, np.int64)
    context = np.full(groups, nan)
    if known.plan.how != "annotation":
        tokens = first_known(known.ids["tokens"], known.facts["tokens"], known.grids.tokens, known.facts["written"])
        for lane in np.unique(known.lane).tolist():
            order = known.neighbours[known.lane[known.neighbours] == lane]
            order = order[[judged[i].phase not in ("draft", "encoder", *NOT_EXECUTED) for i in order.tolist()]]
            order = order[~known.draft[order]]
            found = follow(_in_order(known, judged, tokens, order))
            mixed[order], decoding[order], context[order] = found.mixed, found.decoding, found.context
    for i in np.flatnonzero(mixed).tolist():
        if out[i].phase == "prefill":
            reason = "sequences that decode ride along, by their number before and after"
            out[i] = Verdict("mixed", min(out[i].confidence, _FOLLOWED), (reason, *out[i].evidence))
    return out, Followed(mixed, decoding, context)


def _in_order(known: Measured, judged: list[Verdict], tokens: Ints, order: Ints) -> Sequence:
    phase = np.array([judged[i].phase for i in order.tolist()], object)
    decodes = phase == "decode"
    sequences = np.where(
        decodes & (known.grids.sequences[order] == MISSING), tokens[order], known.grids.sequences[order]
    )
    return Sequence(
        reads=(phase == "prefill") | (phase == "mixed"),
        decodes=decodes,
        tokens=tokens[order],
        sequences=sequences,
        whole=known.grids.whole[order],
        attention_ns=known.facts["attention_ns"][order],
    )


def with_drafts(known: Measured, judged: list[Verdict], complete: Bools) -> tuple[list[Verdict], tuple[int, ...]]:
    """The verdicts with draft passes among them, and the group that each draft pass is for.

    Engines label a draft model's passes like the target's; they run few of its layers. Without labels the order of the
    passes tells them.
    """
    count, parents, out = known.facts["layers"], list(known.plan.parent), list(judged)
    usual, previous = int(count[complete].max(initial=0)), MISSING
    for i in known.sequence.tolist():
        few = 0 < count[i] <= _DRAFT_SHARE * usual and complete[i]
        if known.draft[i]:
            out[i] = Verdict("draft", 0.85, (f"{count[i]} layers between passes of {usual}", *out[i].evidence))
        elif few and known.plan.how == "annotation" and out[i].phase in ("prefill", "decode"):
            out[i] = Verdict("draft", 0.9, (f"{count[i]} of {usual} layers", *out[i].evidence))
        if out[i].phase not in ("draft", *NOT_EXECUTED):
            previous = i
        elif out[i].phase == "draft" and parents[i] == MISSING:
            parents[i] = previous
    return out, tuple(parents)
