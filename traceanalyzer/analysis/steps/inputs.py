"""Calls that look token ids up in a table: they start a forward pass and carry the shape of its input.

`aten::embedding` records the table [vocabulary, hidden] and the ids [batch, length] or [tokens]. A model may look up
positions and token types too, in the same breath: calls with no layer work between them are one input.

What could be wrong with it: a table that is looked up inside a layer (T5's relative positions, [32, heads]) is
no input; its size against the largest table tells. An engine that compiles the lookup away leaves no call at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.analysis.shapes import Dims, signature
from traceanalyzer.analysis.steps.model import Ints
from traceanalyzer.trace.tables import MISSING, Trace

_LOOKUP = "aten::embedding"
_SMALLEST_SHARE = 1 / 64
"""A table smaller than this share of the largest one is not looked up by token ids."""


@dataclass(frozen=True)
class Inputs:
    """One row per model input, sorted by (thread, time).

    `frame`: thread, time_ns, tokens, batch, length (i64, MISSING unknown; batch and length only where the ids are
    two-dimensional). `vocabularies`: first dimensions of the tables looked up, the largest table's first.
    """

    frame: pd.DataFrame
    vocabularies: tuple[int, ...]


def model_inputs(trace: Trace, layer_thread: Ints, layer_time: Ints) -> Inputs:
    """Find the inputs of all forward passes.

    Args:
        trace: its ops are searched.
        layer_thread, layer_time: where GEMM and attention work was submitted; it separates one input from the next.
    """
    codes = [i for i in np.unique(trace.ops["name"].to_numpy()).tolist() if trace.text(i) == _LOOKUP]
    calls = trace.ops[trace.ops["name"].isin(codes)]
    shapes = {code: _shapes(trace, code) for code in np.unique(calls["dims"].to_numpy()).tolist()}
    tables = {shape[0] for shape in shapes.values() if shape[0] is not None}
    largest = max((_size(table) for table in tables), default=0)
    inputs = [code for code, (table, _) in shapes.items() if table is None or _size(table) >= largest * _SMALLEST_SHARE]
    calls = calls[calls["dims"].isin(inputs)].sort_values(["thread", "start_ns"], kind="stable")
    frame = pd.DataFrame(
        {
            "thread": calls["thread"].to_numpy(np.int64),
            "time_ns": calls["start_ns"].to_numpy(np.int64),
            "ids": [shapes[code][1] for code in calls["dims"].tolist()],
        }
    )
    frame["cluster"] = _clusters(frame, layer_thread, layer_time)
    ordered = sorted((t for t in tables if _size(t) >= largest * _SMALLEST_SHARE), key=_size, reverse=True)
    return Inputs(_merged(frame), tuple(dict.fromkeys(table[0] for table in ordered)))


def _size(table: Dims) -> int:
    return table[0] * table[1]


def _shapes(trace: Trace, code: int) -> tuple[Dims | None, Dims | None]:
    """(table, ids) of a recorded embedding call."""
    call = signature(trace.text(code), "", "", "")
    table, ids = call.tensor(0), call.tensor(1)
    return (table if table is not None and len(table) == 2 else None), ids


def _clusters(frame: pd.DataFrame, layer_thread: Ints, layer_time: Ints) -> npt.NDArray[np.int64]:
    """Number the inputs: a call starts a new one where its thread submitted layer work since the call before."""
    done = np.zeros(len(frame), np.int64)
    for thread in np.unique(frame["thread"].to_numpy()).tolist():
        rows = np.flatnonzero((frame["thread"] == thread).to_numpy())
        times = np.sort(layer_time[layer_thread == thread])
        done[rows] = np.searchsorted(times, frame["time_ns"].to_numpy()[rows])
    if not len(frame):
        return done
    new = (np.diff(done, prepend=done[0]) != 0) | (np.diff(frame["thread"].to_numpy(), prepend=-1) != 0)
    return np.cumsum(new)


def _merged(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per input: its first call's time, its largest ids."""
    sizes = {
        ids: (prod(ids), *(ids if len(ids) == 2 else (MISSING, MISSING))) if ids is not None else (MISSING,) * 3
        for ids in set(frame["ids"])
    }
    columns = np.array([sizes[ids] for ids in frame["ids"].tolist()], np.int64).reshape(-1, 3)
    calls = frame[["cluster", "thread", "time_ns"]].assign(
        tokens=columns[:, 0], batch=columns[:, 1], length=columns[:, 2]
    )
    how = {"thread": "first", "time_ns": "first", "tokens": "max", "batch": "max", "length": "max"}
    return calls.groupby("cluster", sort=True).agg(how).reset_index(drop=True)
