"""The model that ran, for the document: every field that is known, each with its source.

A model without a name of its own goes by its architecture. What could be wrong: a name is the recorder's or the user's
word; a recognised one is that of the shape, which other models may share.
"""

from __future__ import annotations

from traceanalyzer.analysis.model import CATALOGUE, RECORDER, TRACE, USER, Description
from traceanalyzer.report.sections import LatentAttention, ModelInfo, StoredBits
from traceanalyzer.report.values import capped

_APART = frozenset({"sliding_window", "mla", "weight_bits", "tp", "source", "sources"})
_SAME = tuple(
    name for name in ModelInfo.model_fields if name in Description.__dataclass_fields__ and name not in _APART
)
_STRONGEST_FIRST = (RECORDER, USER, CATALOGUE, TRACE)


def described(model: Description) -> ModelInfo | None:
    """The model, or None where nothing is known of it."""
    known = {name: value for name in _SAME if (value := getattr(model, name)) is not None}
    words = {name: capped(value) for name, value in known.items() if isinstance(value, str)}
    sources = {name: source for name, source in model.sources.items() if name in ModelInfo.model_fields}
    if "name" not in known and isinstance(kind := known.get("architecture"), str):
        words["name"], sources["name"] = capped(kind), sources["architecture"]
    if not known:
        return None
    window, mla, bits = model.sliding_window, model.mla, model.weight_bits
    extra = {
        "sliding_window": window.size if window else None,
        "full_attention_every": window.full_every if window else None,
        "mla": LatentAttention(
            q_lora_rank=mla.q_lora_rank, kv_lora_rank=mla.kv_lora_rank, qk_nope=mla.qk_nope, qk_rope=mla.qk_rope,
            v_head_dim=mla.v_head_dim,
        ) if mla else None,
        "weight_bits": StoredBits(
            attention=bits.attention, mlp=bits.mlp, experts=bits.experts, lm_head=bits.lm_head,
            embedding=bits.embedding,
        ) if bits else None,
    }  # fmt: skip
    source = next(source for source in _STRONGEST_FIRST if source in sources.values())
    order = [name for name in ModelInfo.model_fields if name in sources and name != "tp"]
    return ModelInfo.model_validate(
        {**known, **words, **extra, "source": source, "sources": {name: sources[name] for name in order}}
    )
