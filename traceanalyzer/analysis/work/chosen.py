"""How many experts a token takes, by what the calls within an op of experts are given or allocate.

Routers write their choice into a table with a row per token and a column per chosen expert: integers, (T, k). What
could be wrong: another table of integers of that shape; so all tables of the call that begin with T have to agree, and
a table with more columns than `_MOST` is none.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from traceanalyzer.analysis.shapes import signature
from traceanalyzer.analysis.work.columns import Ints, distinct
from traceanalyzer.analysis.work.dtypes import INT, Dtype, scalar_type
from traceanalyzer.analysis.work.opwork import integers, operand
from traceanalyzer.trace.tables import MISSING, Trace

_ALLOCATES = "aten::empty"
_MOST = 64


def chosen_experts(trace: Trace, ops: Ints) -> Ints:
    """The experts per token of each op (ascending rows of `Trace.ops`); MISSING where nothing or several tell.

    The first argument of such an op holds the tokens in its rows.
    """
    children = np.flatnonzero(np.isin(trace.ops["parent"].to_numpy(np.int64), ops))
    texts = [trace.ops[column].to_numpy(np.int64) for column in ("name", "dims", "types", "concrete")]
    shapes, at = np.unique(texts[1][ops], return_inverse=True)
    tokens = np.array([_rows(trace, dims) for dims in shapes.tolist()], np.int64)[at.ravel()]
    number, first = distinct([column[children] for column in texts])
    tables = [
        _table(trace, *call) for call in zip(*(column[children][first].tolist() for column in texts), strict=True)
    ]
    owner = np.searchsorted(ops, trace.ops["parent"].to_numpy(np.int64)[children])
    shape = np.array(tables, np.int64).reshape(-1, 2)[number]
    fits = (shape[:, 0] >= 0) & (shape[:, 0] == tokens[owner])
    told = pd.DataFrame({"op": owner[fits], "chosen": shape[fits, 1]}).groupby("op")["chosen"].agg(["min", "max"])
    told = told[told["min"] == told["max"]]
    chosen = np.full(len(ops), MISSING, np.int64)
    chosen[told.index.to_numpy(np.int64)] = told["min"].to_numpy(np.int64)
    return chosen


def _rows(trace: Trace, dims: int) -> int:
    shape = signature(trace.text(dims), "", "", "").tensor(0)
    return shape[0] if shape else MISSING


def _table(trace: Trace, name: int, dims: int, types: int, concrete: int) -> tuple[int, int]:
    """Rows and columns of the table of integers that a call is given or allocates."""
    sig = signature(trace.text(dims), trace.text(types), trace.text(concrete), "")
    shapes: list[tuple[tuple[int, ...] | None, Dtype | None]] = []
    if trace.text(name) == _ALLOCATES:
        shapes.append((integers(sig.value(0)), scalar_type(sig.value(1))))
    else:
        found = [operand(sig, index) for index in range(len(sig.dims))]
        shapes.extend((one.shape, one.dtype) for one in found if one)
    for shape, dtype in shapes:
        integer = dtype is not None and dtype.category == INT and dtype.bytes >= 4
        if integer and shape is not None and len(shape) == 2 and 1 <= shape[1] <= _MOST:
            return shape[0], shape[1]
    return MISSING, MISSING
