"""What a rule is, and the answers it can give; `evaluate` turns answers into findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from traceanalyzer.findings.model import Fact, Status
from traceanalyzer.findings.subject import Bools, Floats, PhaseSubject


@dataclass(frozen=True)
class Refusal:
    """Nothing to change, nothing to judge, or no data to judge by; see `model.Status`."""

    status: Status
    reason: Fact


@dataclass(frozen=True)
class Proposal:
    """A change that would save time.

    Args:
        touched: the rows of the subject that the change speeds up or removes.
        saving_ns: per step at unchanged output.
        step_ns, tokens_per_s: the step and the phase's throughput with the change; None unknown.
        confidence: 0..1, before what the recording leaves in doubt.
        evidence, assumptions: see `model.Finding`.
    """

    touched: Bools
    saving_ns: float
    step_ns: float
    tokens_per_s: float | None
    confidence: float
    evidence: tuple[Fact, ...]
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Remark:
    """Something found about the recording, which no change of the run would save."""

    evidence: tuple[Fact, ...]
    confidence: float


Answer = Refusal | Proposal | Remark
Need = Callable[[PhaseSubject], Refusal | None]
"""What a rule needs: None where it is there, else why the rule cannot judge."""


BOUNDS = ("memory", "compute", "host", "communication")


@dataclass(frozen=True)
class Rule:
    """One question about one phase. `judge` is only asked where every need is met.

    `relieves` names the bounds that the change acts on: what binds a phase is attacked first.
    """

    id: str
    phase: str
    needs: tuple[Need, ...]
    judge: Callable[[PhaseSubject], Answer]
    relieves: tuple[str, ...] = BOUNDS


def passed(code: str, **values: float | int | str) -> Refusal:
    """Judged, and not the case."""
    return Refusal("passed", Fact(code, values))


def not_applicable(code: str, **values: float | int | str) -> Refusal:
    """There is nothing to judge."""
    return Refusal("not_applicable", Fact(code, values))


def error(code: str, **values: float | int | str) -> Refusal:
    """There is something to judge, but what judging needs was not recorded."""
    return Refusal("error", Fact(code, values))


def proposal(
    subject: PhaseSubject,
    duration_ns: Floats,
    touched: Bools,
    evidence: tuple[Fact, ...],
    confidence: float,
    assumptions: tuple[str, ...] = (),
    gone: Bools | None = None,
) -> Proposal:
    """A change that gives kernels other times.

    Args:
        duration_ns: the new time of every row of the subject; rows that are not touched keep theirs.
        gone: rows that are not even launched any more.
    """
    old = subject.duration
    ratio = np.divide(duration_ns, old, out=np.ones_like(old), where=touched & (old > 0) & ~np.isnan(duration_ns))
    removed = np.zeros(len(old), np.bool_) if gone is None else gone
    saving = subject.replay.saving(ratio, removed)
    return saved(subject, saving, touched, evidence, confidence, assumptions)


def saved(
    subject: PhaseSubject,
    saving_ns: float,
    touched: Bools,
    evidence: tuple[Fact, ...],
    confidence: float,
    assumptions: tuple[str, ...] = (),
) -> Proposal:
    """A change that takes so much off the step."""
    step = subject.step_ns - saving_ns
    tokens = subject.model.output_tokens
    rate = tokens / step * 1e9 if tokens and step > 0 else None
    return Proposal(touched, saving_ns, step, rate, confidence, evidence, assumptions)
