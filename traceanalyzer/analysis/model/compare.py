"""Holds a config against what the trace and its recorder say: which ranks divide it, and where they contradict it.

A rank shows its part of the heads and of the vocabulary. Tables are padded, to a multiple of 64 times the ranks at
most in the engines; key heads that repeat, and attention that repeats them for all query heads, are no contradiction.

What could be wrong: pipeline parallel ranks run a part of the layers, which looks like another model here.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceanalyzer.analysis.model.description import RECORDER, TRACE, Description
from traceanalyzer.analysis.model.observed import Observed
from traceanalyzer.catalog.models import ModelConfig

_MOST_RANKS = 64
_PADDED_TO = 512
_MOSTLY, _HARDLY = 0.5, 0.05
WEIGHT_FIELDS = frozenset({
    "layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "experts", "experts_per_token", "tied_embeddings",
    "quantization",
})  # fmt: skip
KV_FIELDS = frozenset({"layers", "hidden", "heads", "kv_heads", "head_dim"})
"""Fields that figures of the weights, and of the cache, stand or fall with."""
SIZES = WEIGHT_FIELDS - {"quantization"} | KV_FIELDS
"""Fields that the shapes of its layers stand or fall with."""


@dataclass(frozen=True)
class Contradiction:
    """A field in which something says otherwise than the config: `other` is that value, `source` who says so."""

    field: str
    config: object
    other: object
    source: str


@dataclass(frozen=True)
class Comparison:
    """`tp`: ranks that divide the config's layers, None unknown."""

    tp: int | None
    contradictions: tuple[Contradiction, ...]


def compare(config: ModelConfig, recorded: Description, seen: Observed) -> Comparison:
    """A config against the recorder's word, which is on the whole model, and what one rank shows."""
    tp = ranks(config, seen)
    found = [*_against_recorder(config, recorded), *_against_trace(config, seen, tp)]
    return Comparison(tp, tuple({one.field: one for one in reversed(found)}.values())[::-1])


def ranks(config: ModelConfig, seen: Observed) -> int | None:
    """How many tensor parallel ranks divide the layers; None where several ranks do not show it."""
    shown = [_parts(config.heads, seen.heads), *(
        _vocabulary_parts(config.vocab, rows) for rows in (seen.head_rows, seen.table_rows)
    )]  # fmt: skip
    known = [parts for parts in shown[: 1 if config.mla else 3] if parts is not None and _possible(parts, seen)]
    if max(known, default=1) > 1:
        return max(known)
    if (seen.world_size or 1) == 1:
        return None if seen.reduces and not known else 1
    if shown[0] == 1 or shown[1] == 1:  # of several ranks, each has all heads or all logits
        return 1
    return seen.world_size if seen.reduces else None


def _possible(parts: int, seen: Observed) -> bool:
    return parts <= min(seen.world_size or _MOST_RANKS, _MOST_RANKS)


def _parts(whole: int, part: int | None) -> int | None:
    return whole // part if part and whole % part == 0 else None


def _vocabulary_parts(vocab: int, rows: int | None) -> int | None:
    """Into how many parts of so many rows a padded table goes; None where it does not."""
    if not rows:
        return None
    parts = max(round(vocab / rows), 1)
    return parts if _fits(vocab, rows, parts) else None


def _fits(vocab: int, rows: int, parts: int) -> bool:
    return vocab <= rows * parts < vocab + max(_PADDED_TO, 64 * parts) + 1


def _against_recorder(config: ModelConfig, recorded: Description) -> list[Contradiction]:
    pairs = {
        "layers": config.layers,
        "hidden": config.hidden,
        "heads": config.heads,
        "experts": config.moe.experts if config.moe else None,
        "experts_per_token": config.moe.experts_per_token if config.moe else None,
        "tied_embeddings": config.tied_embeddings,
        **({} if config.mla else {"kv_heads": config.kv_heads, "head_dim": config.head_dim}),
    }
    found = [
        Contradiction(name, value, said, RECORDER)
        for name, value in pairs.items()
        if (said := getattr(recorded, name)) is not None and said != value
    ]
    if recorded.vocab and not _fits(config.vocab, recorded.vocab, 1):
        found.append(Contradiction("vocab", config.vocab, recorded.vocab, RECORDER))
    if recorded.quantization and not config.weight_bits.quantized:
        found.append(Contradiction("quantization", "none", recorded.quantization, RECORDER))
    return found


def _against_trace(config: ModelConfig, seen: Observed, tp: int | None) -> list[Contradiction]:
    pairs = {"layers": (config.layers, seen.layers), "hidden": (config.hidden, seen.hidden)}
    if config.mla is None:
        pairs["head_dim"] = (config.head_dim or 0, seen.head_dim)
    found = [
        Contradiction(name, value, shown, TRACE)
        for name, (value, shown) in pairs.items()
        if shown is not None and shown != value
    ]
    if rows := next((r for r in (seen.table_rows, seen.head_rows) if r and not _has_rows(config, r, seen)), None):
        found.append(Contradiction("vocab", config.vocab, rows, TRACE))
    if config.mla is None:
        heads = config.heads // (tp or 1)
        parts = _parts(config.heads, seen.heads)
        if seen.heads and (parts is None or not _possible(parts, seen)):
            found.append(Contradiction("heads", config.heads, seen.heads, TRACE))
        elif seen.kv_heads and seen.kv_heads not in (max(config.kv_heads // (tp or 1), 1), heads):
            found.append(Contradiction("kv_heads", config.kv_heads, seen.kv_heads * (tp or 1), TRACE))
    if seen.routes and config.moe is None:
        found.append(Contradiction("experts", "none", "kernels for experts", TRACE))
    if seen.packed_share >= _MOSTLY and not config.weight_bits.quantized:
        found.append(Contradiction("quantization", "none", "kernels for quantised weights", TRACE))
    if multiplies_plain(config, seen):
        found.append(Contradiction("quantization", config.weight_quantization, "kernels for plain weights", TRACE))
    return found


def multiplies_plain(config: ModelConfig, seen: Observed) -> bool:
    """Whether the weights that a config calls quantised are multiplied as plain ones, by the kernels' data types."""
    bits = config.weight_bits
    if not bits.quantized:
        return False
    experts_only = config.moe is not None and bits.experts < bits.attention
    plain, packed = (
        (seen.expert_plain_share, seen.expert_packed_share) if experts_only else (seen.plain_share, seen.packed_share)
    )
    return plain >= _MOSTLY and packed <= _HARDLY


def _has_rows(config: ModelConfig, rows: int, seen: Observed) -> bool:
    parts = _vocabulary_parts(config.vocab, rows)
    return parts is not None and _possible(parts, seen)
