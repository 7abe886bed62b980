"""The work of every activity row: op models evaluated once per distinct call, then given to the kernels that did it.

Which of an op's kernels did its work is told by `work.doers`; the others have unknown work, for what a helper moves
(partial sums) is not recorded, except where `work.splitk` can tell. Kernels without an op take the work of their
siblings, see `work.siblings`. Nothing is counted twice.

On a CPU only kernel ops have work; a piece of an op's own time has none. Copies between host and device cross PCIe, not
the device's memory, so their bytes are unknown here; copies within the device read and write each byte. What kernels
that communicate move crosses links, so theirs are unknown as well: their category says that the time is communication.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.work.calls import works_of_calls
from traceanalyzer.analysis.work.collectives import name_collectives
from traceanalyzer.analysis.work.columns import Floats, Ints, columns, numbers, objects, spread
from traceanalyzer.analysis.work.doers import NEUTRAL, Names, doers, names_of
from traceanalyzer.analysis.work.dtypes import recorded
from traceanalyzer.analysis.work.gathers import gathered
from traceanalyzer.analysis.work.opwork import OpWork
from traceanalyzer.analysis.work.siblings import from_siblings
from traceanalyzer.analysis.work.splitk import split_k_sums
from traceanalyzer.trace.tables import KERNEL, MEMCPY, MEMSET, MISSING, Trace

TENSOR_DTYPES = frozenset({"fp16", "bf16", "tf32", "fp8", "int8", "fp4", "int4"})
SOURCES = ("none", "shapes", "siblings", "grid")

_WITHIN_DEVICE = re.compile(r"DtoD|DeviceToDevice|D2D")
_OPAQUE = re.compile(r"OpaqueType<(\d+)u?>|CatArray\w*<([\w: ]+?)\s*,")


def measure(trace: Trace, activity: Activity, classes: pd.DataFrame) -> pd.DataFrame:
    """One row of work per activity row, in its order.

    Args:
        trace: what was read.
        activity: what ran.
        classes: kernel classes indexed by name code, with columns category, role, tensor_core ("yes", "no", "maybe")
            and dtype.

    Returns:
        Columns flops, bytes, weight_bytes, kv_bytes, bytes_min, weight_bytes_min, weight_bytes_max (f64, NaN unknown,
        the last three bounds where `OpWork` has them); dtype, category, role (object); source (object: "shapes" of its
        op, "siblings", "grid", "none"); tensor_core i8 (1, 0, -1 unknown); m, n, k, batch, q_len, kv_len, heads,
        kv_heads, head_dim (i64, MISSING unknown); estimated (bool: rests on an assumption, see `OpWork`).
    """
    table = activity.table
    found, works = works_of_calls(trace, activity)
    names = names_of(table, classes, activity.on_cpu)
    main, share = doers(table, found, works, names, activity.on_cpu)
    done = np.where(main, found, MISSING)
    lent = from_siblings(trace, activity, names, works, done, share)
    borrowed = lent >= 0
    done, share, main = np.where(borrowed, lent, done), np.where(borrowed, 1.0, share), main | borrowed
    out = columns(works, done, share)
    replace = main & (names.has_category(NEUTRAL) | activity.on_cpu)
    for column in ("category", "role"):
        by_work = spread([getattr(w, column) for w in works] + ["other"], done)
        out[column] = objects(np.where(replace, by_work, spread(getattr(names, column), names.of)))
    name_collectives(trace, table, names, out)
    _untyped(trace, table, works, done, share, out)
    _transfers(trace, table, out)
    split_k_sums(trace, table, works, done, share, out)
    by_grid = gathered(trace, table, done, out)
    out["tensor_core"], out["dtype"] = _units(works, done, names, out, activity.on_cpu)
    known = out["bytes"].notna() | (out["flops"].notna() & (table["kind"] == KERNEL))
    source = np.select([~known, by_grid, borrowed], [SOURCES.index(word) for word in ("none", "grid", "siblings")], 1)
    out["source"] = objects(spread(SOURCES, source))
    return out


def _untyped(
    trace: Trace, table: pd.DataFrame, works: Sequence[OpWork], done: Ints, share: Floats, out: pd.DataFrame
) -> None:
    """Bytes of ops that record no element size, where the kernel's name tells it."""
    elements = numbers([w.untyped_elements for w in works], done)
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
    works: Sequence[OpWork], done: Ints, names: Names, out: pd.DataFrame, on_cpu: bool
) -> tuple[npt.NDArray[np.int8], pd.Series]:
    """Whether each row ran on tensor cores (1, 0, -1) and its compute dtype: the op's first, then the kernel's."""
    words = [None, *sorted({w for w in (*(w.dtype for w in works), *names.dtype, "fp32", "tf32", "fp64") if w})]
    fp32, tf32, fp64 = (words.index(w) for w in ("fp32", "tf32", "fp64"))
    by_op = np.array([words.index(w.dtype) for w in works] + [0], np.int8)[done]
    by_name = np.array([words.index(w) for w in names.dtype], np.int8)[names.of]
    dtype = np.where(by_op > 0, by_op, by_name)
    dtype[(dtype == fp32) & (by_name == tf32)] = tf32
    text = objects(spread(words, dtype))
    if on_cpu:
        return np.zeros(len(out), np.int8), text
    said = np.array([{"yes": 1, "no": 0}.get(word, -1) for word in names.tensor_core], np.int8)[names.of]
    rows = np.maximum(out["m"].to_numpy(np.int64), out["q_len"].to_numpy(np.int64))
    capable = np.array([word in TENSOR_DTYPES for word in words], np.bool_)[dtype] & (rows > 1)
    resolved = np.where(capable, 1, np.where((dtype == fp32) | (dtype == fp64), 0, -1))
    return np.where(said >= 0, said, resolved).astype(np.int8), text
