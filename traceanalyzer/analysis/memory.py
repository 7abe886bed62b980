"""How the memory of one device is used, and how many sequences fit in it.

    sequences that fit = floor((USABLE x total - weights) / (cache per token x mean context))

(method: B_kv), with the present mean context. A pool that is set aside says nothing about it: some engines fill the
memory with it, others make it as large as the present batch needs. Activations, workspaces and fragmentation are taken
to fit in what is not usable. Free memory is what neither the weights nor the cache set aside (or, where that is not
known, used) take.

What could be wrong: weights that only a step's reads tell are a lower bound, so that more seems to fit than does.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceanalyzer.analysis import held
from traceanalyzer.analysis.forecast import StepModel
from traceanalyzer.analysis.timeline import Timeline

USABLE = 0.9
"""Share of the device's memory that engines plan with (vLLM's gpu_memory_utilization by default)."""
_WEAKEST_LAST = ("recorder", "shapes", "model-config")


@dataclass(frozen=True)
class Memory:
    """Bytes on one device; None for unknown. `source` is the weakest one that a figure stands on."""

    total_bytes: int | None
    weight_bytes: float | None
    kv_bytes_per_token: float | None
    kv_reserved_bytes: float | None
    kv_used_bytes: float | None
    free_bytes: float | None
    max_sequences: int | None
    source: str
    confidence: float
    assumptions: tuple[str, ...]


def use(timeline: Timeline, weights: held.Weights | None, decode: StepModel | None) -> Memory | None:
    """The memory of a device, or None where neither weights nor cache are known.

    Args:
        timeline: of the device.
        weights: what it holds.
        decode: its mean decode step, which reads the cache of its sequences.
    """
    context_sum, sequences = (decode.context_sum, decode.sequences) if decode else (None, None)
    read = decode.kv_bytes if decode and not decode.described else None
    per_token = read / context_sum if read and context_sum else None
    cache = held.kv_cache(timeline, per_token)
    if weights is None and cache is None:
        return None
    total = timeline.device.memory_bytes
    used = cache.bytes_per_token * context_sum if cache and context_sum else None
    room, assumptions = None, [*(weights.assumptions if weights else ()), *(cache.assumptions if cache else ())]
    each = used / sequences if used and sequences else None
    if each and total and weights:
        room = max(int((USABLE * total - weights.held) / each), 0)
        assumptions += ["usable_memory", "same_context"]
    taken = cache and (cache.reserved_bytes or used)
    free = total - weights.held - taken if total and weights and taken else None
    sources = [part.source for part in (weights, cache) if part]
    certain = 0.9 if all(source == "recorder" for source in sources) else 0.6
    return Memory(
        total_bytes=total,
        weight_bytes=weights.held if weights else None,
        kv_bytes_per_token=cache.bytes_per_token if cache else None,
        kv_reserved_bytes=cache.reserved_bytes if cache else None,
        kv_used_bytes=timeline.model.kv_used_bytes or used,
        free_bytes=max(free, 0.0) if free is not None else None,
        max_sequences=room,
        source=max(sources, key=_WEAKEST_LAST.index),
        confidence=certain if len(sources) == 2 else certain / 2,
        assumptions=tuple(dict.fromkeys(assumptions)),
    )
