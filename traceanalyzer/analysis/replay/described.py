"""The work of what stands around the products, by its part and place: attention, norms, rotary embedding, activations.

The figures are those of `analysis.work` for recorded shapes: attention 2 H P (d_qk + d_v) over the pairs that the mask
keeps, keys and values once per key head; five FLOPs per element of a norm that adds the residual, four of another
one, eight of a LayerNorm; three per element of a rotary embedding; five per output of a gated activation. Each input
and output once.

What could be wrong: sequences are taken for equally long where a window cuts them, marked `estimated`; whether a norm
adds the residual is told by its name, or by the first layer's having another one.
"""

from __future__ import annotations

from traceanalyzer.analysis.replay.sizes import Facts, Sizes
from traceanalyzer.analysis.work.opwork import OpWork


def attention(sizes: Sizes, facts: Facts, window: int | None, absorbed: bool = False) -> OpWork | None:
    """The attention of one layer whose queries see at most `window` keys; None where the step has no context.

    `absorbed`: latent attention has its queries taken into the latent space before it.
    """
    if facts.keys is None or facts.pairs is None or not facts.sequences:
        return None
    if sizes.config.mla is not None:
        return _latent(sizes, facts, absorbed)
    pairs, keys, exact = _seen(facts, facts.sequences, window)
    heads, kv_heads, head = sizes.heads, sizes.kv_heads, sizes.head_dim
    cached = 2.0 * keys * kv_heads * head * sizes.kv_size
    sinks = heads * sizes.size * sizes.config.attention_sinks
    return OpWork(
        model="attention",
        category="attention",
        role="attention",
        flops=4.0 * heads * pairs * head,
        bytes=2.0 * facts.rows * heads * head * sizes.size + cached + sinks,
        dtype=sizes.dtype,
        q_len=facts.rows,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head,
        kv_bytes=cached,
        estimated=not exact,
    )


def _latent(sizes: Sizes, facts: Facts, absorbed: bool) -> OpWork | None:
    """Latent attention: on the latents where its queries are absorbed, else on keys and values made of them."""
    mla, heads = sizes.config.mla, sizes.heads
    if mla is None or facts.keys is None or facts.pairs is None or not facts.sequences:
        return None
    pairs = facts.pairs - facts.squares / 2
    if absorbed:
        per_query, kept = sizes.latent + mla.kv_lora_rank, facts.keys * sizes.latent * sizes.kv_size
        moved = facts.rows * heads * per_query * sizes.size + kept
    else:
        per_query = mla.qk_nope + mla.qk_rope + mla.v_head_dim
        kept = heads * facts.keys * per_query * sizes.size
        moved = heads * facts.rows * per_query * sizes.size + kept
    return OpWork(
        model="attention",
        category="attention",
        role="attention",
        flops=2.0 * heads * pairs * per_query,
        bytes=moved,
        dtype=sizes.dtype,
        q_len=facts.rows,
        heads=heads,
        kv_bytes=kept,
        estimated=not facts.exact,
    )


def _seen(facts: Facts, sequences: int, window: int | None) -> tuple[float, float, bool]:
    """Query-key pairs that the mask keeps, keys that any query sees, and whether no lengths had to be assumed equal."""
    keys, pairs = facts.keys or 0.0, facts.pairs or 0.0
    queries, mean = facts.tokens / sequences, keys / sequences
    if window is None or (sequences == 1 and mean <= window):
        return pairs - facts.squares / 2, keys, facts.exact
    if queries == 1:
        return sequences * min(mean, window), sequences * min(mean, window), sequences == 1
    if mean <= window:
        return pairs - facts.squares / 2, keys, False
    first = mean - queries  # keys before the first query
    short = max(0.0, min(queries, window - first))  # queries that do not fill the window yet
    seen = short * (first + short) - short**2 / 2 + (queries - short) * window
    return sequences * seen, sequences * min(mean, queries + window - 1), sequences == 1


def norm(sizes: Sizes, elements: float, width: float, adds: bool) -> OpWork:
    """A norm over so many elements in rows of `width`; `adds`: the residual is added first and kept."""
    layer = sizes.config.norm != "rmsnorm"
    weights = width * sizes.size * (2 if sizes.config.norm == "layernorm" else 1)
    moved = (4 if adds else 2) * elements * sizes.size + weights
    return _plain("norm", (8 if layer else 5 if adds else 4) * elements, moved, sizes.dtype)


def rope(sizes: Sizes, rows: int) -> OpWork:
    """Queries and keys turned in place, with a row of the table of cosines and sines per token."""
    mla = sizes.config.mla
    head = mla.qk_rope if mla else sizes.head_dim
    turned = rows * (sizes.heads + (1 if mla else sizes.kv_heads)) * head
    return _plain("rope", 3 * turned, sizes.size * (2 * turned + rows * head) + 8 * rows, sizes.dtype)


def kv_write(sizes: Sizes, rows: int) -> OpWork:
    """New keys and values, or latents, read and written into the cache, with their places."""
    each = sizes.latent if sizes.config.mla else 2 * sizes.kv_heads * sizes.head_dim
    return _plain("kv_write", 0.0, rows * each * (sizes.size + sizes.kv_size) + 8 * rows, sizes.dtype)


def activation(sizes: Sizes, rows: float, width: float, gated: bool) -> OpWork:
    """An activation with `rows` rows of `width` outputs; `gated`: times another half of its input."""
    outputs = rows * width
    return _plain("activation", (5 if gated else 1) * outputs, (3 if gated else 2) * outputs * sizes.size, sizes.dtype)


def quantise(sizes: Sizes, rows: float, width: float, small: float) -> OpWork:
    """Activations made smaller before a product, to `small` bytes each: scaled and clamped."""
    return _plain("quantise", 2 * rows * width, rows * width * (sizes.size + small), sizes.dtype)


def top_k(sizes: Sizes, rows: int) -> OpWork | None:
    """Each token's experts chosen from the router's scores: a weight, an id and a place of four bytes each."""
    moe = sizes.config.moe
    if moe is None:
        return None
    moved = rows * moe.experts * sizes.size + rows * moe.experts_per_token * 12
    return _plain("top_k", 5.0 * rows * moe.experts, moved, "fp32")


def finalise(sizes: Sizes, rows: int) -> OpWork | None:
    """The results of a token's experts added up."""
    moe = sizes.config.moe
    if moe is None:
        return None
    sent = rows * moe.experts_per_token
    return _plain("finalise", float(sent * sizes.hidden), (sent + rows) * sizes.hidden * sizes.size, sizes.dtype)


def embedding(sizes: Sizes, rows: int) -> OpWork:
    """Rows taken from the table, one per token."""
    return _plain("embedding", 0.0, 2 * rows * sizes.hidden * sizes.size + 8 * rows, sizes.dtype)


def _plain(role: str, flops: float, moved: float, dtype: str) -> OpWork:
    return OpWork(model=role, category="", role=role, flops=float(flops), bytes=float(moved), dtype=dtype)
