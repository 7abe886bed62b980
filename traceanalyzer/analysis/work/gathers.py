"""How much an indexing op takes from its table, where only the grid of its kernel tells it.

`x[index]` (aten::index) takes a list of indices with gaps, of which the profiler records nothing. PyTorch's kernels
start one block per taken row and slice of it (vectorized_gather_kernel: grid x counts the rows), or one per so many
elements taken (index_elementwise_kernel<threads, per thread>: grid x is the elements over their product, rounded up).

What could be wrong: the first counts whole rows of the first dimension, which holds for one index over it; the second
leaves a range, in which the number of rows that fits is taken. It is exact where only one fits, else an estimate.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from traceanalyzer.analysis.shapes import numel, signature
from traceanalyzer.analysis.work.columns import Bools, Ints
from traceanalyzer.analysis.work.dtypes import INT64
from traceanalyzer.analysis.work.opwork import Operand, named
from traceanalyzer.catalog import op_models
from traceanalyzer.trace.tables import Trace

_BY_ROW = re.compile(r"vectorized_gather_kernel<")
_BY_ELEMENT = re.compile(r"index_elementwise_kernel<(\d+), (\d+),")


def gathered(trace: Trace, table: pd.DataFrame, done: Ints, out: pd.DataFrame) -> Bools:
    """Fill the bytes of kernels of indexing ops, and say which rows they are.

    Args:
        trace: what was read.
        table: `Activity.table`.
        done: per row the index of the work it did, MISSING for none.
        out: the work table to fill, aligned to `table`.
    """
    filled = np.zeros(len(table), np.bool_)
    gathers = _gathers(trace)
    op, kernel = table["op"].to_numpy(np.int64), table["kernel"].to_numpy(np.int64)
    rows = np.flatnonzero((done >= 0) & (op >= 0) & (kernel >= 0) & out["bytes"].isna().to_numpy())
    rows = rows[np.isin(trace.ops["name"].to_numpy(np.int64)[op[rows]], gathers)] if len(gathers) else rows[:0]
    if not len(rows):
        return filled
    called = trace.ops[["name", "dims", "types"]].to_numpy(np.int64)[op[rows]]
    ran = np.column_stack([called, table["name"].to_numpy(np.int64)[rows], trace.kernels["grid_x"].iloc[kernel[rows]]])
    distinct, at = np.unique(ran.astype(np.int64), axis=0, return_inverse=True)
    found = [_taken(trace, *key) for key in distinct.tolist()]
    moved, exact = np.array([f[0] for f in found])[at.ravel()], np.array([f[1] for f in found])[at.ravel()]
    rows, moved, exact = rows[~np.isnan(moved)], moved[~np.isnan(moved)], exact[~np.isnan(moved)]
    size, estimated = out["bytes"].to_numpy(copy=True), out["estimated"].to_numpy(copy=True)
    size[rows], estimated[rows], filled[rows] = moved, ~exact, True
    out["bytes"], out["estimated"] = size, estimated
    return filled


def _gathers(trace: Trace) -> list[int]:
    """The codes of ops that take a list of indices from a table."""
    models = {code: op_models.find(trace.text(code)) for code in trace.ops["name"].unique().tolist()}
    return [code for code, model in models.items() if model and model.kind == "gather" and "index_list" in model.at]


def _taken(trace: Trace, op: int, dims: int, types: int, kernel: int, grid: int) -> tuple[float, bool]:
    """(bytes, whether exact) of one such kernel; NaN where grid or name do not tell."""
    sig = signature(trace.text(dims), trace.text(types), "", "")
    model = op_models.find(trace.text(op), len(sig.dims))
    source = named(model, sig, "table") if model else None
    if source is None or not source.shape or grid <= 0 or min(source.shape) <= 0:
        return np.nan, False
    name = trace.text(kernel)
    if _BY_ROW.search(name):
        return _bytes(source, numel(source.shape[1:]), grid), True
    threads = _BY_ELEMENT.search(name)
    if threads is None:
        return np.nan, False
    each, width = int(threads[1]) * int(threads[2]), source.shape[-1]
    most, fewest = grid * each // width, (grid - 1) * each // width + 1
    return (_bytes(source, width, most), most == fewest) if most >= fewest else (np.nan, False)


def _bytes(source: Operand, width: int, count: int) -> float:
    """Rows of some width read and written, and an index read for each."""
    return float(count * (2 * width * source.dtype.bytes + INT64.bytes))
