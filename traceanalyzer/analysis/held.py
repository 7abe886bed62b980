"""What a model keeps in the memory of one device: its weights, and the KV cache of every token.

Best source first. Weights: the recorder's block; else the weights that a decode step reads, with the input embedding
where rows were gathered from a table and the block says that the output layer does not share it. Cache per token: the
block; else the rows that KV writes fill, whose pool also tells how much is set aside; else the KV bytes that attention
reads per token of context.

What could be wrong: a step of a mixture of experts reads only some of its weights; what is read of a sliding window is
less than what is kept; layers may share one pool, which then counts once per layer, so a pool larger than the device is
not believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traceanalyzer.analysis.shapes import Signature, numel, signature
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.analysis.work.opwork import named
from traceanalyzer.catalog import op_models
from traceanalyzer.catalog.op_models import OpModel
from traceanalyzer.trace.collector import Section, number, section
from traceanalyzer.trace.tables import Trace

_SIZES: Mapping[str, float] = {
    "fp32": 4.0, "float32": 4.0, "bf16": 2.0, "bfloat16": 2.0, "fp16": 2.0, "float16": 2.0, "fp8": 1.0, "int8": 1.0,
}  # fmt: skip
"""Bytes of an element, by the words that recorders use for a dtype."""


@dataclass(frozen=True)
class Weights:
    """Bytes of weights on one device; `source` is "recorder" or "shapes"."""

    held: float
    source: str
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class KvCache:
    """Bytes that one token takes in the caches of all layers, and bytes set aside for the cache (None unknown)."""

    bytes_per_token: float
    reserved_bytes: float | None
    source: str
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class Described:
    """A model as its recorder describes it: weight bytes that a step reads, FLOPs per byte of them and token.

    `kv_bytes_per_token` and the FLOPs that a decode step's attention does per byte of cache are None where unknown.
    """

    weight_bytes: float
    flops_per_weight_byte: float
    kv_bytes_per_token: float | None
    flops_per_kv_byte: float | None


def _recorded(trace: Trace) -> Section:
    """The recorder's facts about the model; empty without a recorder."""
    return section(trace.metadata.collector, "model")


def _number(facts: Section, key: str) -> float | None:
    value = number(facts, key)
    return value if value is not None and value > 0 else None


def _size(facts: Section, key: str) -> float | None:
    return _SIZES.get(str(facts.get(key)).removeprefix("torch.").lower())


def _alone(trace: Trace) -> bool:
    """Whether the whole model is on this device; how ranks divide it is in no trace."""
    return (trace.metadata.world_size or 1) == 1


def weights(timeline: Timeline, read: float | None) -> Weights | None:
    """The weights one device holds, or None where neither a recorder nor shapes tell.

    Args:
        timeline: of the device.
        read: weight bytes that a decode step reads, None unknown.
    """
    facts = _recorded(timeline.trace)
    held = _number(facts, "weight_bytes")
    if held is not None:
        return Weights(held, "recorder", assumptions=())
    count, size = _number(facts, "parameters"), _size(facts, "dtype")
    if count and size and not facts.get("quantization") and _alone(timeline.trace):
        return Weights(count * size, "recorder", assumptions=("every_parameter_of_one_size",))
    if read is None:
        return None
    tied = facts.get("tied_embeddings")
    if tied is True:
        return Weights(read, "shapes", assumptions=("held_is_read",))
    table = _embedding_table(timeline) if tied is False else None
    if table is not None:
        return Weights(read + table, "shapes", assumptions=("held_is_read_and_embedding",))
    return Weights(read, "shapes", assumptions=("held_at_least_read",))


def described(timeline: Timeline) -> Described | None:
    """What a step of the recorded model reads: all weights it holds but the input embedding, and its cache.

    None where the recorder does not say enough (whether the output layer shares the input embedding, among others), for
    a mixture of experts, and where ranks divide the model. A weight takes part in one multiply-add per token. A query
    head does two multiply-adds with each pair of elements of its key head's cache, one of the key's and one of the
    value's.
    """
    facts, found = _recorded(timeline.trace), weights(timeline, None)
    if found is None or found.source != "recorder" or facts.get("experts") or not _alone(timeline.trace):
        return None
    size, count = _size(facts, "dtype"), _number(facts, "parameters")
    tied = facts.get("tied_embeddings")
    read: float | None = found.held if tied is True else None
    if tied is False:
        vocab, hidden = _number(facts, "vocab"), _number(facts, "hidden")
        read = found.held - vocab * hidden * size if vocab and hidden and size else None
    each = found.held / count if count else size
    if not read or read <= 0 or not each:
        return None
    cache = kv_cache(timeline, None)
    heads, kv_heads = _number(facts, "heads"), _number(facts, "kv_heads")
    stored = _size(facts, "kv_dtype") or size
    return Described(
        weight_bytes=read,
        flops_per_weight_byte=2.0 / each,
        kv_bytes_per_token=cache.bytes_per_token if cache else None,
        flops_per_kv_byte=2.0 * heads / kv_heads / stored if heads and kv_heads and stored else None,
    )


def _calls(timeline: Timeline) -> list[tuple[int, OpModel, Signature]]:
    """The distinct calls that have an op model: their op's name code, the model, the arguments."""
    trace, columns = timeline.trace, ["name", "dims", "types", "concrete", "strides"]
    calls = trace.ops[columns].drop_duplicates(["name", "dims", "types"])
    models = {int(code): op_models.find(trace.text(int(code))) for code in calls["name"].unique()}
    return [
        (name, model, signature(*(trace.text(code) for code in texts)))
        for name, *texts in calls.to_numpy(np.int64).tolist()
        if (model := models[name]) is not None
    ]


def _embedding_table(timeline: Timeline) -> float | None:
    """Bytes of the largest table that an embedding gathers rows from; None where none was recorded."""
    tables = [named(model, sig, "table") for _, model, sig in _calls(timeline) if model.op == "aten::embedding"]
    sizes = [float(table.bytes) for table in tables if table is not None and len(table.shape) == 2]
    return max(sizes) if sizes else None


def kv_cache(timeline: Timeline, read_per_token: float | None) -> KvCache | None:
    """The KV cache of one device, or None where nothing tells its size.

    Args:
        timeline: of the device.
        read_per_token: KV bytes that attention reads per token of context, None unknown.
    """
    written = _written(timeline)
    facts = _recorded(timeline.trace)
    reserved = _number(facts, "kv_reserved_bytes") or (written.reserved_bytes if written else None)
    each = _number(facts, "kv_bytes_per_token")
    if each is None and _alone(timeline.trace) and "kv_lora_rank" not in facts:
        layers, heads, dim = (_number(facts, key) for key in ("layers", "kv_heads", "head_dim"))
        size = _size(facts, "kv_dtype") or _size(facts, "dtype")
        each = 2.0 * layers * heads * dim * size if layers and heads and dim and size else None
    if each is not None:
        return KvCache(each, reserved, "recorder", assumptions=())
    if written is not None:
        return written
    return KvCache(read_per_token, None, "shapes", assumptions=("kv_kept_is_read",)) if read_per_token else None


def _written(timeline: Timeline) -> KvCache | None:
    """The cache as the KV writes of a step show it: bytes per token and layer, times the writes of a step."""
    writes = [(name, model, sig) for name, model, sig in _calls(timeline) if model.role == "kv_write"]
    layers = _calls_per_step(timeline, {name for name, _, _ in writes})
    pools = [found for _, model, sig in writes if (found := _pool(model, sig)) is not None]
    if not layers or len(set(pools)) != 1:
        return None
    each, reserved = (part * layers for part in pools[0])
    memory = timeline.device.memory_bytes
    if memory is not None and reserved > memory:
        return KvCache(each, None, "shapes", assumptions=("kv_pool_shared",))
    return KvCache(each, reserved, "shapes", assumptions=("one_pool_per_layer",))


def _calls_per_step(timeline: Timeline, names: set[int]) -> int:
    """Calls of some ops in the median complete step."""
    table, ops = timeline.table, timeline.trace.ops["name"].to_numpy(np.int64)
    op = table["op"].to_numpy(np.int64)
    rows = (op >= 0) & table["step"].isin(timeline.complete_steps.index).to_numpy()
    rows[rows] = np.isin(ops[op[rows]], sorted(names))
    counts = table[rows].groupby("step")["op"].nunique()
    return int(counts.median()) if len(counts) else 0


def _pool(model: OpModel, sig: Signature) -> tuple[float, float] | None:
    """Bytes of one token and of the whole pool of one layer, keys and values together."""
    pairs = []
    for source, target in (("src_a", "dst_a"), ("src_b", "dst_b")):
        rows, pool = named(model, sig, source), named(model, sig, target)
        if rows is None or pool is None or not rows.shape or not rows.shape[0]:
            return None
        pairs.append((numel(rows.shape) / rows.shape[0] * pool.dtype.bytes, float(pool.bytes)))
    (keys, pool_a), (values, pool_b) = pairs
    one_pool = model.at["dst_a"] == model.at["dst_b"]
    return keys + values, pool_a if one_pool else pool_a + pool_b
