"""One model as its sources describe it.

What could be wrong: fields of different sources stand side by side, so a field is as good as its own source only; the
figures in `sizes` follow from `config`, which is one source's word as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from traceanalyzer.catalog.models import LatentAttention, ModelConfig, SlidingWindow
from traceanalyzer.catalog.weight_bits import WeightBits

RECORDER, USER, TRACE, CATALOGUE = "recorder", "user", "trace", "catalogue"
"""Where a field comes from: the recorder's block, the user, the trace itself, a config recognised by its shape."""


@dataclass(frozen=True)
class Description:
    """What is known; None for unknown. Counts are of the whole model, whatever its ranks hold.

    `sources` maps the name of each known field to where it comes from. `tied_embeddings`: the output layer is the input
    embedding. `tp`: ranks that divide each layer. `config` is the model of the user or of the catalogue, with every
    size; `config_source` says whose; `contradicted` are the fields in which something else says otherwise.
    `weight_bytes`, `kv_bytes_per_token`, `kv_reserved_bytes` and `kv_used_bytes` are what the recorder measured on this
    rank.
    """

    name: str | None = None
    architecture: str | None = None
    fingerprint: str | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    gated: bool | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    expert_ffn: int | None = None
    shared_experts: int | None = None
    first_dense_layers: int | None = None
    sliding_window: SlidingWindow | None = None
    mla: LatentAttention | None = None
    kv_lora_rank: int | None = None
    tied_embeddings: bool | None = None
    parameters: int | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    quantization: str | None = None
    weight_bits: WeightBits | None = None
    tp: int | None = None
    weight_bytes: float | None = None
    kv_bytes_per_token: float | None = None
    kv_reserved_bytes: float | None = None
    kv_used_bytes: float | None = None
    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    config: ModelConfig | None = None
    config_source: str | None = None
    contradicted: frozenset[str] = frozenset()

    def said_by(self, source: str, name: str) -> bool:
        """Whether a field is known, and from this source."""
        return self.sources.get(name) == source


UNKNOWN = Description()
"""Nothing is known."""

FIELDS = tuple(
    one.name for one in fields(Description) if one.name not in ("sources", "config", "config_source", "contradicted")
)
"""The fields that sources fill."""
