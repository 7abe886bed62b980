"""Two-batch overlap: steps whose micro-batches run on streams of their own, so that one computes while one waits.

A step holds micro-batches where streams of one device run equally many attention calls, each with matrix products of
their own, and kernels of theirs run at the same time. Every micro-batch passes through all layers with its part of the
tokens. A stream that only attends, copies, or runs the shared expert is none, and neither are streams that take turns.

What could be wrong: micro-batches that happen never to overlap look like a model of twice the layers.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from traceanalyzer.analysis.intervals import union
from traceanalyzer.analysis.steps.model import Ints

_GEMM = ("gemm", "gemv", "moe")
_FEWEST_CALLS = 2
"""Attention calls on a stream before it may be a micro-batch's."""
_AT_ONCE = 0.02
"""Share of the streams' kernel time that must have run beside kernels of another one."""


def lanes(rows: pd.DataFrame, unit: Ints) -> Ints:
    """Which micro-batch of its step each row belongs to: 0, 1, ...; 0 for steps that are not divided. Shape: (rows,).

    Args:
        rows: of `tokens.step_rows`.
        unit: the step and device of each row, as one number, negative for none.
    """
    lane = np.zeros(len(rows), np.int64)
    attends = (rows["category"] == "attention").to_numpy() & (unit >= 0)
    stream = rows["stream"].to_numpy(np.int64)
    frame = pd.DataFrame({"unit": unit, "stream": stream})
    calls = frame[attends].groupby(["unit", "stream"]).size().rename("calls")
    calls = calls[calls >= _FEWEST_CALLS]
    if not calls.index.get_level_values("unit").has_duplicates:
        return lane
    products = frame[rows["category"].isin(_GEMM).to_numpy()].groupby(["unit", "stream"]).size().rename("products")
    seen = pd.concat([calls, products.reindex(calls.index, fill_value=0)], axis=1).reset_index()
    alike = seen.groupby("unit")["calls"].agg(lambda each: len(each) > 1 and each.nunique() == 1)
    alike &= (seen["products"] >= seen["calls"]).groupby(seen["unit"]).all()
    start = rows["start_ns"].to_numpy(np.int64)
    end = start + rows["duration_ns"].to_numpy(np.int64)
    of_unit = frame.groupby("unit").indices
    for one, own in seen[seen["unit"].map(alike)].groupby("unit"):
        streams = own["stream"].to_numpy(np.int64)
        place = np.asarray(of_unit[one], np.int64)
        place = place[np.isin(stream[place], streams)]
        spent = int((end[place] - start[place]).sum())
        if spent - union(start[place], end[place]).length >= _AT_ONCE * spent:
            lane[place] = np.searchsorted(streams, stream[place])
    return lane
