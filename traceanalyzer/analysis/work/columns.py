"""The columns of the work table: one row per activity row, filled from the distinct works that the rows point to.

What could be wrong: a row points to its work by index, and the last entry of every column stands for "none"; an index
from another list of works would give another op's figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.work.opwork import OpWork
from traceanalyzer.trace.tables import MISSING

FLOATS = ("flops", "bytes", "weight_bytes", "kv_bytes", "bytes_min", "weight_bytes_min", "weight_bytes_max")
INTEGERS = ("m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Objects = npt.NDArray[np.object_]


def spread(values: Sequence[object], of: npt.NDArray[np.integer[Any]]) -> Objects:
    """One value per row, by reference: a column of text of its own would cost its width in every row."""
    column = np.empty(len(values), np.object_)
    column[:] = values
    spread: Objects = column[of]
    return spread


def objects(values: Objects) -> pd.Series:
    """A column of plain objects: pandas 3 would make a string column of it, and NaN of None."""
    return pd.Series(values, dtype=object)


def columns(works: Sequence[OpWork], done: Ints, share: Floats) -> pd.DataFrame:
    """The figures of every row.

    Args:
        works: the distinct works.
        done: per row the index of the work it did, MISSING for none.
        share: per row its share of that work, 0..1.
    """
    out = pd.DataFrame(index=pd.RangeIndex(len(done)))
    for name in FLOATS:
        out[name] = numbers([getattr(w, name) for w in works], done) * share
    for name in INTEGERS:
        values = [getattr(w, name) for w in works]
        out[name] = np.array([MISSING if v is None else v for v in values] + [MISSING], np.int64)[done]
    out["estimated"] = np.array([w.estimated for w in works] + [False], np.bool_)[done]
    return out


def numbers(values: Sequence[float | None], of: Ints) -> Floats:
    """One figure per row, NaN where it is unknown or the row has none."""
    found: Floats = np.array([np.nan if v is None else v for v in values] + [np.nan], np.float64)[of]
    return found


def distinct(keys: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Number the distinct rows of some columns of codes: (number of each row, first place of each number).

    Codes are not negative, but for MISSING.
    """
    number = np.zeros(len(keys[0]), np.int64)
    for codes in keys:
        number, _ = pd.factorize(number * (int(codes.max(initial=0)) + 2) + codes + 1)
    return number, np.flatnonzero(~pd.Series(number).duplicated().to_numpy())


def put(
    work: pd.DataFrame, rows: Ints, works: Sequence[OpWork | None], of: npt.NDArray[np.integer[Any]], source: str
) -> pd.DataFrame:
    """A work table with the figures of some rows replaced; category, role and types stay as they are.

    Args:
        work: the table.
        rows: the places of the rows.
        works: the distinct works; a row whose work is None stays as it is.
        of: for each of the rows the index of its work.
        source: where the figures come from.
    """
    known = np.array([one is not None for one in works] or [False], np.bool_)[of]
    if not known.any():
        return work
    rows, of = rows[known], of[known]
    given = columns([one or OpWork("", "", "") for one in works], np.arange(len(works)), np.ones(len(works)))
    out = work.copy(deep=False)
    for name in given:
        column = out[name].to_numpy(copy=True)
        column[rows] = given[name].to_numpy()[of]
        out[name] = column
    sources = out["source"].to_numpy(object, copy=True)
    sources[rows] = source
    out["source"] = objects(sources)
    return out
