"""What a token costs, input and output apart.

    cost per output token = price per hour x GPUs / 3600 x decode seconds / output tokens
    cost per input token  = the same with the prefill's seconds and tokens

(method: cost per 1k tokens). Each phase carries its own idle time; idle that belongs to no phase is shared by time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.analysis.phases import PhaseSummary


@dataclass(frozen=True)
class Price:
    """What one GPU costs per hour."""

    per_gpu_hour: float
    currency: str


@dataclass(frozen=True)
class Cost:
    """Price of a million tokens, in the price's currency; None for unknown."""

    price: Price
    gpus: int
    per_1m_input: float | None
    per_1m_output: float | None
    idle_share: float | None
    assumptions: tuple[str, ...]


def of(phases: Sequence[PhaseSummary], gpus: int, price: Price) -> Cost:
    """The cost of the slowest device's phases, times the number of devices that run in step with it."""
    per_second = price.per_gpu_hour * gpus / 3600
    total = sum(phase.duration_ns for phase in phases)
    named = [phase for phase in phases if phase.phase in ("prefill", "decode", "mixed")]
    in_named = sum(phase.duration_ns for phase in named)
    stretch = total / in_named if in_named else 1.0

    def per_million(name: str, tokens: int | None) -> float | None:
        phase = next((p for p in named if p.phase == name), None)
        if phase is None or not tokens:
            return None
        return per_second * phase.duration_ns * stretch / 1e9 / tokens * 1e6

    tokens = {phase.phase: phase for phase in named}
    prefill, decode = tokens.get("prefill"), tokens.get("decode")
    mixed = ("mixed_steps_left_out",) if "mixed" in tokens else ()
    return Cost(
        price=price,
        gpus=gpus,
        per_1m_input=per_million("prefill", prefill.prefill_tokens if prefill else None),
        per_1m_output=per_million("decode", decode.decode_tokens if decode else None),
        idle_share=sum(phase.idle_ns for phase in phases) / total if total else None,
        assumptions=("idle_shared_by_time", "all_gpus_priced", "window_is_typical", *mixed),
    )
