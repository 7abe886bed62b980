"""What a token costs, input and output apart.

    cost per output token = price per hour x GPUs / 3600 x decode seconds / output tokens
    cost per input token  = the same with the prefill's seconds and tokens

(method: cost per 1k tokens). Seconds are recorded ones. Each phase carries its own idle time; time that belongs to no
phase is shared out by time. Every GPU of the run is paid for, recorded or not.

What could be wrong: how ranks divide the work is in no trace. They are taken to work on the same tokens (tensor
parallel); with data parallelism over n ranks a token costs an n-th, and the assumption says so.
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
    """The cost of the slowest device's phases, times the number of GPUs of the run."""
    per_ns = price.per_gpu_hour * gpus / 3600 / 1e9
    total = sum(phase.observed_ns for phase in phases)
    named = {phase.phase: phase for phase in phases if phase.phase in ("prefill", "decode", "mixed")}
    in_named = sum(phase.observed_ns for phase in named.values())
    stretch = total / in_named if in_named else 1.0

    def per_million(phase: PhaseSummary | None, tokens: int | None) -> float | None:
        return per_ns * phase.observed_ns * stretch / tokens * 1e6 if phase and tokens else None

    prefill, decode = named.get("prefill"), named.get("decode")
    return Cost(
        price=price,
        gpus=gpus,
        per_1m_input=per_million(prefill, prefill.prefill_tokens if prefill else None),
        per_1m_output=per_million(decode, decode.output_tokens if decode else None),
        idle_share=sum(phase.idle_ns for phase in phases) / total if total else None,
        assumptions=(
            "idle_shared_by_time",
            "all_gpus_priced",
            "window_is_typical",
            *(("tensor_parallel_assumed",) if gpus > 1 else ()),
            *(("mixed_steps_left_out",) if "mixed" in named else ()),
        ),
    )
