"""Marks in the kernel sequence that stand once in a forward pass, where nobody recorded the ops or their labels.

    lm_head     the widest GEMM, where shapes are known; a pass ends after it and its sampling
    lookup      kernels that gather rows by index, before the first layer; a pass starts there, and one over images or
                sound with its convolution
    sampling    kernels that choose the next token; a pass ends after them

The last two are known by kernel names alone, so each is believed only where most passes that it gives run several
layers' attention: experts that gather their tokens, or routers that choose, stand in every layer.

What could be wrong with it: an engine that chooses tokens for a part of the batch at a time would end passes too early;
a tail without sampling kernels (a prefill chunk) is joined to the next pass where nothing is looked up.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from traceanalyzer.analysis.steps.model import Bools, Ints
from traceanalyzer.analysis.steps.tokens import GEMM, HEAD_WIDER, LAYER

KINDS = ("lm_head", "lookup", "sampling")
ATTENTION = ("attention", "kv_cache")
_AFTER_HEAD = ("sampling", "softmax", "sort_scan", "reduction", "memcpy", "elementwise", "copy", "embedding", "memset")
_MIN_ATTENTION = 2
"""Attention calls between two marks, in the median, before they stand once in a pass and not once in a layer."""


def starts(rows: pd.DataFrame, attention: Ints) -> tuple[Ints, str]:
    """Host times at which passes start, and which of `KINDS` they rest on; empty and "none" where no mark is found.

    Args:
        rows: of one lane, in order of submission.
        attention: submission times of its attention work.
    """
    ends = _head_ends(rows)
    if len(ends):
        return ends, "lm_head"
    for kind, found in (("lookup", _lookups(rows)), ("sampling", _sampled(rows))):
        if len(found) and _once_in_a_pass(found, attention):
            return _with_layers(found, attention), kind
    return np.empty(0, np.int64), "none"


def _once_in_a_pass(found: Ints, attention: Ints) -> bool:
    """Whether the pieces between marks run the attention of several layers."""
    piece = np.searchsorted(found, attention, side="right")
    calls = np.bincount(piece, minlength=len(found) + 1)
    return bool(np.median(calls[calls > 0]) >= _MIN_ATTENTION) if calls.any() else False


def _with_layers(found: Ints, attention: Ints) -> Ints:
    """The marks that attention follows before the next one: the lm_head looks up rows too, in the same pass."""
    before = np.searchsorted(attention, np.append(found, np.iinfo(np.int64).max), side="left")
    following: Ints = found[np.diff(before) > 0]
    return following


def _lookups(rows: pd.DataFrame) -> Ints:
    """Times of the first lookup after each stretch of layer work."""
    done = np.cumsum(rows["category"].isin(LAYER).to_numpy())
    position = np.flatnonzero(rows["category"].isin(("embedding", "conv")).to_numpy())
    first: Bools = np.diff(done[position], prepend=-1) != 0
    times: Ints = rows["time_ns"].to_numpy(np.int64)[position[first]]
    return times


def _sampled(rows: pd.DataFrame) -> Ints:
    """Times of the first work after each stretch of sampling and the copy of what it chose."""
    return _following(rows, (rows["category"] == "sampling").to_numpy(), ("memcpy", "memset"))


def _following(rows: pd.DataFrame, end: Bools, tail: tuple[str, ...]) -> Ints:
    """Times of the first work after each end that is of no category of its tail."""
    position = np.flatnonzero(~rows["category"].isin(tail).to_numpy() & ~end)
    following = np.unique(np.searchsorted(position, np.flatnonzero(end), side="right"))
    times: Ints = rows["time_ns"].to_numpy(np.int64)[position[following[following < len(position)]]]
    return times


def _head_ends(rows: pd.DataFrame) -> Ints:
    """Times of the first layer work after each lm_head and its sampling; empty where no lm_head can be told.

    It is the widest GEMM of all, and rarer than any other: once per step, where every other runs once per layer.
    """
    keep = rows["category"].isin(GEMM) & (rows["n"] > 0) & (rows["batch"] <= 1)
    gemm = rows[keep]
    counts = gemm.groupby(["n", "k"]).size()
    if len(counts) < 2:
        return np.empty(0, np.int64)
    width = counts.index.get_level_values("n").to_numpy()
    widest = counts[width == width.max()]
    second = width[width < width.max()].max(initial=0)
    rarest_other = counts[width < width.max()].min() if second else 0
    if len(widest) != 1 or width.max() < HEAD_WIDER * second or widest.iloc[0] * 2 > rarest_other:
        return np.empty(0, np.int64)
    n, k = widest.index[0]
    head = ((rows["n"] == n) & (rows["k"] == k) & keep).to_numpy()
    return _following(rows, head, _AFTER_HEAD)
