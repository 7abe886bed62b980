"""Bytes and FLOPs that follow from a description's config, on one rank.

    read by a step      attention + MLPs + output layer + norms and routers, each at its stored bits, and of the experts
                        E (1 - (1 - k / E)^n) for n tokens (all drawn evenly), between k and min(E, n k)
    held                the same with every expert, and the input embedding where it is a table of its own
    cache per token     2 x layers x key heads x head size; compressed: layers x (rank + rotary part)
    cache read          the same over the context, of which a layer with a window reads no more than the window
    FLOPs per token     2 for each weight that the token meets

Nothing is answered where a field that it depends on is contradicted, or where it is not known how ranks divide it. What
could be wrong: sequences are taken to be equally long where a layer has a window; expert parallel ranks hold whole
experts, and then the range of one rank is wider than that of its part of every expert.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceanalyzer.analysis.model.compare import KV_FIELDS, SIZES, WEIGHT_FIELDS
from traceanalyzer.analysis.model.description import Description
from traceanalyzer.catalog.models import ModelConfig, Parts
from traceanalyzer.catalog.weight_bits import WeightBits, bits_of


@dataclass(frozen=True)
class Read:
    """Weight bytes that a step reads: at least, with experts drawn evenly, at most; and its FLOPs on them."""

    least: float
    bytes: float
    most: float
    flops: float


@dataclass(frozen=True)
class _Stored:
    config: ModelConfig
    parts: Parts
    bits: WeightBits


def config_of(model: Description) -> ModelConfig | None:
    """The config, where nothing contradicts one of its sizes."""
    return None if model.contradicted & SIZES else model.config


def held(model: Description) -> float | None:
    """Bytes of all weights on one rank; the embedding is divided as the output layer is."""
    stored = _stored(model)
    if stored is None:
        return None
    experts = stored.config.moe.experts if stored.config.moe else 0
    return _dense(stored) + (stored.parts.embedding * stored.bits.embedding / 8) + experts * _expert(stored)


def read(model: Description, tokens: float | None) -> Read | None:
    """What a step of so many tokens reads and computes."""
    stored = _stored(model)
    if stored is None or not tokens or tokens < 1:
        return None
    dense, each, moe = _dense(stored), _expert(stored), stored.config.moe
    parts = stored.parts
    met = parts.attention + parts.mlp + parts.lm_head + (moe.experts_per_token * parts.expert if moe else 0.0)
    flops = 2.0 * tokens * met
    if moe is None:
        return Read(dense, dense, dense, flops)
    least, middle, most = active_experts(moe.experts, moe.experts_per_token, tokens)
    return Read(dense + least * each, dense + middle * each, dense + most * each, flops)


def active_experts(experts: int, chosen: int, tokens: float) -> tuple[float, float, float]:
    """Experts that a step of so many tokens reads: those of one token, of an even draw, and all it can take."""
    most = min(float(experts), tokens * chosen)
    even = experts * (1.0 - (1.0 - chosen / experts) ** tokens)
    return float(chosen), min(max(even, chosen), most), most


def kv_per_token(model: Description) -> float | None:
    """Bytes that one token takes in the caches of all layers of one rank."""
    config, size = _cached(model)
    return None if config is None else config.layers * _per_layer(config, model.tp or 1) * size


def kv_read(model: Description, context_sum: float | None, sequences: float | None) -> float | None:
    """Bytes of cache that a decode step reads; None where a layer has a window and the sequences are not known."""
    config, size = _cached(model)
    if config is None or not context_sum:
        return None
    windows = [config.window(layer) for layer in range(config.layers)]
    if not sequences and any(windows):
        return None
    mean = context_sum / (sequences or 1.0)
    seen = sum(mean if window is None else min(mean, window) for window in windows)
    return seen * (sequences or 1.0) * _per_layer(config, model.tp or 1) * size


def flops_per_kv_byte(model: Description) -> float | None:
    """FLOPs of a decode step's attention for each byte of cache that it reads."""
    config, size = _cached(model)
    if config is None:
        return None
    heads, mla = config.heads / (model.tp or 1), config.mla
    if mla is not None:
        return 2.0 * heads * (2 * mla.kv_lora_rank + mla.qk_rope) / ((mla.kv_lora_rank + mla.qk_rope) * size)
    return 2.0 * heads / max(config.kv_heads / (model.tp or 1), 1) / size


def _stored(model: Description) -> _Stored | None:
    if model.config is None or model.weight_bits is None or model.tp is None or model.contradicted & WEIGHT_FIELDS:
        return None
    return _Stored(model.config, model.config.parts(model.tp), model.weight_bits)


def _dense(stored: _Stored) -> float:
    """Bytes of what every step reads whole."""
    parts, bits = stored.parts, stored.bits
    layers = parts.attention * bits.attention + parts.mlp * bits.mlp + parts.other * bits.other
    return (layers + parts.lm_head * bits.lm_head) / 8


def _expert(stored: _Stored) -> float:
    return stored.parts.expert * stored.bits.experts / 8


def _cached(model: Description) -> tuple[ModelConfig | None, float]:
    """The config and the bytes of one number of its cache."""
    bits = bits_of(model.kv_dtype) or bits_of(model.dtype)
    if model.config is None or model.tp is None or not bits or model.contradicted & KV_FIELDS:
        return None, 0.0
    return model.config, bits / 8


def _per_layer(config: ModelConfig, ranks: int) -> float:
    """Numbers that one token takes in the cache of one layer."""
    if config.mla is not None:
        return config.mla.kv_lora_rank + config.mla.qk_rope
    return 2 * max(config.kv_heads / ranks, 1) * (config.head_dim or 0)
