"""The work of kernels that help another one, where the launches of a capture tell it.

Each is small, but a decode step runs hundreds of them, and each takes a few microseconds whatever it moves.

    reduce_segments             vLLM's unified attention in three dimensions leaves `segments` partial results of each
                                token and head, in fp32 with their maximum and sum; this adds them up. The number of
                                segments is the third dimension of the attention kernel's grid
                                (vllm/v1/attention/ops/triton_unified_attention.py)
    _sum_bitmatrix_rows         counts the tokens of every expert from a bit per token and expert; keeps a sum per 32
                                tokens beside the total
    _combined_routing_memset    clears the two orders of the assignments, sums up the counts
    _combined_routing_compute   sorts the assignments by expert: reads choice and weight (2 bytes each), writes both
                                orders (4 bytes) and the weights (triton_kernels/routing.py)

Routing is integer arithmetic: no FLOPs. What could be wrong: a short context fills fewer segments, and tables of a few
hundred entries beside these are not counted; so the bytes are estimates.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.shapes import signature
from traceanalyzer.analysis.work.columns import put
from traceanalyzer.analysis.work.expert_layers import LAYERS
from traceanalyzer.analysis.work.opwork import OpWork
from traceanalyzer.trace.tables import Trace

_SEGMENTED, _SUMS_SEGMENTS = "kernel_unified_attention_3d", "reduce_segments"
_ROUTING = ("_sum_bitmatrix_rows", "_combined_routing_memset", "_combined_routing_compute")
_WORD_BITS, _ROWS_PER_SUM = 32, 32
_INDEX, _SHORT, _FP32 = 4, 2, 4


def fill_helpers(trace: Trace, activity: Activity, work: pd.DataFrame) -> pd.DataFrame:
    """The work table with the helpers filled in that have none.

    Args:
        trace, activity: a capture's launches as if they had run.
        work: as `measure` returns it.
    """
    table = activity.table
    names = [trace.text(code) for code in table["name"].tolist()]
    unknown = work["flops"].isna().to_numpy() & work["bytes"].isna().to_numpy()
    rows, works = [], []
    for row, name in enumerate(names):
        if not unknown[row] or int(table["op"].iloc[row]) < 0:
            continue
        one = None
        if name == _SUMS_SEGMENTS and row and names[row - 1] == _SEGMENTED:
            one = _segments(trace, activity, work, row - 1)
        elif name in _ROUTING:
            one = _routing(trace, int(table["op"].iloc[row]), name)
        if one is not None:
            rows.append(row)
            works.append(one)
    return put(work, np.array(rows, np.int64), works, np.arange(len(rows)), "shapes") if rows else work


def _segments(trace: Trace, activity: Activity, work: pd.DataFrame, attention: int) -> OpWork | None:
    """The sum of partial results that the attention kernel of some row left."""
    segments = int(trace.kernels["grid_z"].iloc[int(activity.table["kernel"].iloc[attention])])
    tokens, heads, size = (int(work[name].iloc[attention]) for name in ("q_len", "heads", "head_dim"))
    batch = int(work["batch"].iloc[attention])
    tokens *= max(batch, 1)
    if min(segments, tokens, heads, size) < 1:
        return None
    partial = float(tokens * heads * segments)
    return OpWork(
        model="segments",
        category="attention",
        role="split-combine",
        flops=2.0 * partial * size,
        bytes=partial * (size + 2) * _FP32 + float(tokens * heads * size * _SHORT),
        estimated=True,
    )


def _routing(trace: Trace, op: int, name: str) -> OpWork | None:
    """One of the kernels that sort assignments by expert, within an op that shows (T, k) and one that shows (T, E)."""
    ops = trace.ops
    shape = signature(trace.text(int(ops["dims"].iloc[op])), "", "", "").tensor(0)
    parent = int(ops["parent"].iloc[op])
    while parent >= 0 and trace.text(int(ops["name"].iloc[parent])) not in LAYERS:
        parent = int(ops["parent"].iloc[parent])
    if shape is None or len(shape) != 2 or parent < 0:
        return None
    at = LAYERS[trace.text(int(ops["name"].iloc[parent]))][1]
    logits = signature(trace.text(int(ops["dims"].iloc[parent])), "", "", "").tensor(at)
    if logits is None or len(logits) != 2 or logits[0] != shape[0]:
        return None
    tokens, chosen = shape
    words = -(-logits[1] // _WORD_BITS)
    sums = _INDEX * words * _WORD_BITS * -(-tokens // _ROWS_PER_SUM)
    total = _INDEX * words * _WORD_BITS
    moved = {
        _ROUTING[0]: _INDEX * tokens * words + sums + total,
        _ROUTING[1]: 2 * _INDEX * tokens * chosen + 2 * sums + 2 * total,
        _ROUTING[2]: tokens * chosen * (3 * _SHORT + 3 * _INDEX) + total,
    }
    return OpWork("routing", "moe", "routing", 0.0, float(moved[name]), estimated=True)
