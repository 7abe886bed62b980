"""Which batched products multiply by a weight: one matrix per head or expert, the same in every step.

A product of two batches of matrices is attention without fusion (queries by keys, scores by values) or a weight that
has a matrix per head or expert, as latent attention has to take queries into the latent space and results out of it.
The shapes of one call do not tell which. Together these do:

    attention runs in kernels of its own in the same step, at least one for two such products
    the product is not next to a softmax, as those of attention are
    its rows are the step's tokens, so that the other operand serves all of them
    the other operand is as large in steps of other contexts, so it is no cache

What could be wrong: a product of activations that meets all four; none is known. Steps of one context alone tell
nothing, nor do replayed kernels, whose operands are not recorded.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.kernels import HELPER_ROLES, MATRIX_CATEGORIES
from traceanalyzer.analysis.shapes import signature
from traceanalyzer.analysis.work.columns import Bools, Floats, Ints
from traceanalyzer.analysis.work.opwork import named
from traceanalyzer.catalog import op_models
from traceanalyzer.trace.tables import KERNEL, Trace

_OTHER, _SOFTMAX, _ATTENTION, _MATRIX, _BATCHED = range(5)
_PRODUCTS_PER_ATTENTION = 2


def fill_weights(
    trace: Trace, activity: Activity, work: pd.DataFrame, steps: pd.DataFrame, activity_step: np.ndarray
) -> pd.DataFrame:
    """The work table with the weight bytes of batched products whose second operand is a weight.

    Args:
        trace, activity: what was read, and what ran.
        work: as `measure` returns it.
        steps: `Steps.table`.
        activity_step: the step of every row, MISSING where it belongs to none.
    """
    kind = _kinds(activity.table, work)
    rows = np.flatnonzero((kind == _BATCHED) & (activity_step >= 0) & (activity.table["op"].to_numpy() >= 0))
    if not len(rows) or not (kind == _ATTENTION).any():
        return work
    rows = rows[_apart_from_attention(activity.table, kind, activity_step)[rows]]
    step = steps.set_index("step").loc[activity_step[rows]].reset_index(drop=True)
    m = work["m"].to_numpy(np.float64)[rows]
    rows_are_tokens = (m == step["tokens"].to_numpy()) | (m == step["decode_tokens"].to_numpy())
    shape = work.iloc[rows][["batch", "n", "k"]].reset_index(drop=True)
    contexts = step["context_sum"].where(rows_are_tokens).groupby([shape[name] for name in shape]).transform("nunique")
    rows = rows[rows_are_tokens & (contexts > 1).to_numpy()]
    if not len(rows):
        return work
    weights = work["weight_bytes"].to_numpy(np.float64, copy=True)
    weights[rows] = _second_operand(trace, activity.table["op"].to_numpy(np.int64)[rows])
    return work.assign(weight_bytes=weights)


def _kinds(table: pd.DataFrame, work: pd.DataFrame) -> Ints:
    """What each row is to a batched product."""
    category = work["category"].astype("category")
    matrix = category.isin(MATRIX_CATEGORIES).to_numpy()
    batched = matrix & work["weight_bytes"].isna().to_numpy() & (work["batch"].to_numpy() > 1)
    kind = np.select(
        [batched, matrix, (category == "attention").to_numpy(), (category == "softmax").to_numpy()],
        [_BATCHED, _MATRIX, _ATTENTION, _SOFTMAX],
        _OTHER,
    )
    counted = (table["kind"].to_numpy() == KERNEL) & ~work["role"].isin(HELPER_ROLES).to_numpy()
    return np.where(counted, kind, _OTHER)


def _apart_from_attention(table: pd.DataFrame, kind: Ints, step: np.ndarray) -> Bools:
    """Rows of steps with attention kernels enough, with no softmax before or after among products and attention."""
    placed = step >= 0
    counts = [np.bincount(step[placed & (kind == one)], minlength=step.max() + 1) for one in (_ATTENTION, _BATCHED)]
    enough = counts[0] * _PRODUCTS_PER_ATTENTION >= counts[1]
    order = np.lexsort((table["start_ns"].to_numpy(), step))
    order = order[(kind[order] != _OTHER) & placed[order]]
    same = step[order][1:] == step[order][:-1]
    softmax = kind[order] == _SOFTMAX
    near = np.append(softmax[1:] & same, False) | np.append(False, softmax[:-1] & same)
    apart = np.zeros(len(table), np.bool_)
    apart[order] = enough[step[order]] & ~near
    return apart


def _second_operand(trace: Trace, op: Ints) -> Floats:
    """Bytes of the second operand of some products, NaN where its type is not known."""
    columns = ["name", "dims", "types", "concrete", "strides"]
    calls, at = np.unique(trace.ops[columns].to_numpy(np.int64)[op], axis=0, return_inverse=True)
    sizes = np.full(len(calls), np.nan)
    for place, (name, *arguments) in enumerate([[trace.text(code) for code in call] for call in calls.tolist()]):
        sig = signature(*arguments)
        model = op_models.find(name, len(sig.dims))
        second = named(model, sig, "b") if model else None
        sizes[place] = second.bytes if second else np.nan
    return sizes[at.ravel()]
