"""The work of attention whose op does not record the context: from what the step's label says of it.

Serving engines keep the cache in pages, so an attention op shows the tokens, heads and head size but not how many keys
are read. The step's label may: the sum of context lengths (keys) and the sum of query length x key length over its
sequences. With them F = 2 H P (d_qk + d_v) and the keys' and values' bytes follow as in `work.attention`, at the size
in which the cache stores them (the type of the tensor that the cache's write ops record, else that of K).

P is halved where a causal mask hides half: query length squared / 2 per sequence of several queries. The sum of squares
is exact for one sequence, for sequences that attend to themselves only, and where all have one query; else equal
lengths are assumed. A sliding window hides more, see `work.windows`: where its width is known neither from the op nor
from the model, FLOPs stay unknown, and bytes too unless the sequences have no past, when every key is some query's own.

What could be wrong: a window that neither the op, the kernel's name nor the model tells makes the figures too high, so
only where one of them states the mask they are no estimate. Of a step that runs two attention kernels in one op, one
for the prompts and one for the decodes, the names have to tell which is which, and the sums of keys and of products
what belongs to either; else both stay unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.kernels import HELPER_ROLES
from traceanalyzer.analysis.shapes import Signature, integer, numel, signature
from traceanalyzer.analysis.work.columns import Bools, Floats, Ints, distinct, objects
from traceanalyzer.analysis.work.dtypes import INT
from traceanalyzer.analysis.work.opwork import named, number, value
from traceanalyzer.analysis.work.windows import FULL, by_layer, divided, seen
from traceanalyzer.catalog import op_models
from traceanalyzer.catalog.op_models import OpModel
from traceanalyzer.trace.tables import KERNEL, MISSING, Trace

_MASKED = re.compile(r"fmhaSm\d+[a-z]*Kernel_\w*Causal")
"""Names that say which mask the kernel applies."""
_WINDOWED = re.compile(r"fmhaSm\d+[a-z]*Kernel_\w*SlidingOrChunked")
_READING = ("prefill", "prefill-or-decode")
"""Roles of a kernel that reads prompts where another one decodes."""
_PHASES = ("prefill", "decode", "mixed")
_MOST_PADDING = 2
"""A graph's batch is less than this many times the tokens in it."""


@dataclass(frozen=True, slots=True)
class _Call:
    """An attention call: query tokens, bytes of queries and output, FLOPs per pair, cache bytes per key.

    `own_keys`: it is told only where every key is some query's own.
    """

    tokens: int
    moved: float
    flops_per_pair: float
    bytes_per_key: float
    causal: bool
    window: float
    own_keys: bool = False


def fill_attention(
    trace: Trace, activity: Activity, work: pd.DataFrame, steps: pd.DataFrame, activity_step: np.ndarray,
    windows: Sequence[int | None] = (),
) -> pd.DataFrame:  # fmt: skip
    """The work table with the attention filled in whose step tells its context.

    The source is "annotation", or "model-config" where the model's window was needed.

    Args:
        trace, activity: what was read, and what ran.
        work: as `measure` returns it.
        steps: `Steps.table`.
        activity_step: the step of every row, MISSING where it belongs to none.
        windows: of each layer of the model its window, None without one; empty where the model is not known.
    """
    single = _asking(activity.table, work, activity_step, kernels=1)
    work = _whole(trace, activity, work, steps, activity_step, windows, single) if len(single) else work
    two = _asking(activity.table, work, activity_step, kernels=2)
    return _halves(trace, activity, work, steps, activity_step, windows, two) if len(two) else work


def _whole(
    trace: Trace, activity: Activity, work: pd.DataFrame, steps: pd.DataFrame, activity_step: np.ndarray,
    windows: Sequence[int | None], rows: Ints,
) -> pd.DataFrame:  # fmt: skip
    """The work table with kernels filled in that do all of their op's work."""
    op = activity.table["op"].to_numpy(np.int64)[rows]
    step = steps.set_index("step").loc[activity_step[rows]].reset_index(drop=True)
    column = _columns(trace, op, (step["phase"] == "decode").to_numpy())
    width, plain, by_model = _windows(trace, activity.table, work, activity_step, rows, column["window"], windows)
    windowed = width != FULL
    keys = step["context_sum"].to_numpy(np.float64)
    alone = keys == step["tokens"].to_numpy(np.float64)
    pairs, exact = _pairs(step, column["causal"] == 1)
    through, read, told_apart = seen(step, activity_step[rows].astype(np.int64), np.where(windowed, width, np.nan))
    pairs, exact = np.where(windowed, through, pairs), np.where(windowed & ~np.isnan(through), told_apart, exact)
    keys = np.where(windowed & ~np.isnan(read), read, np.where(alone | ~windowed, keys, np.nan))
    told = _same_tokens(step, column["tokens"]) & step["phase"].isin(_PHASES).to_numpy()
    keys = np.where(told & (alone | (column["own_keys"] != 1)), keys, np.nan)
    flops = column["flops_per_pair"] * np.where(np.isnan(keys), np.nan, pairs)
    cached = keys * column["bytes_per_key"]
    return _filled(work, rows, flops, column["moved"] + cached, cached, ~(exact & (plain | windowed)), by_model)


def _halves(
    trace: Trace, activity: Activity, work: pd.DataFrame, steps: pd.DataFrame, activity_step: np.ndarray,
    windows: Sequence[int | None], rows: Ints,
) -> pd.DataFrame:  # fmt: skip
    """The work table with kernels filled in of which one reads the step's prompts and one decodes, by their names."""
    op = activity.table["op"].to_numpy(np.int64)[rows]
    role = work["role"].to_numpy(object)[rows]
    decodes = role == "decode"
    kinds = (
        pd.DataFrame({"op": op, "decodes": decodes, "reads": np.isin(role, _READING)}).groupby("op").transform("sum")
    )
    pair = ((kinds["decodes"] == 1) & (kinds["reads"] == 1)).to_numpy()
    rows, op, decodes = rows[pair], op[pair], decodes[pair]
    if not len(rows):
        return work
    step = steps.set_index("step").loc[activity_step[rows]].reset_index(drop=True)
    column = _columns(trace, op, np.zeros(len(rows), np.bool_))
    width, _, by_model = _windows(trace, activity.table, work, activity_step, rows, column["window"], windows)
    parts = divided(step, activity_step[rows].astype(np.int64), width)
    pairs, keys = np.where(decodes[:, None], parts[:, 1], parts[:, 0]).T
    told = _same_tokens(step, column["tokens"]) & (step["phase"] == "mixed").to_numpy() & (column["own_keys"] != 1)
    told &= column["causal"] == 1
    keys = np.where(told, keys, np.nan)
    own = np.where(decodes, step["decode_tokens"].to_numpy(np.float64), step["prefill_tokens"].to_numpy(np.float64))
    moved = column["moved"] * own / step["tokens"].to_numpy(np.float64)
    cached = keys * column["bytes_per_key"]
    assumed = (step["prefill_sequences"] > 1).to_numpy() | (width > FULL)
    return _filled(work, rows, column["flops_per_pair"] * pairs, moved + cached, cached, assumed, by_model)


def _columns(trace: Trace, op: Ints, decoding: Bools) -> dict[str, Floats]:
    """What the attention calls of some ops say, row by row; NaN where a call does not fit."""
    calls, at = _calls(trace, op, decoding)
    fields = ("tokens", "moved", "flops_per_pair", "bytes_per_key", "causal", "window", "own_keys")
    return {
        field: np.array([np.nan if c is None else getattr(c, field) for c in calls], np.float64)[at] for field in fields
    }


def _windows(
    trace: Trace, table: pd.DataFrame, work: pd.DataFrame, step: np.ndarray, rows: Ints, by_op: Floats,
    windows: Sequence[int | None],
) -> tuple[Floats, Bools, Bools]:  # fmt: skip
    """Of each row its window (NaN: of unknown width), whether its mask is stated, and whether only the model tells."""
    names, op = table["name"].to_numpy(np.int64), table["op"].to_numpy(np.int64)
    attention = (work["category"] == "attention").to_numpy() & ~work["role"].isin(HELPER_ROLES).to_numpy()
    calls = np.flatnonzero(attention & (step >= 0) & (op >= 0))
    order = pd.DataFrame({"step": step[calls], "op": op[calls], "start": table["start_ns"].to_numpy()[calls]})
    named, plain = _named(trace, names[calls], _WINDOWED), _named(trace, names[calls], _MASKED)
    layer = by_layer(order, windows, named, plain & ~named)[np.searchsorted(calls, rows)]
    named, plain = _named(trace, names[rows], _WINDOWED), _named(trace, names[rows], _MASKED)
    sizes = {float(one) for one in windows if one is not None}
    layer = np.where(named & np.isnan(layer) & (len(sizes) == 1), max(sizes, default=np.nan), layer)
    width = np.where(by_op > 0, by_op, np.where(named & ~(layer > FULL), np.nan, np.nan_to_num(layer, nan=FULL)))
    return width, plain | (layer == FULL), ~(by_op > 0) & (layer > FULL)


def _asking(table: pd.DataFrame, work: pd.DataFrame, step: np.ndarray, kernels: int) -> Ints:
    """Rows of attention kernels without work, so many of them in each op."""
    attention = (work["category"] == "attention").to_numpy() & (table["kind"].to_numpy() == KERNEL)
    attention &= (table["op"].to_numpy() >= 0) & ~work["role"].isin(HELPER_ROLES).to_numpy()
    rows = np.flatnonzero(attention)
    ops, of, count = np.unique(table["op"].to_numpy(np.int64)[rows], return_inverse=True, return_counts=True)
    heads = np.full(len(ops), MISSING, np.int64)
    np.maximum.at(heads, of, work["heads"].to_numpy(np.int64)[rows])  # told where the op's work went
    unknown = work["flops"].isna().to_numpy()[rows] & work["bytes"].isna().to_numpy()[rows]
    asking: Ints = rows[(count[of] == kernels) & (heads[of] > 0) & unknown & (step[rows] >= 0)]
    return asking


def _named(trace: Trace, names: Ints, pattern: re.Pattern[str]) -> Bools:
    codes, at = np.unique(names, return_inverse=True)
    found: Bools = np.array([pattern.search(trace.text(int(code))) is not None for code in codes], np.bool_)[at]
    return found


def _calls(trace: Trace, op: Ints, decoding: Bools) -> tuple[list[_Call | None], Ints]:
    """The distinct attention calls among some ops, and which of them each is."""
    stored = _stored_bytes(trace)
    columns = ["name", "dims", "types", "concrete", "strides"]
    keys = [*(trace.ops[column].to_numpy(np.int64)[op] for column in columns), decoding.astype(np.int64)]
    at, first = distinct(keys)
    calls = []
    for *codes, decodes in zip(*(key[first].tolist() for key in keys), strict=True):
        name, *arguments = (trace.text(code) for code in codes)
        calls.append(_call(name, signature(*arguments), stored, bool(decodes)))
    return calls, at


def _call(name: str, sig: Signature, stored: float | None, decoding: bool) -> _Call | None:
    model = op_models.find(name, len(sig.dims))
    if model is None or model.kind not in ("attention", "paged_attention") or model.options.get("layout") == "bhsd":
        return None
    q, out = named(model, sig, "q"), named(model, sig, "out")
    latent = "latent" in model.at
    per_key = _of_latents(model, sig, stored, decoding) if latent else _per_key(model, sig, stored)
    if q is None or len(q.shape) < 3 or per_key is None:
        return None
    size, value_size, bytes_per_key = per_key
    tokens, heads = numel(q.shape[:-2]), q.shape[-2]
    written = out.dtype.bytes if out else max(q.dtype.bytes, 2)  # fp8 queries answer in 16 bits
    left = integer(value(model, sig, "window_left"))
    return _Call(
        tokens=tokens,
        moved=float(tokens * heads * (size * q.dtype.bytes + value_size * written)),
        flops_per_pair=2.0 * heads * (size + value_size),
        bytes_per_key=bytes_per_key,
        causal="causal" not in model.at or value(model, sig, "causal") in ("True", "1"),
        window=left + 1.0 if left is not None and left >= 0 else 0.0,
        own_keys=latent and not decoding,
    )


def _per_key(model: OpModel, sig: Signature, stored: float | None) -> tuple[int, int, float] | None:
    """Size of a key, size of a value, bytes of both in the cache. A latent key holds its value (one head for all).

    Not told where only some keys are read, which an operand of indices chooses.
    """
    q, k, v, rope, out = (named(model, sig, name) for name in ("q", "k", "v", "q_rope", "out"))
    chosen = named(model, sig, "indices")
    if q is None or (chosen is not None and chosen.dtype.category == INT):
        return None
    size = q.shape[-1] + (rope.shape[-1] if rope and rope.shape else 0)
    if model.kind == "paged_attention":
        heads = number(model, sig, "kv_heads")
        if heads is not None and k is not None:
            return size, size, float(2 * heads * size * k.dtype.bytes)
        told = number(model, sig, "value_size") or (out.shape[-1] if out and out.shape else None)
        pool = named(model, sig, "pool")
        row = float(pool.shape[-1] * pool.dtype.bytes) if pool and pool.shape else size * (stored or q.dtype.bytes)
        return (size, told, row) if told and model.options.get("kv_heads") == 1 else None
    if k is None or v is None or len(k.shape) < 2:
        return None
    return size, v.shape[-1], float(k.shape[-2] * (size + v.shape[-1]) * (stored or k.dtype.bytes))


def _of_latents(model: OpModel, sig: Signature, stored: float | None, decoding: bool) -> tuple[int, int, float] | None:
    """The same of latent attention that takes what it writes: queries, the new latents and their rotary parts.

    A decode step attends to the latents themselves, one row of both parts for all heads; a prompt to keys and values
    made from them, of the size of its queries and of its output.
    """
    q, latent, rotary, out = (named(model, sig, name) for name in ("q", "latent", "rotary", "out"))
    if q is None or latent is None or rotary is None or not latent.shape or not rotary.shape:
        return None
    rank, heads = latent.shape[-1], q.shape[-2]
    if decoding:
        size = rank + rotary.shape[-1]
        return size, rank, size * (stored or latent.dtype.bytes)
    if out is None or not out.shape or out.shape[-1] % heads:
        return None
    size, width = q.shape[-1], out.shape[-1] // heads
    return size, width, float(heads * (size + width) * q.dtype.bytes)


def _stored_bytes(trace: Trace) -> float | None:
    """Bytes per element of the KV cache, where the ops that write it agree on one type."""
    sizes = set()
    for name in np.unique(trace.ops["name"].to_numpy()).tolist():
        first = op_models.find(trace.text(name))
        if first is None or first.role != "kv_write":
            continue
        calls = trace.ops.loc[trace.ops["name"] == name, ["dims", "types"]].drop_duplicates()
        for dims, types in calls.to_numpy(np.int64).tolist():
            sig = signature(trace.text(dims), trace.text(types), "", "")
            model = op_models.find(trace.text(name), len(sig.dims))
            cache = named(model, sig, "dst_a") if model else None
            sizes.add(cache.dtype.bytes if cache else None)
    return sizes.pop() if len(sizes) == 1 else None


def _same_tokens(step: pd.DataFrame, tokens: Floats) -> Bools:
    """Whether an op ran over the step's tokens (with padding): not another model's, nor a part of them."""
    stated = step["tokens"].to_numpy(np.float64)
    padded = stated + step["padded_tokens"].fillna(0.0).to_numpy(np.float64)
    same: Bools = (tokens == padded) | ((tokens >= stated) & (tokens < _MOST_PADDING * stated))
    return same


def _pairs(step: pd.DataFrame, causal: Bools) -> tuple[Floats, Bools]:
    """Query-key pairs that the mask keeps, and whether no lengths had to be assumed equal."""
    fact = {name: step[name].to_numpy(np.float64) for name in step.columns if name not in ("phase", "evidence")}
    keys, tokens, sequences = fact["context_sum"], fact["tokens"], fact["sequences"]
    product = fact["query_context_sum"]
    product = np.where(np.isnan(product) & (tokens == sequences), keys, product)
    product = np.where(np.isnan(product) & (sequences == 1), tokens * keys, product)
    squares, exact = np.zeros(len(step)), np.ones(len(step), np.bool_)
    for kind in ("prefill", "decode"):
        several = fact[f"{kind}_tokens"] > fact[f"{kind}_sequences"]
        count = np.where(several, fact[f"{kind}_sequences"], 1.0)
        squares += np.where(several, fact[f"{kind}_tokens"] ** 2 / np.maximum(count, 1.0), 0.0)
        exact &= ~several | (count == 1)
    unsplit = np.isnan(fact["prefill_tokens"] + fact["decode_tokens"]) & (tokens != sequences)
    own = (keys == tokens) & (fact["prefill_sequences"] == sequences)  # then the squares are the products
    squares = np.where(own & ~np.isnan(product), product, squares)
    product = np.where(product < squares, np.nan, product)  # no query is longer than its context
    kept = np.where(unsplit & causal, np.nan, product - np.where(causal, squares / 2, 0.0))
    return kept, exact | own | ~causal


def _filled(
    work: pd.DataFrame, rows: Ints, flops: Floats, moved: Floats, cached: Floats, assumed: Bools, by_model: Bools
) -> pd.DataFrame:
    known = ~np.isnan(moved)
    given = {
        "flops": flops,
        "bytes": moved,
        "kv_bytes": cached,
        "estimated": assumed,
    }
    out = work.copy()
    for name, values in given.items():
        column = out[name].to_numpy(copy=True)
        column[rows[known]] = values[known]
        out[name] = column
    source = out["source"].to_numpy(object, copy=True)
    source[rows[known]] = "annotation"
    source[rows[known & by_model]] = "model-config"
    out["source"] = objects(source)
    return out
