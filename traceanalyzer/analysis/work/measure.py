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
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.cpu import kernel_ops
from traceanalyzer.analysis.shapes import signature
from traceanalyzer.analysis.work.dtypes import recorded
from traceanalyzer.analysis.work.opwork import OpWork
from traceanalyzer.analysis.work.registry import op_work
from traceanalyzer.trace.tables import KERNEL, MEMCPY, MEMSET, MISSING, Trace

FLOATS = ("flops", "bytes", "weight_bytes", "kv_bytes")
INTEGERS = ("m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")
HELPER_ROLES = frozenset({"splitk-epilogue", "split-combine", "routing", "metadata"})
TENSOR_DTYPES = frozenset({"fp16", "bf16", "tf32", "fp8", "int8", "fp4", "int4"})

_MATRIX = frozenset({"gemm", "gemv", "moe"})
_NEUTRAL = frozenset({"other", "fused_triton"})
_NOT_COMPUTE = frozenset({"memcpy", "memset", "comm"})
_WITHIN_DEVICE = re.compile(r"DtoD|DeviceToDevice|D2D")
_OPAQUE = re.compile(r"OpaqueType<(\d+)u?>|CatArray\w*<([\w: ]+?)\s*,")

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Objects = npt.NDArray[np.object_]


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
    frame = _classes(table, classes, activity.on_cpu)
    main, share = _main_kernels(table, found, models, frame, activity.on_cpu)
    done = np.where(main, found, MISSING)
    out = _columns(models, done, share)
    for column in ("category", "role"):
        named = np.array([getattr(w, column) for w in models] + ["other"], object)[done]
        replace = main & (frame["category"].isin(_NEUTRAL).to_numpy() | activity.on_cpu)
        out[column] = _objects(np.where(replace, named, frame[column].to_numpy(object)))
    _untyped(trace, table, models, done, share, out)
    _transfers(trace, table, out)
    unit, dtype = _units(frame, out, activity.on_cpu)
    out["tensor_core"], out["dtype"] = unit, _objects(dtype)
    known = out["bytes"].notna() | (out["flops"].notna() & (table["kind"] == KERNEL))
    out["source"] = _objects(np.where(known, "shapes", "none"))
    return out.drop(columns="op_dtype")


def _objects(values: npt.NDArray[Any]) -> pd.Series:
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
    calls = trace.ops.iloc[op[rows]][["name", "dims", "types", "concrete", "strides"]]
    codes = calls.groupby(list(calls.columns), sort=False).ngroup().to_numpy(np.int64)
    works = [_evaluate(trace, key) for key in calls.drop_duplicates().to_numpy(np.int64).tolist()]
    kept = [w for w in works if w is not None]
    number = np.full(len(works) + 1, MISSING, np.int64)
    number[[i for i, w in enumerate(works) if w is not None]] = np.arange(len(kept))
    found = np.full(len(table), MISSING, np.int64)
    found[rows] = number[codes]
    return found, kept


def _evaluate(trace: Trace, key: list[int]) -> OpWork | None:
    name, *arguments = (trace.text(code) for code in key)
    return op_work(name, signature(*arguments))


def _classes(table: pd.DataFrame, classes: pd.DataFrame, on_cpu: bool) -> pd.DataFrame:
    """The class of every row's kernel; a name without one, and every op of a CPU, is "other"."""
    columns = ["category", "role", "tensor_core", "dtype"]
    if on_cpu:
        frame = pd.DataFrame(index=table.index, columns=columns, dtype=object)
    else:
        frame = classes[columns].astype(object).reindex(table["name"].to_numpy()).reset_index(drop=True)
    return frame.assign(
        category=frame["category"].fillna("other"),
        role=frame["role"].fillna("other"),
        tensor_core=frame["tensor_core"].fillna("no" if on_cpu else "maybe"),
    )


def _main_kernels(
    table: pd.DataFrame, found: Ints, models: list[OpWork], frame: pd.DataFrame, on_cpu: bool
) -> tuple[Bools, Floats]:
    """Which rows do their op's work, and each one's share of it."""
    rank = _rank(found, models, frame, on_cpu)
    rows = np.flatnonzero((found >= 0) & (rank >= 0))
    picked = pd.DataFrame({
        "row": rows,
        "op": table["op"].to_numpy(np.int64)[rows],
        "name": table["name"].to_numpy(np.int64)[rows],
        "rank": rank[rows],
        "time": table["duration_ns"].to_numpy(np.float64)[rows],
    })  # fmt: skip
    total = picked.groupby(["op", "name", "rank"])["time"].sum().reset_index()
    best = total.sort_values(["op", "rank", "time"], kind="stable").drop_duplicates("op", keep="last")
    chosen = picked.merge(best.rename(columns={"time": "all"}), on=["op", "name", "rank"])
    count = chosen.groupby("op")["row"].transform("size")
    portion = np.where(chosen["all"] > 0, chosen["time"] / chosen["all"].where(chosen["all"] > 0, 1.0), 1.0 / count)
    main = np.zeros(len(table), np.bool_)
    share = np.zeros(len(table), np.float64)
    main[chosen["row"].to_numpy()] = True
    share[chosen["row"].to_numpy()] = portion
    return main, share


def _rank(found: Ints, models: list[OpWork], frame: pd.DataFrame, on_cpu: bool) -> Ints:
    """How well each row's kernel fits its op's model: 1 its own category, 0 possible, -1 not."""
    if on_cpu:
        return np.ones(len(found), np.int64)
    category = frame["category"].to_numpy(object)
    wanted = np.array([w.category for w in models] + [""], object)[found]
    matrix = np.isin(wanted.astype(str), list(_MATRIX))
    strict = matrix | (wanted == "attention")
    fits = (category == wanted) | (matrix & np.isin(category.astype(str), list(_MATRIX)))
    neutral = np.isin(category.astype(str), list(_NEUTRAL))
    possible = np.where(strict, neutral, ~np.isin(category.astype(str), list(_NOT_COMPUTE)))
    rank = np.where(fits, 1, np.where(possible, 0, -1))
    helper = np.isin(frame["role"].to_numpy(object).astype(str), list(HELPER_ROLES))
    return np.where(helper, -1, rank).astype(np.int64)


def _columns(models: list[OpWork], done: Ints, share: Floats) -> pd.DataFrame:
    out = pd.DataFrame(index=pd.RangeIndex(len(done)))
    for name in FLOATS:
        values = [getattr(w, name) for w in models]
        column = np.array([np.nan if v is None else v for v in values] + [np.nan], np.float64)
        out[name] = column[done] * share
    for name in INTEGERS:
        numbers = [getattr(w, name) for w in models]
        out[name] = np.array([MISSING if v is None else v for v in numbers] + [MISSING], np.int64)[done]
    out["op_dtype"] = _objects(np.array([w.dtype for w in models] + [None], object)[done])
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


def _units(frame: pd.DataFrame, out: pd.DataFrame, on_cpu: bool) -> tuple[npt.NDArray[np.int8], Objects]:
    """Whether each row ran on tensor cores (1, 0, -1) and its compute dtype: the op's first, then the kernel's."""
    by_op, by_name = out["op_dtype"].to_numpy(object), frame["dtype"].to_numpy(object)
    dtype = np.where(pd.notna(by_op), by_op, by_name)
    dtype[pd.isna(dtype)] = None
    dtype[(dtype == "fp32") & (by_name == "tf32")] = "tf32"
    if on_cpu:
        return np.zeros(len(out), np.int8), dtype
    rule = frame["tensor_core"].to_numpy(object)
    rows = np.maximum(out["m"].to_numpy(np.int64), out["q_len"].to_numpy(np.int64))
    capable = np.isin(dtype.astype(str), list(TENSOR_DTYPES)) & (rows > 1)
    resolved = np.where(capable, 1, np.where((dtype == "fp32") | (dtype == "fp64"), 0, -1))
    return np.where(rule == "yes", 1, np.where(rule == "no", 0, resolved)).astype(np.int8), dtype
