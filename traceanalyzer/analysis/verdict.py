"""The answer in a form that a sentence can be made of: which phase matters, what binds it, how sure that is.

The bound is where most of a phase's time goes. For decode there is a second opinion: what would save most, twice the
compute, twice the bandwidth or free launches. Where one of these stands out and is not the bound, the bound stays, for
it is what was measured, and is less sure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.analysis.forecast import Sensitivity
from traceanalyzer.analysis.phases import PhaseSummary

HARDLY_ANY = 0.05
"""Share of a phase below which waiting for the host is not worth attacking."""

CLOSE_TO_THE_LIMIT = 0.5
"""Share of the compute peak above which more work per step gives no more throughput."""

SECOND_OPINION_DOUBT = 0.7
"""What is left of the confidence in a bound that is not what the sensitivities say."""


@dataclass(frozen=True)
class VerdictFacts:
    """The phase that took most of the time spent on tokens (None where no phase is known) and its bound.

    `ruled_out` holds codes for what would not help that phase.
    """

    phase: PhaseSummary | None
    bound: str
    confidence: float | None
    ruled_out: tuple[str, ...] = ()


def decide(phases: Sequence[PhaseSummary], decode: Sensitivity | None = None) -> VerdictFacts:
    """Pick the phase with most time among those that produce or read tokens; without one, the bound is unknown.

    Time outside every known phase does not vote: it says nothing about prefill or decode. `decode` is what changes
    would save of a decode step, None unknown.
    """
    named = [phase for phase in phases if phase.phase in ("prefill", "decode", "mixed", "encoder")]
    if not named:
        return VerdictFacts(None, "unknown", None)
    longest = max(named, key=lambda phase: phase.duration_ns)
    bound, sure = longest.bound.name, longest.bound.confidence
    second = decode.largest if decode and longest.phase == "decode" else None
    if second is not None and bound in ("memory", "compute", "host") and second != bound:
        sure = round(sure * SECOND_OPINION_DOUBT, 2)
    return VerdictFacts(longest, bound, sure or None, _ruled_out(longest))


def _ruled_out(phase: PhaseSummary) -> tuple[str, ...]:
    """What the phase's own figures exclude: a resource it uses to under a third, or waiting that is hardly there.

    Only for a bound that the work of the kernels shows; where the work is unknown, nothing is ruled out.
    """
    idle = phase.idle_share
    if phase.bound.by_tokens or phase.bound.name in ("unknown", "mixed") or idle is None:
        return ()
    checks = {
        "more_compute": phase.bound.name != "compute" and _below_a_third(phase.compute_share),
        "more_bandwidth": phase.bound.name != "memory" and _below_a_third(phase.bandwidth_share),
        "larger_batch": phase.bound.name == "compute" and (phase.compute_share or 0.0) >= CLOSE_TO_THE_LIMIT,
        "fewer_launches": phase.bound.name != "host" and idle < HARDLY_ANY,
    }
    return tuple(code for code, holds in checks.items() if holds)


def _below_a_third(share: float | None) -> bool:
    return share is not None and share < 1 / 3
