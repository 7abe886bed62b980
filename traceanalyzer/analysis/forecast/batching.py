"""How far batching carries: the throughput of a decode step with more sequences in it.

With B' instead of B sequences of the same lengths, weights are read once all the same; the FLOPs of every kernel, the
KV cache and the activations grow by B'/B (method: step(B') = W / BW + B' kv / BW + fixed). A matrix product that runs
on the vector units because it has one row runs on tensor cores once it has several. Kernels of unknown work and
communication grow with the batch, beyond their fixed time.

Experts of a mixture: evenly drawn, T tokens that each take a share p of the experts read 1 - (1 - p)^T of them
(method: MoE). p is what makes that the bytes of the present step against those of one token. Where these are not
known, experts are taken to be read as often as tokens grow: no gain from them.

    throughput gain = (B' / B) t(B) / t(B')

Throughput stops growing where matrix products become bound by compute, B_ridge = ridge x bytes per weight / 2, or where
the memory is full.

What could be wrong: larger batches run other kernels; the mean context is taken to stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from traceanalyzer.analysis.forecast.model import Change, Floats, StepModel
from traceanalyzer.analysis.kernels import MATRIX_CATEGORIES
from traceanalyzer.analysis.phases import KNOWN_ENOUGH
from traceanalyzer.analysis.turns import Turns

_SURE = 0.8
"""Confidence in a prediction from a step of fully known work."""

MOST_SEQUENCES = 4096
"""No larger batch is tried where neither the ridge nor the memory is known to cap it."""


@dataclass(frozen=True)
class BatchPoint:
    """A decode step with so many sequences; time in nanoseconds."""

    sequences: int
    step_ns: float
    tokens_per_s: float


@dataclass(frozen=True)
class Batching:
    """How decode would go on with more sequences per step; None for unknown.

    Args:
        points: predictions, from one sequence up: powers of two below the cap, the cap itself, and the whole number
            next to the measured batch, which may be larger. None of them is the measurement.
        cap: the largest batch worth or able to run.
        cap_reason: "ridge" (matrix products become bound by compute), "kv_memory" (the cache fills the memory),
            "unknown" (neither limit is known; the points stop where the model was not checked).
        efficiency: tokens per second as measured over those of as many single streams at the model's own step of one
            sequence, those that took turns included: 1 would be batching for free.
        effective_batch: efficiency x these sequences: the number of single streams that they are worth together.
        streams: how many sequences took turns, in steps that each serve a part of them; 1 where none did, None unknown.
    """

    points: tuple[BatchPoint, ...]
    cap: int | None
    cap_reason: str
    efficiency: float | None
    effective_batch: float | None
    streams: int | None
    confidence: float
    assumptions: tuple[str, ...]


def with_sequences(model: StepModel, factor: float) -> StepModel:
    """The step with `factor` times as many sequences of the same lengths in it."""
    matrix = model.of_category(*MATRIX_CATEGORIES)
    size, weights = (model.rows[c].to_numpy(np.float64) for c in ("bytes", "weight_bytes"))
    share = np.divide(weights, size, out=np.zeros_like(size), where=matrix & (size > 0) & ~np.isnan(weights))
    weights_grow = _weights_growth(model, factor)
    tensor = model.rows["tensor_compute_ns"].to_numpy(np.float64)
    compute = model.rows["compute_ns"].to_numpy(np.float64)
    faster = matrix & (tensor < compute) & (factor > 1.0)
    growth = share * weights_grow + (1.0 - share) * factor
    memory = model.rows["memory_ns"].to_numpy(np.float64) * growth
    grown = model.with_roofs(np.where(faster, tensor, compute) * factor, memory)
    work = {c: model.rows[c].to_numpy(np.float64) * factor for c in ("flops", "kv_bytes", "tensor_compute_ns")}
    rows = grown.rows.assign(**work, bytes=size * growth, weight_bytes=weights * weights_grow)
    changed = replace(
        grown,
        rows=rows,
        tokens=_times(model.tokens, factor),
        sequences=_times(model.sequences, factor),
        context_sum=_times(model.context_sum, factor),
        output_tokens=_times(model.output_tokens, factor),
    )
    if factor <= 1.0:
        return changed
    unknown = np.isnan(compute) | np.isnan(memory)
    grows = unknown & ~model.of_category("memcpy", "memset")
    fixed_ns = model.rows["fixed_ns"].to_numpy(np.float64)
    return changed.apply(Change(np.where(grows, fixed_ns + (model.durations - fixed_ns) * factor, changed.durations)))


def _weights_growth(model: StepModel, factor: float) -> Floats:
    """How much more weights each row reads with `factor` times the tokens: none, but for experts."""
    experts, taken, tokens = model.of_category("moe"), _taken(model), model.tokens or np.nan
    known = experts & ~np.isnan(taken)
    share = np.where(known, taken, 0.5)
    drawn = (1.0 - (1.0 - share) ** (tokens * factor)) / (1.0 - (1.0 - share) ** tokens)
    growth: Floats = np.where(known, drawn, np.where(experts, factor, 1.0))
    return growth


def _taken(model: StepModel) -> Floats:
    """The share of the experts that one token takes, per row; NaN where there are none or it is not known."""
    read, least = (model.rows[c].to_numpy(np.float64) for c in ("weight_bytes", "weight_bytes_min"))
    taken = np.full(len(read), np.nan)
    for row in np.flatnonzero(model.of_category("moe") & (least > 0)):
        found = _share_taken(float(read[row] / least[row]), model.tokens or 0.0)
        taken[row] = np.nan if found is None else found
    return taken


def _share_taken(ratio: float, tokens: float) -> float | None:
    """The share p of the experts that one token takes, from (1 - (1 - p)^T) / p = ratio; None where no p gives it.

    The left side falls from T to 1 as p goes from 0 to 1, so halving the interval finds it. One token tells nothing.
    """
    if not 1.0 <= ratio < tokens * (1.0 - 1e-9):
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (1.0 - (1.0 - middle) ** tokens) / middle > ratio else (low, middle)
    return high


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def ridge_batch(model: StepModel) -> float | None:
    """Tokens per step at which the step's weight products become bound by compute: ridge x bytes per weight / 2.

    Each product's own peak counts, so that weights and math in 8 bits meet the ridge of 8 bits.
    """
    rows = model.of_category(*MATRIX_CATEGORIES) & ~model.of_category("moe")
    compute, tensor, memory, size, weights = (
        model.rows[c].to_numpy(np.float64)
        for c in ("compute_ns", "tensor_compute_ns", "memory_ns", "bytes", "weight_bytes")
    )
    math = np.fmin(compute, tensor)
    known = rows & (math > 0) & (weights > 0) & (size > 0) & ~np.isnan(memory)
    if not model.tokens or not known.any():
        return None
    return model.tokens * float((memory * weights / size)[known].sum() / math[known].sum())


def batching(model: StepModel, room: int | None, turns: Turns | None = None) -> Batching | None:
    """How far a decode step's batch can grow.

    Args:
        model: the mean decode step.
        room: sequences of the present mean context that fit in memory; None unknown.
        turns: which groups of sequences took turns, see `analysis.turns`.

    Returns:
        None where the sequences, or the work of most of the kernel time, are not known.
    """
    if model.phase != "decode" or not model.sequences or not model.output_tokens or model.known_share < KNOWN_ENOUGH:
        return None
    now = model.sequences
    at_ridge = ridge_batch(model)
    tokens_each = (model.tokens or now) / now
    limits = {"ridge": None if at_ridge is None else int(at_ridge / tokens_each), "kv_memory": room}
    known = {reason: max(limit, 1) for reason, limit in limits.items() if limit is not None}
    reason = min(known, key=lambda name: known[name]) if known else "unknown"
    cap = known.get(reason)
    alone, measured = with_sequences(model, 1.0 / now).tokens_per_s, model.tokens_per_s
    in_turns = turns if turns is not None and turns.groups > 1 else None
    there = float(in_turns.sequences) if in_turns else now
    efficiency = measured / (there * alone) if measured and alone else None
    experts = model.of_category("moe") & ~model.is_helper
    drawn = not np.isnan(_taken(model)[experts]).any()
    assumptions = ["same_context", "weights_read_once"]
    if experts.any():
        assumptions += ["experts_drawn_evenly" if drawn else "experts_grow_with_batch"]
    assumptions += ["work_from_model"] if model.described else []
    assumptions += ["kv_room_unknown"] if room is None else []
    return Batching(
        points=tuple(_points(model, now, cap or MOST_SEQUENCES)),
        cap=cap,
        cap_reason=reason,
        efficiency=efficiency,
        effective_batch=efficiency * there if efficiency is not None else None,
        streams=None if turns is None else in_turns.sequences if in_turns else 1,
        confidence=round(
            _SURE * model.known_share * (0.8 if room is None else 1.0) * (0.8 if model.described else 1.0), 2
        ),
        assumptions=tuple(assumptions),
    )


def _points(model: StepModel, now: float, cap: int) -> list[BatchPoint]:
    counts = sorted({*(1 << n for n in range(MOST_SEQUENCES.bit_length()) if 1 << n < cap), cap, round(now)})
    points = []
    for count in counts:
        changed = with_sequences(model, count / now)
        rate = changed.tokens_per_s
        if rate is not None:
            points.append(BatchPoint(count, changed.step_ns, rate))
    return points
