"""What a trace itself shows of the model: shapes of its tables and products, heads, layers, how ranks talk.

    embedding lookups       rows and width of the table on this rank
    the widest product      the output layer, where it runs once a step and everything else once a layer
    KV writes, attention    heads of this rank, their size, the cache's data type
    all-reduces per layer   whether ranks divide the layers

What could be wrong: an output layer that was cut off leaves a wide product of the layers, which runs too often to be
taken for it; attention that repeats its key heads shows as many as query heads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceanalyzer.analysis.kernels import HELPER_ROLES, MATRIX_CATEGORIES
from traceanalyzer.analysis.shapes import Signature, signature
from traceanalyzer.analysis.work.opwork import named
from traceanalyzer.catalog import op_models
from traceanalyzer.trace.tables import Trace

_WIDER = 1.2
"""How much wider than any product of the layers the output layer is at least."""
_SMALLEST_VOCABULARY = 1024
_WIDE_FOR_A_LAYER = 32_000
_MOST_CHARACTERS = 400
_NEARLY_ALL = 0.9
_PLAIN = frozenset({"bf16", "fp16", "fp32", "tf32"})
_PACKED = frozenset({"fp8", "int8", "int4", "fp4"})
_PACKED_ROLE = re.compile(r"w[48]a16|weight-only|quantised|fp8|fp4|int[48]")
_PACKED_NAME = re.compile(r"marlin|wna16|awq|gptq|mxfp|nvfp4|fp8|e4m3|e2m1|int4|int8", re.IGNORECASE)
_CACHE_NAME = re.compile(r"reshape_and_cache\w*_kernel<[^,<>]+,\s*([^,<>]+)[,>]")
_CACHE_WORDS = {
    "__hip_bfloat16": "bf16", "__nv_bfloat16": "bf16", "c10::BFloat16": "bf16", "c10::Half": "fp16", "__half": "fp16",
    "uint16_t": "fp16", "unsigned char": "fp8", "uint8_t": "fp8", "float": "fp32",
}  # fmt: skip


@dataclass(frozen=True)
class Observed:
    """Figures of one rank; None for not seen.

    `table_rows`, `head_rows`: rows of the embedding and of the output layer. `heads`, `kv_heads`: of this rank.
    `reduces`: every layer ends with communication. Of the time of the matrix kernels: `packed_share` is spent where
    weights are quantised, by name or data type, `plain_share` where both operands are not; `expert_packed_share` and
    `expert_plain_share` are of those kernels of experts that say which. `routes`: there are kernels of experts.
    """

    layers: int | None = None
    hidden: int | None = None
    table_rows: int | None = None
    head_rows: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    world_size: int | None = None
    reduces: bool = False
    packed_share: float = 0.0
    plain_share: float = 0.0
    expert_packed_share: float = 0.0
    expert_plain_share: float = 0.0
    routes: bool = False


def observe(trace: Trace, activity: pd.DataFrame, work: pd.DataFrame, steps: int, layers: int | None) -> Observed:
    """What a trace shows of its model.

    Args:
        trace: what was read.
        activity, work: what ran and its work, row by row; see `Activity.table` and `work.measure`.
        steps: how many forward passes there are.
        layers: that one of them runs, None unknown.
    """
    table, table_type = _embedding(trace)
    work = work.assign(**{name: work[name].astype("category") for name in ("category", "role")})
    stored = _stored(trace, work, activity["name"], activity["duration_ns"])
    experts = stored[(stored["category"] == "moe") & (stored["packed"] | stored["plain"])]
    rows, width, head_type = _output_layer(work, steps, layers or 0)
    heads, kv_heads, head_dim = _attention(work)
    written, written_dim, cache = _cache(trace, activity["name"])
    calls = int((work["category"] == "comm").sum()) / steps if steps else 0.0
    return Observed(
        layers=layers,
        hidden=table[1] if table else width,
        table_rows=table[0] if table else None,
        head_rows=rows,
        heads=heads,
        kv_heads=written or kv_heads,
        head_dim=written_dim or head_dim,
        dtype=table_type or head_type or _computed_in(stored),
        kv_dtype=cache,
        world_size=trace.metadata.world_size,
        reduces=bool(layers) and calls >= (layers or 0),
        packed_share=_share(stored, "packed"),
        plain_share=_share(stored, "plain"),
        expert_packed_share=_share(experts, "packed"),
        expert_plain_share=_share(experts, "plain"),
        routes=bool((work["category"] == "moe").any()),
    )


def _calls(trace: Trace, wanted: re.Pattern[str]) -> list[tuple[str, Signature]]:
    """The distinct recorded calls of the ops with such names."""
    codes = [int(code) for code in trace.ops["name"].unique() if wanted.search(trace.text(int(code)))]
    columns = ["name", "dims", "types", "concrete", "strides"]
    calls = trace.ops.loc[trace.ops["name"].isin(codes), columns].drop_duplicates(["name", "dims", "types"])
    return [
        (trace.text(name), signature(*(trace.text(code) for code in texts)))
        for name, *texts in calls.to_numpy(np.int64).tolist()
    ]


def _embedding(trace: Trace) -> tuple[tuple[int, int] | None, str | None]:
    """The largest table that rows are taken from, and its data type."""
    found: list[tuple[int, tuple[int, int], str | None]] = []
    for name, sig in _calls(trace, re.compile(r"^aten::embedding$")):
        model = op_models.find(name)
        table = named(model, sig, "table") if model else None
        if table is not None and len(table.shape) == 2 and table.shape[0] >= _SMALLEST_VOCABULARY:
            found.append((table.shape[0] * table.shape[1], (table.shape[0], table.shape[1]), table.dtype.word))
    return max(found, key=lambda one: one[0])[1:] if found else (None, None)


def _output_layer(work: pd.DataFrame, steps: int, layers: int) -> tuple[int | None, int | None, str | None]:
    """Rows, width and data type of the output layer.

    Where few layers were recorded, a product of theirs runs once as well: then only a width that none has tells.
    """
    linear = work["category"].isin(("gemm", "gemv")) & (work["n"] > 0) & (work["k"] > 0) & (work["batch"] <= 1)
    rows = work.loc[linear, ["n", "k", "dtype"]]
    if not len(rows) or not steps:
        return None, None, None
    shapes = rows.groupby(["n", "k"], sort=True).size().reset_index(name="calls")
    widest = shapes.iloc[-1]
    others = shapes[shapes["n"] < widest["n"]]
    narrower = int(others["n"].max()) if len(others) else 0
    repeated = layers > 1 and len(others) > 0 and others["calls"].max() >= layers
    n, k = int(widest["n"]), int(widest["k"])
    if n < _SMALLEST_VOCABULARY or n < 2 * k or n < _WIDER * narrower or widest["calls"] > 1.5 * steps:
        return None, None, None
    if not repeated and n < _WIDE_FOR_A_LAYER:
        return None, None, None
    dtype = rows.loc[(rows["n"] == n) & (rows["k"] == k), "dtype"].dropna()
    return n, k, str(dtype.iloc[0]) if len(dtype) else None


def _attention(work: pd.DataFrame) -> tuple[int | None, int | None, int | None]:
    """Query heads, key heads and their size, as most attention calls have them."""
    rows = work.loc[(work["category"] == "attention") & (work["heads"] > 0), ["heads", "kv_heads", "head_dim"]]
    if not len(rows):
        return None, None, None
    kinds = rows.groupby(list(rows.columns)).size().reset_index(name="calls").sort_values("calls", kind="stable")
    heads, kv_heads, size = (int(kinds[name].iloc[-1]) for name in ("heads", "kv_heads", "head_dim"))
    return heads, kv_heads if kv_heads > 0 else None, size if size > 0 else None


def _cache(trace: Trace, names: pd.Series) -> tuple[int | None, int | None, str | None]:
    """Key heads, their size and the data type of the cache, from what is written to it."""
    for name, sig in _calls(trace, re.compile("cache")):
        model = op_models.find(name)
        if model is None or model.role != "kv_write":
            continue
        rows, pool = named(model, sig, "src_a"), named(model, sig, "dst_a")
        if rows is None or pool is None or model.at.get("dst_a") == model.at.get("dst_b"):
            continue
        word = pool.dtype.word or ("fp8" if pool.dtype.bytes == 1 else None)  # fp8 caches are recorded as bytes
        if len(rows.shape) == 3:
            return rows.shape[1], rows.shape[2], word
        return None, None, word
    for code in names.unique():
        if found := _CACHE_NAME.search(trace.text(int(code))[:_MOST_CHARACTERS]):
            return None, None, _CACHE_WORDS.get(found[1].strip())
    return None, None, None


def _stored(trace: Trace, work: pd.DataFrame, names: pd.Series, durations: pd.Series) -> pd.DataFrame:
    """The kinds of matrix kernels with their time, and whether they multiply `packed` or `plain` weights."""
    matrix = (work["category"].isin(MATRIX_CATEGORIES) & ~work["role"].isin(HELPER_ROLES)).to_numpy()
    rows = pd.DataFrame({
        "name": names.to_numpy()[matrix], "ns": durations.to_numpy(np.float64)[matrix],
        **{column: work[column].to_numpy()[matrix].astype(object) for column in ("category", "role", "dtype")},
    })  # fmt: skip
    kinds = rows.groupby(["name", "category", "role", "dtype"], dropna=False)["ns"].sum().reset_index()
    texts = [trace.text(int(name))[:_MOST_CHARACTERS] for name in kinds["name"]]
    packed = [
        dtype in _PACKED or bool(_PACKED_ROLE.search(str(role)) or _PACKED_NAME.search(text))
        for text, role, dtype in zip(texts, kinds["role"], kinds["dtype"], strict=True)
    ]
    plain = kinds["dtype"].isin(_PLAIN).to_numpy() & ~np.array(packed, np.bool_)
    return kinds.assign(packed=np.array(packed, np.bool_), plain=plain)


def _computed_in(kinds: pd.DataFrame) -> str | None:
    """The data type that nearly all matrix kernels compute in; None where they do not say.

    Quantised weights may be multiplied in fp32 whatever the activations are.
    """
    kinds = kinds[~(kinds["packed"] & kinds["dtype"].isin(("fp32", "tf32")))]
    time = kinds["ns"].groupby(kinds["dtype"].replace("tf32", "fp32")).sum().sort_values()
    mostly = len(time) and time.iloc[-1] >= _NEARLY_ALL * kinds["ns"].sum() and time.index[-1] in _PLAIN
    return str(time.index[-1]) if mostly else None


def _share(kinds: pd.DataFrame, column: str) -> float:
    total = float(kinds["ns"].sum())
    return float(kinds.loc[kinds[column], "ns"].sum()) / total if total else 0.0
