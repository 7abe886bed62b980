"""Asks every rule and ranks what they answer.

Savings are quantised to two significant digits and to no less than a hundredth of a step, for they are no better than
that; a rule that would save less passes. Findings come first, by what they can be expected to save of the span: saving
times confidence, and half of that where the change does not act on what binds its phase. Then what could not be judged,
what passed, and what does not apply.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from traceanalyzer.analysis.pipeline import Analysis
from traceanalyzer.findings.answer import BOUNDS, Answer, Proposal, Refusal, Remark, Rule, not_applicable, passed
from traceanalyzer.findings.model import Fact, Finding, Status, Touched
from traceanalyzer.findings.recording import ENOUGH_STEPS, judged, window
from traceanalyzer.findings.registry import RULES, WINDOW
from traceanalyzer.findings.subject import Bools, PhaseSubject, subject

LEAST_SHARE = 0.01
"""The grain of savings, and the least that is reported, as a share of the step."""

_ORDER: tuple[Status, ...] = ("found", "error", "passed", "not_applicable")


def evaluate(analysis: Analysis) -> tuple[Finding, ...]:
    """Every rule's answer, most worthwhile first."""
    run = analysis.main_run
    advised = judged(run)
    subjects = {phase: subject(analysis, phase) for phase in {rule.phase for rule in RULES}} if advised else {}
    found = (
        [ask(rule, subjects.get(rule.phase)) for rule in RULES]
        if advised
        else [_refused(rule.id, rule.phase, not_applicable("not_generation")) for rule in RULES]
    )
    found.append(_recording(window(analysis)))
    bounds = {phase: about.summary.bound.name for phase, about in subjects.items() if about is not None}
    return tuple(sorted(found, key=lambda finding: (_ORDER.index(finding.status), -_expected(finding, bounds))))


BESIDE_THE_BOUND = 0.5
_RELIEVES = {rule.id: rule.relieves for rule in RULES}


def _expected(finding: Finding, bounds: Mapping[str, str]) -> float:
    bound = bounds.get(finding.phase or "", "unknown")
    beside = bound in BOUNDS and bound not in _RELIEVES.get(finding.id, BOUNDS)
    return (finding.saving_share_of_span or 0.0) * (finding.confidence or 0.0) * (BESIDE_THE_BOUND if beside else 1.0)


def ask(rule: Rule, about: PhaseSubject | None) -> Finding:
    """One rule's answer about a phase, None where the trace has no complete step of it."""
    if about is None:
        return _refused(rule.id, rule.phase, not_applicable("no_complete_step", phase=rule.phase))
    answer = next((refusal for need in rule.needs if (refusal := need(about)) is not None), None) or rule.judge(about)
    if isinstance(answer, Refusal):
        return _refused(rule.id, rule.phase, answer)
    if isinstance(answer, Remark):
        return _remark(rule.id, rule.phase, answer)
    return _proposed(rule, about, answer)


def _refused(name: str, phase: str, answer: Refusal) -> Finding:
    return Finding(id=name, status=answer.status, reason=answer.reason, phase=phase)


def _remark(name: str, phase: str, answer: Remark) -> Finding:
    return Finding(id=name, status="found", phase=phase, confidence=answer.confidence, evidence=answer.evidence)


def _recording(answer: Answer) -> Finding:
    if isinstance(answer, Refusal):
        return _refused(WINDOW, "decode", answer)
    return _remark(WINDOW, "decode", Remark(answer.evidence, answer.confidence))


def _proposed(rule: Rule, about: PhaseSubject, answer: Proposal) -> Finding:
    saving = quantised(answer.saving_ns, about.step_ns)
    share = saving / about.step_ns
    if share < LEAST_SHARE:
        too_little = passed("saves_too_little", share=max(answer.saving_ns, 0.0) / about.step_ns)
        return _refused(rule.id, rule.phase, too_little)
    same_tokens = math.isclose(answer.saving_ns, about.step_ns - answer.step_ns, rel_tol=1e-9, abs_tol=1.0)
    if same_tokens and saving < about.step_ns:
        step = about.step_ns - saving
        rate = about.model.output_tokens / step * 1e9 if about.model.output_tokens else answer.tokens_per_s
    else:  # other tokens a step, or a saving that rounding makes the whole step
        step, rate = max(answer.step_ns, 0.0), answer.tokens_per_s
    return Finding(
        id=rule.id,
        status="found",
        phase=rule.phase,
        saving_ns=saving,
        saving_share=share,
        saving_share_of_span=share * min(about.summary.time_share, 1.0),
        predicted_step_ns=step,
        predicted_tokens_per_s=rate,
        confidence=_confidence(about, answer),
        kernels=_touched(about, answer.touched),
        evidence=(*answer.evidence, *_doubts(about)),
        assumptions=answer.assumptions,
    )


def quantised(saving_ns: float, step_ns: float) -> float:
    """A saving to two significant digits, in grains of at least a hundredth of the step; never more than the step."""
    if not saving_ns > 0:
        return 0.0
    grain = max(10.0 ** (math.floor(math.log10(saving_ns)) - 1), LEAST_SHARE * step_ns)
    return min(round(saving_ns / grain) * grain, step_ns)


def _confidence(about: PhaseSubject, answer: Proposal) -> float:
    """What the rule says, less for work that is unknown and for few steps."""
    known = about.model.known_share
    steps = min(about.count / ENOUGH_STEPS, 1.0)
    return round(answer.confidence * (0.5 + 0.5 * known) * (0.6 + 0.4 * steps), 2)


def _doubts(about: PhaseSubject) -> Iterable[Fact]:
    if about.count < ENOUGH_STEPS:
        yield Fact("few_steps", {"count": about.count})


def _touched(about: PhaseSubject, rows: Bools) -> tuple[Touched, ...]:
    chosen = about.rows[rows]
    by_name = chosen.groupby("name")["duration_ns"].agg(["sum", "size"]) / about.count
    by_name = by_name.reset_index().sort_values(["sum", "name"], ascending=[False, True], kind="stable")
    return tuple(
        Touched(int(name), float(ns), float(np.round(count, 6)))
        for name, ns, count in by_name[["name", "sum", "size"]].itertuples(index=False)
    )
