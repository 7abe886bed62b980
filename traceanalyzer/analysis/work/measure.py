"""The work of every activity row: op models evaluated once per distinct call, then given to the kernels that did it.

One op may launch several kernels. Its work goes to its main kernels: those of the name that took longest among the
kernels of the model's category (helpers such as a split-K epilogue or a combine pass left out); several of that name
share the work in proportion to their time. The op's other kernels have unknown work: what a helper moves (partial sums)
is not recorded, and nothing is counted twice. Where the kernels that were recorded are all helpers or plainly something
else (the main one fell outside the window), none gets the work.

On a CPU only kernel ops have work; a piece of an op's own time has none. Copies between host and device cross PCIe, not
the device's memory, so their bytes are unknown here; copies within the device read and write each byte.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.cpu import kernel_ops
from traceanalyzer.analysis.kernels import HELPER_ROLES, MATRIX_CATEGORIES
from traceanalyzer.analysis.shapes import signature
from traceanalyzer.analysis.work.dtypes import recorded
from traceanalyzer.analysis.work.opwork import OpWork
from traceanalyzer.analysis.work.registry import op_work
from traceanalyzer.trace.tables import KERNEL, MEMCPY, MEMSET, MISSING, Trace

FLOATS = ("flops", "bytes", "weight_bytes", "kv_bytes")
INTEGERS = ("m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")
TENSOR_DTYPES = frozenset({"fp16", "bf16", "tf32", "fp8", "int8", "fp4", "int4"})

_NEUTRAL = frozenset({"other", "fused_triton"})
_NOT_COMPUTE = frozenset({"memcpy", "memset", "comm"})
_WITHIN_DEVICE = re.compile(r"DtoD|DeviceToDevice|D2D")
_OPAQUE = re.compile(r"OpaqueType<(\d+)u?>|CatArray\w*<([\w: ]+?)\s*,")

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Objects = npt.NDArray[np.object_]


@dataclass(frozen=True)
class _Classes:
    """What kernel names say. `of` gives each activity row's entry in the other columns, whose last is for no class."""

    of: Ints
    category: Sequence[str]
    role: Sequence[str]
    tensor_core: Sequence[str]
    dtype: Sequence[str | None]


def measure(trace: Trace, activity: Activity, classes: pd.DataFrame) -> pd.DataFrame:
    """One row of work per activity row, in its order.

    Args:
        trace: what was read.
        activity: what ran.
        classes: kernel classes indexed by name code, with columns category, role, tensor_core ("yes", "no", "maybe")
            and dtype.

    Returns:
        Columns flops, bytes, weight_bytes, kv_bytes (f64, NaN unknown); dtype, category, role, source (object);
        tensor_core i8 (1, 0, -1 unknown); m, n, k, batch, q_len, kv_len, heads, kv_heads, head_dim (i64, MISSING
        unknown); estimated (bool: sequence lengths were assumed equal).
    """
    table = activity.table
    found, models = _models(trace, activity)
    named = _classes(table, classes, activity.on_cpu)
    main, share = _main_kernels(table, found, _rank(found, models, named, activity.on_cpu))
    done = np.where(main, found, MISSING)
    out = _columns(models, done, share)
    replace = main & (np.array([c in _NEUTRAL for c in named.category], np.bool_)[named.of] | activity.on_cpu)
    for column in ("category", "role"):
        by_work = _spread([getattr(w, column) for w in models] + ["other"], done)
        out[column] = _objects(np.where(replace, by_work, _spread(getattr(named, column), named.of)))
    _untyped(trace, table, models, done, share, out)
    _transfers(trace, table, out)
    out["tensor_core"], out["dtype"] = _units(models, done, named, out, activity.on_cpu)
    known = out["bytes"].notna() | (out["flops"].notna() & (table["kind"] == KERNEL))
    out["source"] = _objects(_spread(["none", "shapes"], known.astype(np.int64).to_numpy()))
    return out


def _spread(values: Sequence[object], of: npt.NDArray[np.integer[Any]]) -> Objects:
    """One value per row, by reference: a column of text of its own would cost its width in every row."""
    column = np.empty(len(values), np.object_)
    column[:] = values
    spread: Objects = column[of]
    return spread


def _objects(values: Objects) -> pd.Series:
    """A column of plain objects: pandas 3 would make a string column of it, and NaN of None."""
    return pd.Series(values, dtype=object)


def _models(trace: Trace, activity: Activity) -> tuple[Ints, list[OpWork]]:
    """Per row an index into the distinct works, MISSING where there is none."""
    table = activity.table
    op = table["op"].to_numpy(np.int64)
    usable = (op >= 0) & (table["kind"].to_numpy() == KERNEL)
    if activity.on_cpu:
        usable &= kernel_ops(trace)[op]
    rows = np.flatnonzero(usable)
    number, first = _distinct(trace.ops, op[rows])
    calls = trace.ops[["name", "dims", "types", "concrete", "strides"]].iloc[op[rows[first]]]
    works = [_evaluate(trace, key) for key in calls.to_numpy(np.int64).tolist()]
    kept = [w for w in works if w is not None]
    index = np.full(len(works), MISSING, np.int64)
    index[[i for i, w in enumerate(works) if w is not None]] = np.arange(len(kept))
    found = np.full(len(table), MISSING, np.int64)
    found[rows] = index[number]
    return found, kept


def _distinct(ops: pd.DataFrame, rows: Ints) -> tuple[Ints, Ints]:
    """Number the distinct calls among some rows of ops: (number of each row, first place of each number)."""
    number = np.zeros(len(rows), np.int64)
    for column in ("name", "dims", "types", "concrete", "strides"):
        codes = ops[column].to_numpy(np.int64)[rows]
        number, _ = pd.factorize(number * (int(codes.max(initial=0)) + 2) + codes + 1)
    first = np.flatnonzero(~pd.Series(number).duplicated().to_numpy())
    return number, first


def _evaluate(trace: Trace, key: list[int]) -> OpWork | None:
    name, *arguments = (trace.text(code) for code in key)
    return op_work(name, signature(*arguments))


def _classes(table: pd.DataFrame, classes: pd.DataFrame, on_cpu: bool) -> _Classes:
    """The class of every row's kernel; a name without one, and every op of a CPU, is "other"."""
    if on_cpu:
        return _Classes(np.zeros(len(table), np.int64), ["other"], ["other"], ["no"], [None])
    of = classes.index.get_indexer(pd.Index(table["name"].to_numpy())).astype(np.int64)  # -1, so the last, for none
    return _Classes(
        of,
        [*classes["category"], "other"],
        [*classes["role"], "other"],
        [*classes["tensor_core"], "maybe"],
        [*classes["dtype"], None],
    )


def _main_kernels(table: pd.DataFrame, found: Ints, rank: npt.NDArray[np.int8]) -> tuple[Bools, Floats]:
    """Which rows do their op's work, and each one's share of it."""
    main, share = np.zeros(len(table), np.bool_), np.zeros(len(table), np.float64)
    op = table["op"].to_numpy(np.int64)
    rows = np.flatnonzero((found >= 0) & (rank >= 0))
    alone = np.bincount(op[rows])[op[rows]] == 1 if len(rows) else np.zeros(0, np.bool_)
    main[rows[alone]], share[rows[alone]] = True, 1.0
    rows = rows[~alone]
    picked = pd.DataFrame({
        "row": rows,
        "op": op[rows],
        "name": table["name"].to_numpy(np.int64)[rows],
        "rank": rank[rows],
        "time": table["duration_ns"].to_numpy(np.float64)[rows],
    })  # fmt: skip
    total = picked.groupby(["op", "name", "rank"])["time"].sum().reset_index()
    best = total.sort_values(["op", "rank", "time"], kind="stable").drop_duplicates("op", keep="last")
    chosen = picked.merge(best.rename(columns={"time": "all"}), on=["op", "name", "rank"])
    count = chosen.groupby("op")["row"].transform("size")
    portion = np.where(chosen["all"] > 0, chosen["time"] / chosen["all"].where(chosen["all"] > 0, 1.0), 1.0 / count)
    main[chosen["row"].to_numpy()] = True
    share[chosen["row"].to_numpy()] = portion
    return main, share


def _rank(found: Ints, models: list[OpWork], named: _Classes, on_cpu: bool) -> npt.NDArray[np.int8]:
    """How well each row's kernel fits its op's model, see `_fit`."""
    if on_cpu:
        return np.ones(len(found), np.int8)
    names = sorted({*named.category, *(w.category for w in models)})
    helper = len(names)
    fits = np.full((helper + 1, helper), -1, np.int8)
    fits[:helper] = [[_fit(name, wanted) for wanted in names] for name in names]
    ran = [
        helper if role in HELPER_ROLES else names.index(name)
        for name, role in zip(named.category, named.role, strict=True)
    ]
    wanted = [names.index(w.category) for w in models] + [0]
    rank: npt.NDArray[np.int8] = fits[np.array(ran)[named.of], np.array(wanted)[found]]
    return rank


def _fit(category: str, wanted: str) -> int:
    """How well a kernel of some category fits work of the wanted one: 1 its own, 0 possible, -1 not."""
    matrix = wanted in MATRIX_CATEGORIES
    if category == wanted or (matrix and category in MATRIX_CATEGORIES):
        return 1
    strict = matrix or wanted == "attention"
    possible = category in _NEUTRAL if strict else category not in _NOT_COMPUTE
    return 0 if possible else -1


def _columns(models: list[OpWork], done: Ints, share: Floats) -> pd.DataFrame:
    out = pd.DataFrame(index=pd.RangeIndex(len(done)))
    for name in FLOATS:
        values = [getattr(w, name) for w in models]
        column = np.array([np.nan if v is None else v for v in values] + [np.nan], np.float64)
        out[name] = column[done] * share
    for name in INTEGERS:
        numbers = [getattr(w, name) for w in models]
        out[name] = np.array([MISSING if v is None else v for v in numbers] + [MISSING], np.int64)[done]
    out["estimated"] = np.array([w.estimated for w in models] + [False], np.bool_)[done]
    return out


def _untyped(
    trace: Trace, table: pd.DataFrame, models: list[OpWork], done: Ints, share: Floats, out: pd.DataFrame
) -> None:
    """Bytes of ops that record no element size, where the kernel's name tells it."""
    counts = [w.untyped_elements for w in models]
    elements = np.array([np.nan if c is None else c for c in counts] + [np.nan], np.float64)[done]
    rows = np.flatnonzero(~np.isnan(elements))
    name = table["name"].to_numpy(np.int64)[rows]
    sizes: Mapping[int, float] = {int(code): _element_size(trace.text(int(code))) for code in np.unique(name)}
    moved = out["bytes"].to_numpy(np.float64, copy=True)
    moved[rows] = elements[rows] * share[rows] * np.array([sizes[int(code)] for code in name], np.float64)
    out["bytes"] = moved


def _element_size(kernel: str) -> float:
    hit = _OPAQUE.search(kernel)
    if hit is None:
        return np.nan
    if hit.group(1):
        return float(hit.group(1))
    dtype = recorded(hit.group(2))
    return float(dtype.bytes) if dtype else np.nan


def _transfers(trace: Trace, table: pd.DataFrame, out: pd.DataFrame) -> None:
    """Copies and fills by the DMA engines: no FLOPs; bytes where they touch the device's memory only."""
    kind, kernel = table["kind"].to_numpy(), table["kernel"].to_numpy(np.int64)
    flops, moved = out["flops"].to_numpy(np.float64, copy=True), out["bytes"].to_numpy(np.float64, copy=True)
    rows = np.flatnonzero((kind != KERNEL) & (kernel >= 0))
    size = trace.kernels["bytes"].to_numpy(np.float64)[kernel[rows]]
    size[size < 0] = np.nan
    within = np.array([_WITHIN_DEVICE.search(text) is not None for text in trace.strings] or [False], np.bool_)
    copies = np.where(within[table["name"].to_numpy(np.int64)[rows]], 2.0 * size, np.nan)
    flops[rows] = 0.0
    moved[rows] = np.where(kind[rows] == MEMSET, size, np.where(kind[rows] == MEMCPY, copies, np.nan))
    out["flops"], out["bytes"] = flops, moved


def _units(
    models: list[OpWork], done: Ints, named: _Classes, out: pd.DataFrame, on_cpu: bool
) -> tuple[npt.NDArray[np.int8], pd.Series]:
    """Whether each row ran on tensor cores (1, 0, -1) and its compute dtype: the op's first, then the kernel's."""
    words = [None, *sorted({w for w in (*(w.dtype for w in models), *named.dtype, "fp32", "tf32", "fp64") if w})]
    fp32, tf32, fp64 = (words.index(w) for w in ("fp32", "tf32", "fp64"))
    by_op = np.array([words.index(w.dtype) for w in models] + [0], np.int8)[done]
    by_name = np.array([words.index(w) for w in named.dtype], np.int8)[named.of]
    dtype = np.where(by_op > 0, by_op, by_name)
    dtype[(dtype == fp32) & (by_name == tf32)] = tf32
    text = _objects(_spread(words, dtype))
    if on_cpu:
        return np.zeros(len(out), np.int8), text
    said = np.array([{"yes": 1, "no": 0}.get(word, -1) for word in named.tensor_core], np.int8)[named.of]
    rows = np.maximum(out["m"].to_numpy(np.int64), out["q_len"].to_numpy(np.int64))
    capable = np.array([word in TENSOR_DTYPES for word in words], np.bool_)[dtype] & (rows > 1)
    resolved = np.where(capable, 1, np.where((dtype == fp32) | (dtype == fp64), 0, -1))
    return np.where(said >= 0, said, resolved).astype(np.int8), text
