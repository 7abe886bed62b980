"""How far batching carries: the throughput of a decode step with more sequences in it.

With B' instead of B sequences of the same lengths, weights are read once all the same; the FLOPs of every kernel, the
KV cache and the activations grow by B'/B (method: step(B') = W / BW + B' kv / BW + fixed). A matrix product that runs
on the vector units because it has one row runs on tensor cores once it has several. Experts of a mixture are taken to
be read as often as tokens grow, for which ones a token needs is not known: no gain from them. Kernels of unknown work
and communication grow with the batch, beyond their fixed time.

    throughput gain = (B' / B) t(B) / t(B')

Throughput stops growing where matrix products become bound by compute, B_ridge = ridge x bytes per weight / 2, or where
the memory is full.

What could be wrong: larger batches run other kernels; the mean context is taken to stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from traceanalyzer.analysis.forecast.model import Change, StepModel
from traceanalyzer.analysis.kernels import MATRIX_CATEGORIES
from traceanalyzer.analysis.phases import KNOWN_ENOUGH

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
        points: the batch as measured, then powers of two up to the cap, and the cap itself.
        cap: the largest batch worth or able to run.
        cap_reason: "ridge" (matrix products become bound by compute), "kv_memory" (the cache fills the memory),
            "unknown" (neither limit is known; the points stop where the model was not checked).
        efficiency: tokens per second as measured over those of as many single streams at the model's own step of one
            sequence: 1 would be batching for free.
        effective_batch: efficiency x sequences: the number of single streams that the batch is worth.
        streams: how many streams took turns, each with steps of its own; 1 where there was one, None unknown.
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
    experts = model.of_category("moe")
    size, weights = (model.rows[c].to_numpy(np.float64) for c in ("bytes", "weight_bytes"))
    fixed = np.where(matrix & ~experts, np.nan_to_num(weights), 0.0)
    share = np.divide(fixed, size, out=np.zeros_like(size), where=(size > 0) & ~np.isnan(size))
    tensor = model.rows["tensor_compute_ns"].to_numpy(np.float64)
    compute = model.rows["compute_ns"].to_numpy(np.float64)
    faster = matrix & (tensor < compute) & (factor > 1.0)
    growth = share + (1.0 - share) * factor
    memory = model.rows["memory_ns"].to_numpy(np.float64) * growth
    grown = model.with_roofs(np.where(faster, tensor, compute) * factor, memory)
    work = {c: model.rows[c].to_numpy(np.float64) * factor for c in ("flops", "kv_bytes", "tensor_compute_ns")}
    rows = grown.rows.assign(**work, bytes=size * growth)
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


def batching(model: StepModel, room: int | None, turns: int | None = None) -> Batching | None:
    """How far a decode step's batch can grow.

    Args:
        model: the mean decode step.
        room: sequences of the present mean context that fit in memory; None unknown.
        turns: streams that took turns, see `streams`.

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
    efficiency = measured / (now * alone) if measured and alone else None
    assumptions = ["same_context", "weights_read_once"]
    assumptions += ["experts_grow_with_batch"] if model.of_category("moe").any() else []
    assumptions += ["kv_room_unknown"] if room is None else []
    return Batching(
        points=tuple(_points(model, now, cap or MOST_SEQUENCES)),
        cap=cap,
        cap_reason=reason,
        efficiency=efficiency,
        effective_batch=efficiency * now if efficiency is not None else None,
        streams=turns,
        confidence=round(0.8 * model.known_share * (1.0 if room is not None else 0.8), 2),
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
