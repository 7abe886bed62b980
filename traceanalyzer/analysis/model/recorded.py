"""What the recorder's block says of a model, as fields of a `Description`.

What could be wrong: the block is text from somebody else's machine; a field of another type than the schema's is left
out, and so is a number that is not above zero.
"""

from __future__ import annotations

from types import MappingProxyType

from traceanalyzer.analysis.model.description import RECORDER, Description
from traceanalyzer.trace.collector import Section, number

_WORDS = ("name", "architecture", "fingerprint", "dtype", "kv_dtype", "quantization")
_COUNTS = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts", "experts_per_token", "expert_ffn",
    "shared_experts", "kv_lora_rank", "parameters",
)  # fmt: skip
_AMOUNTS = ("weight_bytes", "kv_bytes_per_token", "kv_reserved_bytes", "kv_used_bytes")


def fields_of(facts: Section) -> dict[str, object]:
    """The known fields by name."""
    words = {name: value for name in _WORDS if isinstance(value := facts.get(name), str) and value}
    counts = {name: value for name in _COUNTS if _is_count(value := facts.get(name))}
    amounts = {name: value for name in _AMOUNTS if (value := number(facts, name)) is not None and value > 0}
    tied = facts.get("tied_embeddings")
    return {**words, **counts, **amounts, **({"tied_embeddings": tied} if isinstance(tied, bool) else {})}


def of_recorder(facts: Section, world_size: int | None = None) -> Description:
    """The description that a recorder's block alone makes, on one of so many ranks."""
    known = fields_of(facts)
    sources = MappingProxyType(dict.fromkeys(known, RECORDER))
    return Description(**known, tp=1 if (world_size or 1) == 1 else None, sources=sources)  # type: ignore[arg-type]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
