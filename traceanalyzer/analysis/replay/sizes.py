"""The sizes of one rank's layers, and what a step runs over: what the work of its kernels follows from.

What could be wrong: a config that is not the model's gives another model's sizes; `fill` holds them against what was
recorded and against the card.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from traceanalyzer.analysis.model.compare import KV_FIELDS, WEIGHT_FIELDS
from traceanalyzer.analysis.model.description import Description
from traceanalyzer.catalog.models import ModelConfig
from traceanalyzer.catalog.weight_bits import WeightBits, bits_of, short


@dataclass(frozen=True, slots=True)
class Facts:
    """What a step runs over; None for unknown.

    `rows`: tokens that its kernels compute, padding included. `tokens`: without it. `logits`: rows of the output layer.
    `keys`: lengths of all contexts together. `pairs`: query length x context length, summed over the sequences.
    `squares`: squared query lengths, summed over the sequences with several queries; `exact`: none had to be assumed.
    """

    rows: int
    tokens: int
    sequences: int | None
    logits: int | None
    keys: float | None
    pairs: float | None
    squares: float = 0.0
    exact: bool = True

    @property
    def without_context(self) -> Facts:
        """The same step with any context."""
        return replace(self, keys=None, pairs=None, squares=0.0, exact=True)


@dataclass(frozen=True, slots=True)
class Sizes:
    """One rank's part of a model. `size`, `kv_size`: bytes of an activation, and of a number in the cache.

    `hidden_padded`, `expert_ffn_padded`: the experts' sizes as their kernels multiply them, where they are padded.
    """

    config: ModelConfig
    bits: WeightBits
    dtype: str
    size: float
    kv_size: float
    heads: int
    kv_heads: int
    head_dim: int
    ffn: float
    expert_ffn: float
    shared_ffn: float
    vocab: float
    hidden_padded: int
    expert_ffn_padded: float

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.config.hidden

    @property
    def latent(self) -> int:
        """Numbers that the cache of latent attention holds per token."""
        mla = self.config.mla
        return mla.kv_lora_rank + mla.qk_rope if mla else 0


def sizes_of(model: Description) -> Sizes | None:
    """The sizes that a description gives; None where a field that they depend on is unknown or contradicted."""
    config, bits, ranks = model.config, model.weight_bits, model.tp
    if config is None or bits is None or not ranks or model.contradicted & (WEIGHT_FIELDS | KV_FIELDS):
        return None
    activation, cache, word = bits_of(model.dtype), bits_of(model.kv_dtype), short(model.dtype)
    if not activation or word is None or config.heads % ranks:
        return None
    moe = config.moe
    expert = moe.ffn / ranks if moe else 0.0
    return Sizes(
        config=config,
        bits=bits,
        dtype=word,
        size=activation / 8,
        kv_size=(cache or activation) / 8,
        heads=config.heads // ranks,
        kv_heads=max(config.kv_heads // ranks, 1),
        head_dim=config.head_dim or 0,
        ffn=config.ffn / ranks,
        expert_ffn=expert,
        shared_ffn=expert * moe.shared_experts if moe else 0.0,
        vocab=config.vocab / ranks,
        hidden_padded=config.hidden,
        expert_ffn_padded=expert,
    )
