"""Finds the forward passes of a trace and says of each what it is, how sure that is, and why.

    submission (where the host launched it) -> labels, else segments -> token arithmetic -> phase -> facts of the run

What could be wrong with it: see the modules it calls; this one only joins their answers.
"""

from __future__ import annotations

from dataclasses import replace
from math import isnan, nan

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.steps import plan as plans
from traceanalyzer.analysis.steps import run, tokens
from traceanalyzer.analysis.steps.hints import contrasts, step_hints
from traceanalyzer.analysis.steps.inputs import Inputs, model_inputs
from traceanalyzer.analysis.steps.join import LabelTable, labelled_steps, read_labels
from traceanalyzer.analysis.steps.model import FACTS, NOT_EXECUTED, Bools, Ints, RunFacts, Steps, Workload
from traceanalyzer.analysis.steps.phase import StepView, Verdict, decide
from traceanalyzer.analysis.steps.plan import Plan
from traceanalyzer.analysis.steps.sequence import Order, read_order
from traceanalyzer.analysis.steps.submission import (
    SpanMap,
    Submission,
    graph_launched,
    submissions,
    unanswered_launches,
)
from traceanalyzer.analysis.steps.table import build_table, empty_table
from traceanalyzer.trace.tables import MISSING, USER, Note, Trace

_DRAFT_SHARE = 0.25
"""A labelled pass with at most this share of the usual layers is a draft model's."""
_MOST_LAYERS = 256
"""No model has more: a piece with more attention calls holds several passes that nothing tells apart."""
_LOST = 0.01
"""Share of a step's launches without a recorded kernel beyond which the step was not recorded whole."""


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
    submission = submissions(trace, activity)
    labels = read_labels(trace)
    category = work["category"].fillna("other").astype(str).to_numpy()
    labelled = labelled_steps(labels, activity, submission, category)
    if run.is_capture(trace, activity):
        return _captured(trace, activity, labels)
    if labelled is None and run.is_training(trace):
        return _none(trace, activity, "training")
    rows = tokens.step_rows(trace, activity, work, submission)
    layer = rows[rows["category"].isin(tokens.LAYER)]
    inputs = model_inputs(trace, layer["thread"].to_numpy(np.int64), layer["time_ns"].to_numpy(np.int64))
    graph = graph_launched(trace, activity)
    if labelled is not None:
        plan = plans.from_labels(labelled, rows, inputs)
    else:
        plan = plans.from_segments(labels, activity, submission, rows, graph, inputs)
    return _Judge(trace, activity, submission, labels, rows, inputs, graph, plan).steps()


def _none(trace: Trace, activity: Activity, workload: Workload) -> Steps:
    missing = np.full(len(activity.table), MISSING, np.int32)
    return Steps(empty_table(), missing, RunFacts(workload, run.engine(trace, []), None, None))


def _captured(trace: Trace, activity: Activity, labels: LabelTable) -> Steps:
    """One row per device: what ran while graphs were captured. No forward pass was executed."""
    names = [label.text for label in labels.labels if label.kind == "capture"]
    verdict = Verdict("capture", 0.99, tuple(f"annotation {n}" for n in names[:2]) or ("stream capture, no replay",))
    facts = {name: np.array([nan]) for name in FACTS}
    everything = np.zeros(len(activity.table), np.int64)
    table, step = build_table(activity, everything, [verdict], facts, (MISSING,), np.zeros(1, np.bool_))
    return Steps(table, step, RunFacts("capture", run.engine(trace, []), None, None))


class _Judge:
    """Everything known while the steps of one trace are judged."""

    def __init__(
        self, trace: Trace, activity: Activity, submission: Submission, labels: LabelTable, rows: pd.DataFrame,
        inputs: Inputs, graph: Bools, plan: Plan,
    ) -> None:  # fmt: skip
        """Measure the groups of the plan."""
        self.trace, self.activity, self.submission = trace, activity, submission
        self.labels, self.rows, self.inputs, self.graph, self.plan = labels, rows, inputs, graph, plan
        self.facts = tokens.facts(rows, plan.rows, inputs.vocabularies, plan.groups)
        length, q = self._ids("length"), self.facts["q"]
        self.facts["q"] = np.where((length > 0) & (q > 0) & (q % np.maximum(length, 1) == 0), length, q)

    def steps(self) -> Steps:
        """Decide, and put the table together."""
        kept = self._steps_at_all()
        order = self._order()
        verdicts = self._verdicts(order)
        complete = self._complete()
        verdicts, parents = self._drafts(verdicts, complete)
        facts = self._facts(verdicts, order)
        group = np.where(np.isin(self.plan.activity, np.flatnonzero(kept)), self.plan.activity, MISSING)
        table, step = build_table(self.activity, group, verdicts, facts, parents, complete)
        phases = [verdicts[i].phase if kept[i] else "" for i in range(self.plan.groups)]
        return Steps(table, step, self._run_facts(table, step, phases, complete, order))

    def _steps_at_all(self) -> Bools:
        """Groups that are steps: labelled, or with something only a language model's forward pass has."""
        seen = np.isin(np.arange(self.plan.groups), self.plan.activity)
        labelled = np.array([label is not None for label in self.plan.labels], np.bool_)
        facts = self.facts
        attention = facts["attention"] + facts["kv_writes"] + facts["eager_attention"] > 0
        layered = (self.plan.input != MISSING) & (facts["gemms"] > 0)
        kept: Bools = seen & (labelled | attention | layered)
        return kept

    def _first_seen(self) -> Ints:
        """Groups in order of submission."""
        placed = self.plan.rows >= 0
        first = self.rows["time_ns"][placed].groupby(self.plan.rows[placed]).min()
        times = first.reindex(range(self.plan.groups)).fillna(np.iinfo(np.int64).max).to_numpy()
        return np.argsort(times, kind="stable")

    def _order(self) -> Order:
        sequence = self._first_seen()
        back = np.argsort(sequence, kind="stable")
        found = read_order(self.facts["q"][sequence], self.facts["k"][sequence])
        return Order(
            found.context[back], found.padded[back], found.repeated[back], found.growing[back], found.recomputed[back]
        )

    def _verdicts(self, order: Order) -> list[Verdict]:
        hints = step_hints(self.trace, self.rows, self.plan.rows, self.plan.groups)
        contrast = contrasts(self.rows, self.plan.rows, self.facts["layers"])
        words = self._words()
        whole = self._whole_graphs()
        encoders = self._encoders()
        facts = self.facts
        batch, length = self._ids("batch"), self._ids("length")
        out: list[Verdict] = []
        for i in range(self.plan.groups):
            view = StepView(
                label=self.plan.labels[i], word=words[i], tokens=int(facts["tokens"][i]),
                logits=int(facts["logits"][i]), q=int(facts["q"][i]), k=int(facts["k"][i]),
                batch=int(facts["batch"][i]), ids_batch=int(batch[i]), ids_length=int(length[i]),
                hint=hints[i][0], hint_strength=hints[i][1], contrast=float(contrast[i]), whole_graph=bool(whole[i]),
                repeated=int(order.repeated[i]), growing=bool(order.growing[i]), fragment=self._fragment(i),
                encoder=bool(encoders[i]),
            )  # fmt: skip
            verdict = decide(view)
            if order.padded[i]:
                verdict = replace(verdict, evidence=(*verdict.evidence, f"k={view.k} does not grow: fixed cache"))
            if order.recomputed[i]:
                verdict = replace(verdict, evidence=(*verdict.evidence, "recomputes the pass before"))
            out.append(verdict)
        return out

    def _fragment(self, group: int) -> str:
        """Why a group is too little of a forward pass to judge, or ""."""
        facts = self.facts
        if self.plan.labels[group] is not None or facts["layer_rows"][group] > facts["attention_rows"][group]:
            return ""
        return "fragment: no layer GEMM"

    def _ids(self, column: str) -> Ints:
        """A column of the looked-up input of each group, MISSING where it has none."""
        out = np.full(self.plan.groups, MISSING, np.int64)
        has = self.plan.input != MISSING
        out[has] = self.inputs.frame[column].to_numpy(np.int64)[self.plan.input[has]]
        return out

    def _words(self) -> list[str | None]:
        """The phase word of a named range that holds most of a group's rows."""
        frame = self.labels.of(("word",), USER)
        named = [label.phase is not None for label in self.labels.labels]
        frame = frame[[named[i] for i in frame["label"].tolist()]] if len(frame) else frame
        out: list[str | None] = [None] * self.plan.groups
        if not len(frame):
            return out
        spans = SpanMap(frame.assign(owner=frame["label"]))
        found = spans.locate(self.rows["thread"].to_numpy(np.int64), self.rows["time_ns"].to_numpy(np.int64))
        placed = self.plan.rows >= 0
        shares = pd.crosstab(self.plan.rows[placed], found[placed], normalize="index")
        for group in shares.index.tolist():
            best = int(shares.loc[group].idxmax())
            if best != MISSING and shares.loc[group, best] > 0.5:
                out[group] = self.labels.labels[best].phase
        return out

    def _whole_graphs(self) -> Bools:
        """Groups of which one graph launch started at least half."""
        group = self.plan.activity
        launch = self.activity.table["launch"].to_numpy(np.int64)
        inside = self.graph & (group >= 0)
        every = np.arange(self.plan.groups)
        launches = pd.Series(launch[inside]).groupby(group[inside]).nunique().reindex(every).fillna(0)
        share = pd.Series(self.graph[group >= 0]).groupby(group[group >= 0]).mean().reindex(every).fillna(0.0)
        return ((launches == 1) & (share >= 0.5)).to_numpy()

    def _encoders(self) -> Bools:
        """Unlabelled passes without an lm_head over equal q and k, before passes with one that do not continue them."""
        facts, sequence = self.facts, self._first_seen()
        q, k = facts["q"][sequence], facts["k"][sequence]
        if self.plan.how == "annotation":
            return np.zeros(self.plan.groups, np.bool_)
        logits = facts["logits"][sequence] > 0
        later = np.append(np.cumsum(logits[::-1])[::-1][1:] > 0, False)
        continued = np.append(k[1:] == k[:-1] + q[1:], False)
        out = np.zeros(self.plan.groups, np.bool_)
        out[sequence] = ~logits & later & (q == k) & (q > 1) & ~continued
        out &= self.plan.opened | (facts["convs"] > 0)
        return out

    def _complete(self) -> Bools:
        """Steps recorded whole: both ends seen (or as many layers as other full steps), no kernels lost."""
        count = self.facts["layers"]
        usual = self._usual_layers()
        full = (count == usual) & (count == count.max(initial=0)) & ((count == usual).sum() > 1) & (usual > 0)
        heads = self.facts["logits"] > 0
        tail = heads | (heads.mean() <= 0.5) if len(heads) else heads
        seen = (self.plan.opened | full) & (self.plan.closed | (full & tail))
        rows = unanswered_launches(self.trace, self.activity)
        launches = self.trace.launches
        lost = self.plan.locate(
            launches["thread"].to_numpy(np.int64)[rows], launches["start_ns"].to_numpy(np.int64)[rows]
        )
        missing = np.bincount(lost[lost >= 0], minlength=self.plan.groups)
        ran = self.facts["kernels"]
        whole: Bools = seen & (missing <= _LOST * (ran + missing))
        return whole

    def _usual_layers(self) -> int:
        count = self.facts["layers"]
        return int(np.bincount(count[count > 0]).argmax()) if (count > 0).any() else 0

    def _drafts(self, verdicts: list[Verdict], complete: Bools) -> tuple[list[Verdict], tuple[int, ...]]:
        """Engines label a draft model's passes like the target's; they run few of its layers."""
        count, parents = self.facts["layers"], list(self.plan.parent)
        usual, previous = int(count[complete].max(initial=0)), MISSING
        for i in self._first_seen().tolist():
            few = 0 < count[i] <= _DRAFT_SHARE * usual and complete[i]
            if few and self.plan.how == "annotation" and verdicts[i].phase in ("prefill", "decode"):
                reason = f"{count[i]} of {usual} layers"
                verdicts[i] = Verdict("draft", 0.9, (reason, *verdicts[i].evidence))
            if verdicts[i].phase not in ("draft", *NOT_EXECUTED):
                previous = i
            elif verdicts[i].phase == "draft" and parents[i] == MISSING:
                parents[i] = previous
        return verdicts, tuple(parents)

    def _facts(self, verdicts: list[Verdict], order: Order) -> dict[str, npt.NDArray[np.float64]]:
        out = {name: np.full(self.plan.groups, nan) for name in FACTS}
        ids, batch = self._ids("tokens"), self._ids("batch")
        for i, verdict in enumerate(verdicts):
            counted = _counted(verdict.phase, self.facts, i, int(ids[i]), int(batch[i]), int(order.context[i]))
            label = self.plan.labels[i]
            for name in FACTS:
                stated = getattr(label, name) if label is not None else nan
                out[name][i] = counted.get(name, nan) if isnan(stated) else stated
            ran, useful = float(self.facts["tokens"][i]), out["tokens"][i]
            if isnan(out["padded_tokens"][i]) and label is not None and useful <= ran <= max(2 * useful, 8):
                out["padded_tokens"][i] = ran - useful
        return out

    def _run_facts(
        self, table: pd.DataFrame, step: npt.NDArray[np.int32], phases: list[str], complete: Bools, order: Order
    ) -> RunFacts:
        facts = self.facts
        logits, seen = facts["logits"], np.array([phase != "" for phase in phases], np.bool_)
        chooses = (logits > 0) & ((facts["samples"] > 0) | (logits < facts["tokens"])) & seen
        named = [phase for phase in phases if phase]
        whole = (self.plan.input != MISSING) | np.array([label is not None for label in self.plan.labels], np.bool_)
        graph = None
        if not self.activity.on_cpu:
            launch = self.activity.table["launch"].to_numpy(np.int64)
            graph = run.graph_mode(self.graph, launch, step.astype(np.int64), table["phase"].tolist())
        notes: list[Note] = []
        recomputed = int((order.recomputed & seen).sum())
        if recomputed >= 3:
            notes.append(Note("no_kv_cache", "warning", recomputed))
        return RunFacts(
            workload=run.workload(named, chooses[seen], (whole & complete)[seen]),
            engine=run.engine(self.trace, [label.engine for label in self.plan.labels if label is not None]),
            graph_mode=graph,
            layers=run.layers(
                np.where(facts["layers"] <= _MOST_LAYERS, facts["layers"], 0)[seen], complete[seen], named
            ),
            notes=tuple(notes),
        )


def _counted(
    phase: str, facts: dict[str, Ints], group: int, ids: int, ids_batch: int, context: int
) -> dict[str, float]:
    """Counts of one step from its shapes: what no label says. Absent keys are unknown."""
    ran, written, q, logits = (int(facts[name][group]) for name in ("tokens", "written", "q", "logits"))
    total = next((n for n in (ids, ran, written) if n > 0), MISSING)
    out: dict[str, float] = {}
    if total > 0:
        out["tokens"] = float(total)
    batch = max(ids_batch, int(facts["batch"][group]))
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
