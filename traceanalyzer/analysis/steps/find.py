"""Finds the forward passes of a trace and says of each what it is, how sure that is, and why.

    submission (where the host launched it) -> labels, else segments -> what is measured -> phase -> facts of the run

What could be wrong with it: see the modules it calls; this one only joins their answers.
"""

from __future__ import annotations

from math import nan

import numpy as np
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.steps import counted, judge, run, tokens
from traceanalyzer.analysis.steps import plan as plans
from traceanalyzer.analysis.steps.inputs import model_inputs
from traceanalyzer.analysis.steps.join import LabelTable, labelled_steps, read_labels
from traceanalyzer.analysis.steps.measured import Measured, are_complete, are_steps, measured
from traceanalyzer.analysis.steps.model import FACTS, Bools, Ints, RunFacts, Steps, Workload
from traceanalyzer.analysis.steps.phase import Verdict
from traceanalyzer.analysis.steps.submission import graph_launched, submissions
from traceanalyzer.analysis.steps.table import build_table, empty_table
from traceanalyzer.trace.tables import MISSING, USER, Note, Trace

_MOST_LAYERS = 256
"""No model has more: a piece with more attention calls holds several passes that nothing tells apart."""
_FEWEST_RECOMPUTED = 3
"""Passes in a row that each repeat the one before, from which on generation runs without a KV cache."""


def find(trace: Trace, activity: Activity, work: pd.DataFrame) -> Steps:
    """Find the steps of one trace.

    Args:
        trace: what was read.
        activity: what ran on its devices.
        work: FLOPs, dimensions and categories, aligned to `activity.table`.

    Returns:
        The steps, which activity belongs to which, and what the run is as a whole. A trace without recognisable steps
        gives an empty table; no phase is assumed.
    """
    notes = _work_notes(work)
    submission = submissions(trace, activity)
    labels = read_labels(trace)
    category = pd.Categorical(work["category"])
    labelled = labelled_steps(labels, activity, submission, category)
    if run.is_capture(trace, activity):
        return _captured(trace, activity, labels, notes)
    if labelled is None and run.is_training(trace):
        return _none(trace, activity, "training", labels, notes)
    rows = tokens.step_rows(trace, activity, work, category, submission)
    layer = rows[["thread", "time_ns"]][rows["category"].isin(tokens.LAYER)]
    inputs = model_inputs(trace, layer["thread"].to_numpy(np.int64), layer["time_ns"].to_numpy(np.int64))
    graph = graph_launched(trace, activity)
    if labelled is not None:
        plan = plans.from_labels(labelled, rows, inputs)
    else:
        plan = plans.from_segments(labels, activity, submission, rows, graph, inputs)
    return _judged(measured(trace, activity, labels, rows, inputs, graph, plan), notes)


def _work_notes(work: pd.DataFrame) -> list[Note]:
    estimated = int(work["estimated"].sum())
    return [Note("estimated_work", "info", estimated)] if estimated else []


def _none(trace: Trace, activity: Activity, workload: Workload, labels: LabelTable, notes: list[Note]) -> Steps:
    missing = np.full(len(activity.table), MISSING, np.int32)
    facts = RunFacts(workload, run.engine(trace, []), None, None, tuple(notes))
    return Steps(empty_table(), missing, facts, _labelled(labels))


def _labelled(labels: LabelTable) -> pd.DataFrame:
    return labels.of(("step",), USER)[["thread", "start_ns", "end_ns"]]


def _captured(trace: Trace, activity: Activity, labels: LabelTable, notes: list[Note]) -> Steps:
    """One row per device: what ran while graphs were captured. No forward pass was executed."""
    names = [label.text for label in labels.labels if label.kind == "capture"]
    verdict = Verdict("capture", 0.99, tuple(f"annotation {n}" for n in names[:2]) or ("stream capture, no replay",))
    facts = {name: np.array([nan]) for name in FACTS}
    everything = np.zeros(len(activity.table), np.int64)
    table, step = build_table(activity, everything, [verdict], facts, (MISSING,), np.zeros(1, np.bool_))
    facts_of_run = RunFacts("capture", run.engine(trace, []), None, None, tuple(notes))
    return Steps(table, step, facts_of_run, _labelled(labels))


def _judged(known: Measured, notes: list[Note]) -> Steps:
    """Decide, and put the table together."""
    kept, complete = are_steps(known), are_complete(known)
    judged, followed = judge.with_mixed(known, judge.verdicts(known))
    verdicts, parents = judge.with_drafts(known, judged, complete)
    placed = known.plan.activity
    group = np.where((placed >= 0) & kept[placed], placed, MISSING) if len(kept) else placed
    counts = counted.counts(known, verdicts, followed)
    table, step = build_table(known.activity, group, verdicts, counts, parents, complete)
    phases = [verdict.phase for verdict in verdicts]
    graph = None if known.activity.on_cpu else _graph_mode(known, table, step.astype(np.int64))
    return Steps(table, step, _run_facts(known, phases, kept, complete, graph, notes), _labelled(known.labels))


def _graph_mode(known: Measured, table: pd.DataFrame, step: Ints) -> str | None:
    launch = known.activity.table["launch"].to_numpy(np.int64)
    return run.graph_mode(known.graph, launch, step, table["phase"].tolist())


def _run_facts(
    known: Measured, phases: list[str], kept: Bools, complete: Bools, graph: str | None, notes: list[Note]
) -> RunFacts:
    facts, plan = known.facts, known.plan
    logits, layers = facts["logits"], facts["layers"]
    chooses = (logits > 0) & ((facts["samples"] > 0) | (logits < facts["tokens"]))
    whole = (plan.input != MISSING) | plan.labelled
    told = (layers <= _MOST_LAYERS) & (plan.how != "none")  # else a step may be several passes
    named = [phase for phase, keep in zip(phases, kept.tolist(), strict=True) if keep]
    recomputed = int((known.order.recomputed & kept).sum())
    if recomputed >= _FEWEST_RECOMPUTED:
        notes = [*notes, Note("no_kv_cache", "warning", recomputed)]
    return RunFacts(
        workload=run.workload(named, chooses[kept], (whole & complete)[kept]),
        engine=run.engine(known.trace, [label.engine for label in plan.labels if label is not None]),
        graph_mode=graph,
        layers=run.layers(np.where(told, layers, 0)[kept], complete[kept], named),
        notes=tuple(notes),
    )
