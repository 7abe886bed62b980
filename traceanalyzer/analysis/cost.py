"""What a token costs, input and output apart.

    cost per output token = price per hour x GPUs / 3600 x decode seconds / output tokens
    cost per input token  = the same with the prefill's seconds and tokens

(method: cost per 1k tokens). Seconds are recorded ones. Each phase carries its own idle time; time that belongs to no
phase is shared out by time. Mixed steps give either side its share of their time (`mixed`) and their tokens; where
these are not known, they are left out. Every GPU of the run is paid for, recorded or not.

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
    both = _divided(named.get("mixed"))

    def per_million(name: str) -> float | None:
        of_phase = _time_and_tokens(named.get(name))
        parts = [part for part in (of_phase, both[name] if both else None) if part is not None]
        tokens = [count for _, count in parts if count]
        if not tokens or len(tokens) < len(parts):
            return None
        return per_ns * stretch * sum(ns for ns, _ in parts) / sum(tokens) * 1e6

    return Cost(
        price=price,
        gpus=gpus,
        per_1m_input=per_million("prefill"),
        per_1m_output=per_million("decode"),
        idle_share=sum(phase.idle_ns for phase in phases) / total if total else None,
        assumptions=(
            "idle_shared_by_time",
            "all_gpus_priced",
            "window_is_typical",
            *(("tensor_parallel_assumed",) if gpus > 1 else ()),
            *(_said(named["mixed"]) if "mixed" in named else ()),
        ),
    )


def _time_and_tokens(phase: PhaseSummary | None) -> tuple[float, int | None] | None:
    """Recorded time and the tokens that it is paid for, of a prefill or decode phase."""
    if phase is None:
        return None
    return phase.observed_ns, phase.prefill_tokens if phase.phase == "prefill" else phase.output_tokens


def _divided(phase: PhaseSummary | None) -> dict[str, tuple[float, int]] | None:
    """Time and tokens of the mixed steps for either side; None where either is unknown."""
    if phase is None or phase.split is None or not phase.one_token_each:
        return None
    if not phase.prefill_tokens or not phase.decode_tokens:
        return None
    read = phase.split.prefill_share * phase.observed_ns
    return {"prefill": (read, phase.prefill_tokens), "decode": (phase.observed_ns - read, phase.decode_tokens)}


def _said(phase: PhaseSummary) -> tuple[str, ...]:
    """Codes of the ways in which the time of the mixed steps was divided."""
    assumptions: tuple[str, ...] = ("mixed_steps_left_out",)
    if phase.split is not None and _divided(phase) is not None:
        assumptions = (
            "mixed_by_decode_steps", "mixed_by_decode_steps_any_context", "mixed_by_attention_apart",
            "mixed_by_roofline",
        )  # fmt: skip
        return tuple(code for code in assumptions if code.removeprefix("mixed_by_") in phase.split.ways)
    return assumptions
