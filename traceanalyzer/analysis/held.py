"""What a model keeps in the memory of one device: its weights, and the KV cache of every token.

Best source first. Weights: the recorder's block; else the weights that a decode step reads, with the input embedding
where it is known to be a table of its own; else, and where a step reads a choice of experts, those of the model's
config. Cache per token: the block; else the rows that KV writes fill, whose pool also tells how much is set aside; else
the KV bytes that attention reads per token of context; else the config.

What could be wrong: a step of a mixture of experts reads only some of its weights; what is read of a sliding window is
less than what is kept; layers may share one pool, which then counts once per layer, so a pool larger than the device is
not believed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceanalyzer.analysis.model import CATALOGUE, RECORDER, Description, sizes
from traceanalyzer.analysis.shapes import Signature, numel, signature
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.analysis.work.opwork import named
from traceanalyzer.catalog import op_models
from traceanalyzer.catalog.op_models import OpModel
from traceanalyzer.catalog.weight_bits import bits_of

_TOLD, _RECOGNISED = 0.7, 0.6
"""How sure bytes are that the recorder or the user tells, and those of a model recognised by its shape."""


@dataclass(frozen=True)
class Weights:
    """Bytes of weights on one device; `source` is "recorder", "shapes" or "model-config"."""

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
    """A decode step of a model that is described: what it reads and computes.

    `weight_bytes` lies between `least` and `most` where experts are chosen per token. `flops` are those of its products
    with weights; `kv_bytes` and the FLOPs that attention does per byte of cache are None where unknown.
    """

    weight_bytes: float
    least: float
    most: float
    flops: float
    kv_bytes: float | None
    flops_per_kv_byte: float | None
    confidence: float
    assumptions: tuple[str, ...]


def _recorded(model: Description, name: str) -> float | None:
    """A number of the recorder's."""
    value = getattr(model, name)
    return float(value) if value is not None and model.said_by(RECORDER, name) else None


def _size(model: Description, name: str) -> float | None:
    """Bytes of a data type of the recorder's."""
    bits = bits_of(getattr(model, name)) if model.said_by(RECORDER, name) else None
    return bits / 8 if bits else None


def _by_config(model: Description) -> tuple[str, ...]:
    """What a figure of the model's config takes for granted, by whose config it is."""
    assumptions = ["bytes_from_recognised_model" if model.config_source == CATALOGUE else "bytes_from_given_model"]
    return tuple(assumptions)


def _alone(timeline: Timeline) -> bool:
    """Whether the whole model is on this device; how ranks divide it is in no block."""
    return (timeline.trace.metadata.world_size or 1) == 1


def weights(timeline: Timeline, read: float | None) -> Weights | None:
    """The weights one device holds, or None where neither a recorder, nor shapes, nor a config tell.

    Args:
        timeline: of the device.
        read: weight bytes that a decode step reads by its shapes, None unknown.
    """
    model = timeline.model
    recorded = _recorded_weights(timeline)
    if recorded is not None:
        return recorded
    whole = sizes.held(model)
    if whole is not None and (read is None or model.experts):
        return Weights(whole, "model-config", _by_config(model))
    if read is None:
        return None
    if model.tied_embeddings is True:
        return Weights(read, "shapes", assumptions=("held_is_read",))
    table = _embedding_table(timeline) if model.tied_embeddings is False else None
    if table is not None:
        return Weights(read + table, "shapes", assumptions=("held_is_read_and_embedding",))
    return Weights(read, "shapes", assumptions=("held_at_least_read",))


def _recorded_weights(timeline: Timeline) -> Weights | None:
    model = timeline.model
    held = _recorded(model, "weight_bytes")
    if held is not None:
        return Weights(held, "recorder", assumptions=())
    count, size = _recorded(model, "parameters"), _size(model, "dtype")
    if count and size and not model.quantization and _alone(timeline):
        return Weights(count * size, "recorder", assumptions=("every_parameter_of_one_size",))
    return None


def described(
    timeline: Timeline, tokens: float | None, context_sum: float | None, sequences: float | None
) -> Described | None:
    """What a decode step reads by the recorder's block, else by the config of the model.

    None where neither says enough. By the block it is all weights but the input embedding, and the whole cache: for a
    model without experts, on one rank, of which it is known whether the output layer shares the input embedding. A
    weight takes part in one multiply-add per token. A query head does two multiply-adds with each pair of elements of
    its key head's cache, one of the key's and one of the value's.

    Args:
        timeline: of the device.
        tokens, context_sum, sequences: of the step, None unknown.
    """
    model = timeline.model
    by_block = _by_block(timeline, tokens, context_sum)
    if by_block is not None:
        return by_block
    read = sizes.read(model, tokens)
    if read is None:
        return None
    cache = _recorded(model, "kv_bytes_per_token")
    kept = cache * context_sum if cache and context_sum and not model.sliding_window else None
    return Described(
        weight_bytes=read.bytes,
        least=read.least,
        most=read.most,
        flops=read.flops,
        kv_bytes=kept or sizes.kv_read(model, context_sum, sequences),
        flops_per_kv_byte=sizes.flops_per_kv_byte(model),
        confidence=_RECOGNISED if model.config_source == CATALOGUE else _TOLD,
        assumptions=_by_config(model),
    )


def _by_block(timeline: Timeline, tokens: float | None, context_sum: float | None) -> Described | None:
    model, found = timeline.model, _recorded_weights(timeline)
    if found is None or model.experts or not _alone(timeline):
        return None
    size, count = _size(model, "dtype"), _recorded(model, "parameters")
    tied = model.tied_embeddings if model.said_by(RECORDER, "tied_embeddings") else None
    read: float | None = found.held if tied is True else None
    if tied is False:
        vocab, hidden = _recorded(model, "vocab"), _recorded(model, "hidden")
        read = found.held - vocab * hidden * size if vocab and hidden and size else None
    each = found.held / count if count else size
    if not read or read <= 0 or not each:
        return None
    cache = kv_cache(timeline, None)
    heads, kv_heads = _recorded(model, "heads"), _recorded(model, "kv_heads")
    stored = _size(model, "kv_dtype") or size
    return Described(
        weight_bytes=read,
        least=read,
        most=read,
        flops=2.0 / each * read * (tokens or np.nan),
        kv_bytes=cache.bytes_per_token * context_sum if cache and context_sum else None,
        flops_per_kv_byte=2.0 * heads / kv_heads / stored if heads and kv_heads and stored else None,
        confidence=_TOLD,
        assumptions=("bytes_from_model",),
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
    model = timeline.model
    reserved = _recorded(model, "kv_reserved_bytes") or (written.reserved_bytes if written else None)
    each = _recorded(model, "kv_bytes_per_token")
    if each is None and _alone(timeline) and not model.kv_lora_rank and not model.mla:
        layers, heads, dim = (_recorded(model, key) for key in ("layers", "kv_heads", "head_dim"))
        size = _size(model, "kv_dtype") or _size(model, "dtype")
        each = 2.0 * layers * heads * dim * size if layers and heads and dim and size else None
    if each is not None:
        return KvCache(each, reserved, "recorder", assumptions=())
    if written is not None:
        return written
    if read_per_token:
        return KvCache(read_per_token, None, "shapes", assumptions=("kv_kept_is_read",))
    by_config = sizes.kv_per_token(model)
    if by_config is None:
        return None
    return KvCache(by_config, reserved, "model-config", _by_config(model))


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
