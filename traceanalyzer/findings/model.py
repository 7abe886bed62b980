"""What one rule answers. Codes and numbers only; the report turns them into sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["found", "passed", "not_applicable", "error"]
"""found: the conditions hold and the change would save time. passed: judged, and not the case. not_applicable: there is
nothing to judge (no decode steps, no attention, one rank). error: there is, but what judging needs was not recorded."""


@dataclass(frozen=True)
class Fact:
    """One piece of evidence, or the reason of a status: a code of the sentence catalogue and the numbers in it."""

    code: str
    values: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Touched:
    """A kernel name that the change would speed up or remove, with its mean time in one step of the phase."""

    name: int  # code in the trace's strings
    ns_per_step: float
    count_per_step: float


@dataclass(frozen=True)
class Finding:
    """The answer of one rule.

    Args:
        id: stable name of the rule.
        status: see `Status`.
        reason: why it passed, does not apply or could not be judged; None where it was found.
        phase: the phase it is about.
        saving_ns: time saved per step at unchanged output, quantised; for a larger batch the time saved on the tokens
            of one of today's steps.
        saving_share: of the mean step's time.
        saving_share_of_span: of the analysed span: what findings are ranked by.
        predicted_step_ns, predicted_tokens_per_s: the step and the phase's throughput with the change.
        confidence: 0..1.
        kernels: the kernels it touches and only those, longest first.
        evidence: what the answer rests on.
        assumptions: codes of what the prediction assumes.
    """

    id: str
    status: Status
    reason: Fact | None = None
    phase: str | None = None
    saving_ns: float | None = None
    saving_share: float | None = None
    saving_share_of_span: float | None = None
    predicted_step_ns: float | None = None
    predicted_tokens_per_s: float | None = None
    confidence: float | None = None
    kernels: tuple[Touched, ...] = ()
    evidence: tuple[Fact, ...] = ()
    assumptions: tuple[str, ...] = ()
