"""More sequences per decode step: because each weight is read once for all of them, or because requests take turns.

A larger batch saves time per token, not per step: the saving is the time of today's tokens at the new rate. It needs
requests to be there. Where some take turns they are, so serving those together comes first, and a still larger batch
counts only what it saves beyond that.
"""

from __future__ import annotations

import numpy as np

from traceanalyzer.analysis.forecast import ridge_batch, with_sequences
from traceanalyzer.analysis.turns import FEWEST_STEPS, Turns, turns
from traceanalyzer.findings.answer import Answer, Proposal, error, not_applicable, passed
from traceanalyzer.findings.model import Fact
from traceanalyzer.findings.subject import PhaseSubject

BELOW_RIDGE = 0.5
"""Below half the ridge there is room for a larger batch (method: advice)."""
MOST_TIMES = 8.0
"""No larger multiple of today's batch is promised: the step-time model was only checked nearby."""


def larger_batch(subject: PhaseSubject) -> Answer:
    """Are the matrix products of decode so far below the ridge that more sequences would come almost for free?"""
    now, ridge = subject.model.sequences, ridge_batch(subject.model)
    if not now or not subject.model.output_tokens or not subject.model.tokens:
        return error("tokens_unknown")
    if ridge is None:
        return error("work_not_recorded")
    at_ridge = ridge * now / subject.model.tokens
    if now >= BELOW_RIDGE * at_ridge:
        return passed("batch_at_ridge", sequences=now, ridge=at_ridge)
    taken = _turns(subject)
    there = float(taken.sequences) if taken is not None and taken.groups > 1 else now
    room = subject.room
    if room is not None and room < there + 1:
        return passed("memory_full", sequences=there, room=room)
    target = float(np.floor(min(at_ridge, now * MOST_TIMES, np.inf if room is None else float(room))))
    if there > now and (target <= there or there >= BELOW_RIDGE * at_ridge):
        return passed("turns_fill_batch", sequences=there)
    evidence = (
        Fact("below_ridge", {"sequences": now, "ridge": at_ridge}),
        Fact("room_for", {"sequences": room}) if room is not None else Fact("room_unknown"),
        *((Fact("beyond_turns", {"sequences": there}),) if there > now else ()),
    )
    return _at(subject, there, target, evidence, 0.6 if room is not None else 0.4, ("requests_wait",))


def in_turns(subject: PhaseSubject) -> Answer:
    """Do several requests, or groups of them, take turns, each with steps of its own?"""
    now = subject.model.sequences
    if not now or not subject.model.output_tokens:
        return error("tokens_unknown")
    if subject.count < FEWEST_STEPS:
        return not_applicable("too_few_steps", count=subject.count)
    taken = _turns(subject)
    if taken is None:
        return error("contexts_unknown")
    if taken.groups < 2:
        return passed("served_together", sequences=now) if taken.sequences > 1 else passed("one_stream", count=1)
    evidence = (Fact("streams_alternate", {"count": taken.sequences, "groups": taken.groups, "sequences": now}),)
    return _at(subject, now, float(taken.sequences), evidence, 0.85, ("requests_decode_together",))


def _turns(subject: PhaseSubject) -> Turns | None:
    return turns(subject.steps[subject.steps["parent_step"] < 0])


def _at(
    subject: PhaseSubject, before: float, after: float, evidence: tuple[Fact, ...], sure: float, more: tuple[str, ...]
) -> Proposal:
    """The proposal to run so many sequences per step, and what that saves over a step of so many before."""
    model, now = subject.model, subject.model.sequences or 1.0
    larger = with_sequences(model, after / now)
    today = model.step_ns if before == now else with_sequences(model, before / now).step_ns * now / before
    return Proposal(
        touched=subject.is_weight,
        saving_ns=today - larger.step_ns * now / after,
        step_ns=larger.step_ns,
        tokens_per_s=larger.tokens_per_s,
        confidence=sure,
        evidence=(*evidence, Fact("batch_predicted", {"sequences": after, "ns": larger.step_ns})),
        assumptions=("same_context", "weights_read_once", *more),
    )
