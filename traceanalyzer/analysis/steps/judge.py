"""Judges the measured steps of a trace one by one: the phase of each, and what of it is counted.

What could be wrong with it: a draft model is told by its few layers, so one of more than a quarter of the target's
layers passes for a target pass.
"""

from __future__ import annotations

from dataclasses import replace
from math import isnan, nan

import numpy as np
import numpy.typing as npt

from traceanalyzer.analysis.steps.hints import contrasts, step_hints
from traceanalyzer.analysis.steps.labels import is_ours
from traceanalyzer.analysis.steps.measured import Measured, encoders, whole_graphs, words
from traceanalyzer.analysis.steps.model import FACTS, NOT_EXECUTED, Bools
from traceanalyzer.analysis.steps.phase import StepView, Verdict, decide
from traceanalyzer.trace.collector import is_collected
from traceanalyzer.trace.tables import MISSING

_DRAFT_SHARE = 0.25
"""A labelled pass with at most this share of the usual layers is a draft model's."""


def verdicts(known: Measured) -> list[Verdict]:
    """The phase of every group by its own evidence and its neighbours'."""
    plan, facts, order, grids = known.plan, known.facts, known.order, known.grids
    hints = step_hints(known.trace, known.rows, plan.rows, plan.groups)
    contrast = contrasts(known.rows, plan.rows, facts["layers"])
    named, whole, encoder = words(known), whole_graphs(known), encoders(known)
    collected = is_collected(known.trace.metadata.collector)
    out: list[Verdict] = []
    for i in range(plan.groups):
        view = StepView(
            label=plan.labels[i], word=named[i], tokens=int(facts["tokens"][i]), logits=int(facts["logits"][i]),
            q=int(facts["q"][i]), k=int(facts["k"][i]), batch=int(facts["batch"][i]),
            ids_batch=int(known.ids["batch"][i]), ids_length=int(known.ids["length"][i]),
            grid_tokens=int(grids.tokens[i]), grid_sequences=int(grids.sequences[i]), grid_above=int(grids.above[i]),
            grid_logits=int(grids.logits[i]), hint=hints[i][0], hint_strength=hints[i][1], contrast=float(contrast[i]), whole_graph=bool(whole[i]),
            repeated=int(order.repeated[i]), growing=bool(order.growing[i]), fragment=_fragment(known, i),
            encoder=bool(encoder[i]), collected=collected and is_ours(plan.labels[i]),
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


def with_drafts(known: Measured, judged: list[Verdict], complete: Bools) -> tuple[list[Verdict], tuple[int, ...]]:
    """The verdicts with draft passes among them, and the group that each draft pass is for.

    Engines label a draft model's passes like the target's; they run few of its layers.
    """
    count, parents, out = known.facts["layers"], list(known.plan.parent), list(judged)
    usual, previous = int(count[complete].max(initial=0)), MISSING
    for i in known.sequence.tolist():
        few = 0 < count[i] <= _DRAFT_SHARE * usual and complete[i]
        if few and known.plan.how == "annotation" and out[i].phase in ("prefill", "decode"):
            out[i] = Verdict("draft", 0.9, (f"{count[i]} of {usual} layers", *out[i].evidence))
        if out[i].phase not in ("draft", *NOT_EXECUTED):
            previous = i
        elif out[i].phase == "draft" and parents[i] == MISSING:
            parents[i] = previous
    return out, tuple(parents)


def counts(known: Measured, judged: list[Verdict]) -> dict[str, npt.NDArray[np.float64]]:
    """The columns of `FACTS` by group: what the label says, else what shapes say, else NaN."""
    out = {name: np.full(known.plan.groups, nan) for name in FACTS}
    for i, verdict in enumerate(judged):
        counted = _counted(known, i, verdict.phase)
        label = known.plan.labels[i]
        for name in FACTS:
            stated = getattr(label, name) if label is not None else nan
            out[name][i] = counted.get(name, nan) if isnan(stated) else stated
        ran, useful = float(known.facts["tokens"][i]), out["tokens"][i]
        if isnan(out["padded_tokens"][i]) and label is not None and useful <= ran <= max(2 * useful, 8):
            out["padded_tokens"][i] = ran - useful
    return out


def _counted(known: Measured, group: int, phase: str) -> dict[str, float]:
    """Counts of one step from its shapes: what no label says. Absent keys are unknown."""
    ran, written, q, logits = (int(known.facts[name][group]) for name in ("tokens", "written", "q", "logits"))
    ids, ids_batch = int(known.ids["tokens"][group]), int(known.ids["batch"][group])
    context = int(known.order.context[group])
    total = next((n for n in (ids, ran, written) if n > 0), MISSING)
    out: dict[str, float] = {}
    if total > 0:
        out["tokens"] = float(total)
    batch = max(ids_batch, int(known.facts["batch"][group]))
    sequences = batch if batch > 0 and (ids_batch > 0 or batch * q == total) else MISSING
    if sequences == MISSING and phase == "prefill" and 0 < logits < total:
        sequences = logits
    if sequences == MISSING and (total == 1 or (phase == "decode" and q in (1, MISSING))):
        sequences = total
    if sequences > 0:
        out["sequences"] = float(sequences)
        if context > 0 and sequences * q == total:
            out["context_sum"] = float(sequences * context)
            out["query_context_sum"] = float(total) * context
    if phase in ("prefill", "decode"):
        other = "decode" if phase == "prefill" else "prefill"
        for kind in ("tokens", "sequences"):
            if kind in out:
                out[f"{phase}_{kind}"] = out[kind]
                out[f"{other}_{kind}"] = 0.0
    return out
