"""The shapes of public language models, and the parameter counts that follow from them.

The configs stand in `models.json` with their sources. What could be wrong: a config can be a different revision than
the one that ran (fields of one name change between versions), and a published total can count what is left out here
(vision towers, multi-token-prediction layers, a tied lm_head stored twice).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from traceanalyzer.catalog import weight_bits
from traceanalyzer.catalog.weight_bits import WeightBits
from traceanalyzer.errors import InputError


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Layers whose queries see at most `size` keys; every `full_every`-th layer sees all, none where that is None."""

    size: int
    full_every: int | None


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention: the cache holds `kv_lora_rank + qk_rope` numbers per token and layer."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope: int
    qk_rope: int
    v_head_dim: int


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts; `ffn` is one expert's width, and each shared expert's."""

    experts: int
    experts_per_token: int
    ffn: int
    shared_experts: int
    first_dense_layers: int
    router_bias: bool
    expert_bias: bool


@dataclass(frozen=True, slots=True)
class Parts:
    """The weights of one rank by what they belong to, in numbers.

    `mlp` are the dense MLPs and the shared experts, `expert` is one routed expert in every layer that has them, `other`
    norms and routers, `embedding` the tables of which rows are taken (none of its own where the output layer is it).
    """

    attention: float
    mlp: float
    expert: float
    other: float
    lm_head: float
    embedding: float


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One public model. Counts are of numbers, not bytes; `head_dim` is None where `mla` describes the attention."""

    id: str
    hf_name: str
    aliases: tuple[str, ...]
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int | None
    ffn: int
    vocab: int
    mlp_gated: bool
    tied_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: str | None
    attention_sinks: bool
    norm: str
    norms_per_layer: int
    parallel_attention_mlp: bool
    learned_positions: int
    sliding_window: SlidingWindow | None
    mla: LatentAttention | None
    moe: Experts | None
    max_position: int
    dtype: str
    weight_quantization: str | None
    published_parameters: int | None
    published_exact: bool
    published_source: str | None
    sources: tuple[str, ...]
    confidence: str
    note: str | None
    weight_bits: WeightBits

    def window(self, layer: int) -> int | None:
        """How many keys a query of this layer (from 0) can see at most; None: all."""
        sliding = self.sliding_window
        if sliding is None or (sliding.full_every is not None and (layer + 1) % sliding.full_every == 0):
            return None
        return sliding.size

    def has_experts(self, layer: int) -> bool:
        """Whether the MLP of this layer (from 0) is a mixture of experts."""
        return self.moe is not None and layer >= self.moe.first_dense_layers

    @property
    def parameters(self) -> int:
        """Every unique weight once (a tied lm_head counts once)."""
        return self._parameters(None)

    @property
    def active_parameters(self) -> int:
        """The weights of `parameters` that one token meets: only the experts it is sent to."""
        return self._parameters(self.moe.experts_per_token if self.moe else None)

    @property
    def decode_parameters(self) -> int:
        """The weights that a decode step of one sequence reads: the active ones without tables of which it takes rows.

        A tied embedding table is read whole by the lm_head.
        """
        tables = self.learned_positions * self.hidden
        return self.active_parameters - tables - (0 if self.tied_embeddings else self.vocab * self.hidden)

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers that the cache holds for one token, over all layers (where no sliding window has passed it)."""
        if self.mla is not None:
            return self.layers * (self.mla.kv_lora_rank + self.mla.qk_rope)
        return self.layers * 2 * self.kv_heads * (self.head_dim or 0)

    def parts(self, ranks: int = 1) -> Parts:
        """What each of so many tensor parallel ranks holds.

        Heads, the width of MLPs and experts, and the vocabulary are divided; key heads down to one. Norms, routers and
        what compresses latent attention are whole on every rank.
        """
        moe, matrices = self.moe, 3 if self.mlp_gated else 2
        expert_layers = sum(self.has_experts(layer) for layer in range(self.layers))
        dense = matrices * self.hidden * self.ffn / ranks + self._mlp_biases(self.ffn / ranks) * self.mlp_bias
        mlp, expert, routers = (self.layers - expert_layers) * dense, 0.0, 0.0
        if moe is not None:
            each = matrices * self.hidden * moe.ffn / ranks
            expert = expert_layers * (each + self._mlp_biases(moe.ffn / ranks) * moe.expert_bias)
            mlp += expert_layers * moe.shared_experts * each
            routers = float(expert_layers * moe.experts * (self.hidden + moe.router_bias))
        norm = (2 if self.norm == "layernorm" else 1) * self.hidden
        positions = self.learned_positions * self.hidden
        table = self.vocab * self.hidden / ranks
        return Parts(
            attention=self.layers * (self._latent_attention(self.mla, ranks) if self.mla else self._attention(ranks)),
            mlp=mlp,
            expert=expert,
            other=(self.layers * self.norms_per_layer + 1) * norm + routers,
            lm_head=table,
            embedding=positions + (0.0 if self.tied_embeddings else table),
        )

    def _mlp_biases(self, width: float) -> float:
        return (2 if self.mlp_gated else 1) * width + self.hidden

    def _parameters(self, experts: int | None) -> int:
        tables = (1 if self.tied_embeddings else 2) * self.vocab + self.learned_positions
        norm = (2 if self.norm == "layernorm" else 1) * self.hidden
        attention = self._latent_attention(self.mla) if self.mla else self._attention()
        layers = self.layers * (int(attention) + self.norms_per_layer * norm)
        layers += sum(self._mlp(layer, experts) for layer in range(self.layers))
        return tables * self.hidden + norm + layers

    def _attention(self, ranks: int = 1) -> float:
        head = self.head_dim or 0
        width, kv_width = self.heads * head / ranks, max(self.kv_heads / ranks, 1) * head
        count = self.hidden * (width + 2 * kv_width) + width * self.hidden
        count += (
            (width + 2 * kv_width) * self.qkv_bias
            + self.hidden * self.o_bias
            + self.heads / ranks * self.attention_sinks
        )
        return count + {"per_head": 2 * head, "full_width": width + kv_width}.get(self.qk_norm or "", 0)

    def _latent_attention(self, mla: LatentAttention, ranks: int = 1) -> float:
        heads = self.heads / ranks
        queries = heads * (mla.qk_nope + mla.qk_rope)
        rank = mla.q_lora_rank
        count = self.hidden * queries if rank is None else self.hidden * rank + rank + rank * queries
        count += self.hidden * (mla.kv_lora_rank + mla.qk_rope) + mla.kv_lora_rank
        count += mla.kv_lora_rank * heads * (mla.qk_nope + mla.v_head_dim)
        return count + heads * mla.v_head_dim * self.hidden

    def _mlp(self, layer: int, experts: int | None) -> int:
        matrices = 3 if self.mlp_gated else 2
        moe = self.moe
        if moe is None or not self.has_experts(layer):
            biases = ((matrices - 1) * self.ffn + self.hidden) * self.mlp_bias
            return matrices * self.hidden * self.ffn + biases
        held = moe.experts if experts is None else experts
        router = moe.experts * (self.hidden + moe.router_bias)
        biases = held * ((matrices - 1) * moe.ffn + self.hidden) * moe.expert_bias
        return router + (held + moe.shared_experts) * matrices * self.hidden * moe.ffn + biases


@cache
def models() -> tuple[ModelConfig, ...]:
    """Every model of the catalogue, in the file's order."""
    text = resources.files(__package__).joinpath("models.json").read_text(encoding="utf-8")
    return tuple(_model(entry) for entry in json.loads(text)["models"])


def is_known(name: str) -> bool:
    """Whether a name is one of the catalogue's."""
    return name.strip().lower() in _names()


def find(name: str) -> ModelConfig:
    """The model with this id, alias or Hugging Face name (case does not matter, nor the owner's part of the name).

    Raises:
        InputError: the catalogue does not hold it; the hint names near matches.
    """
    wanted = name.strip().lower()
    known = _names()
    if wanted in known:
        return known[wanted]
    near = list(dict.fromkeys(known[key].id for key in difflib.get_close_matches(wanted, known, n=6, cutoff=0.5)))[:3]
    others = f"known are, for example, {models()[0].id} and {models()[-1].id}"
    hint = f"did you mean {', '.join(near)}?" if near else others
    raise InputError(f"unknown model {name[:80]!r}", hint)


@cache
def _names() -> Mapping[str, ModelConfig]:
    """Every name a model goes by, in lower case."""
    known: dict[str, ModelConfig] = {}
    for model in models():
        for name in (model.id, *model.aliases, model.hf_name, model.hf_name.rpartition("/")[2]):
            known.setdefault(name.lower(), model)
    return known


def _model(entry: Mapping[str, Any]) -> ModelConfig:
    """One entry of the data file."""
    nested = {
        "sliding_window": SlidingWindow(**entry["sliding_window"]) if entry["sliding_window"] else None,
        "mla": LatentAttention(**entry["mla"]) if entry["mla"] else None,
        "moe": Experts(**entry["moe"]) if entry["moe"] else None,
        "aliases": tuple(entry["aliases"]),
        "sources": tuple(entry["sources"]),
        "weight_bits": weight_bits.of_words(entry["weight_quantization"], entry["dtype"]),
    }
    return ModelConfig(**{**entry, **nested})
