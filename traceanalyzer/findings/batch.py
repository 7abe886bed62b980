"""More sequences per decode step: because each weight is read once for all of them, or because requests take turns.

A larger batch saves time per token, not per step: the saving is the time of today's tokens at the new rate. It needs
requests to be there; where the trace shows several that take turns, it says so.
"""

from __future__ import annotations

import numpy as np

from traceanalyzer.analysis.forecast import ridge_batch, streams, with_sequences
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
    room = subject.room
    if room is not None and room < now + 1:
        return passed("memory_full", sequences=now, room=room)
    target = min(at_ridge, now * MOST_TIMES, np.inf if room is None else float(room))
    evidence = (
        Fact("below_ridge", {"sequences": now, "ridge": at_ridge}),
        Fact("room_for", {"sequences": room}) if room is not None else Fact("room_unknown"),
    )
    return _at(subject, float(np.floor(target)), evidence, 0.6 if room is not None else 0.4, ("requests_wait",))


def in_turns(subject: PhaseSubject) -> Answer:
    """Do several requests take turns, one step each?"""
    now = subject.model.sequences
    if not now or not subject.model.output_tokens:
        return error("tokens_unknown")
    if now > 1.5:
        return passed("served_together", sequences=now)
    turns = streams(subject.steps[subject.steps["parent_step"] < 0])
    if turns is None:
        unknown = subject.steps["context_sum"].isna().any()
        return error("contexts_unknown") if unknown else not_applicable("too_few_steps", count=subject.count)
    if turns < 2:
        return passed("one_stream", count=turns)
    evidence = (Fact("streams_alternate", {"count": turns, "sequences": now}),)
    return _at(subject, now * turns, evidence, 0.85, ("requests_decode_together",))


def _at(subject: PhaseSubject, sequences: float, evidence: tuple[Fact, ...], sure: float, more: tuple[str, ...]) -> (
    Proposal
):  # fmt: skip
    """The proposal to run so many sequences per step."""
    model, factor = subject.model, sequences / (subject.model.sequences or 1.0)
    after = with_sequences(model, factor)
    return Proposal(
        touched=subject.is_weight,
        saving_ns=model.step_ns - after.step_ns / factor,
        step_ns=after.step_ns,
        tokens_per_s=after.tokens_per_s,
        confidence=sure,
        evidence=(*evidence, Fact("batch_predicted", {"sequences": sequences, "ns": after.step_ns})),
        assumptions=("same_context", "weights_read_once", *more),
    )
