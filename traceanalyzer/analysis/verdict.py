"""The answer in a form that a sentence can be made of: which phase matters, what binds it, how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.analysis.phases import PhaseSummary


@dataclass(frozen=True)
class VerdictFacts:
    """The phase that took most of the time spent on tokens (None where no phase is known) and its bound."""

    phase: PhaseSummary | None
    bound: str
    confidence: float | None


def decide(phases: Sequence[PhaseSummary]) -> VerdictFacts:
    """Pick the phase with most time among those that produce or read tokens; without one, the bound is unknown.

    Time outside every known phase does not vote: it says nothing about prefill or decode.
    """
    named = [phase for phase in phases if phase.phase in ("prefill", "decode", "mixed", "encoder")]
    if not named:
        return VerdictFacts(None, "unknown", None)
    longest = max(named, key=lambda phase: phase.duration_ns)
    return VerdictFacts(longest, longest.bound.name, longest.bound.confidence or None)
