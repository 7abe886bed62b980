"""What only the order of steps tells: contexts over a padded cache, speculation, generation without a cache.

    static cache     k stays at the cache's size while q goes from the prompt to 1: the context is counted up instead
    padded, no start k stays the same in decode steps whose prompt was not recorded: the context is unknown
    speculation      the same small q in several steps in a row, with k growing by less than q: rejected tokens
    no cache         q = k, growing by one per pass: every pass recomputes the whole prompt

What could be wrong with it: two sequences that are served in turn look like one whose context jumps; the rules need
neighbours that agree and otherwise stay silent.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceanalyzer.analysis.steps.model import Bools, Ints
from traceanalyzer.trace.tables import MISSING

_PADDED_AT_LEAST = 3
"""Steps with equal k, some of them of one token, before it is taken for the size of a padded cache."""
SPECULATION = 16
"""The largest q that speculation is looked for at."""


@dataclass(frozen=True)
class Order:
    """Aligned to steps in order. `context` is the true key length (MISSING unknown); `padded` says k is a buffer size.

    `repeated` counts the run of neighbouring steps with the same small q < k, `growing` tells that k grows by all
    of q in it; `recomputed` marks passes that repeat the one before with one more token.
    """

    context: Ints
    padded: Bools
    repeated: Ints
    growing: Bools
    recomputed: Bools


def read_order(q: Ints, k: Ints) -> Order:
    """Judge steps by their neighbours.

    Args:
        q, k: query and key length of each step in order of submission, MISSING where unknown.
    """
    context, padded = k.copy(), np.zeros(len(q), np.bool_)
    repeated, growing = np.zeros(len(q), np.int64), np.zeros(len(q), np.bool_)
    for start, stop in _runs(k):
        prompt = int(k[start - 1]) if start and q[start - 1] == k[start - 1] > 1 else MISSING
        _count_up(q[start:stop], k[start:stop], prompt, context[start:stop], padded[start:stop])
    for start, stop in _runs(q):
        if 1 < q[start] <= SPECULATION and (k[start:stop] > q[start]).all():
            repeated[start:stop] = stop - start
            growing[start:stop] = bool((np.diff(k[start:stop]) == q[start]).all())
    again = (q > 1) & (q == k)
    recomputed = again & np.append(again[1:] & (np.diff(q) == 1), False)
    recomputed |= again & np.append(False, recomputed[:-1])
    return Order(context, padded, repeated, growing, recomputed)


def _runs(values: Ints) -> list[tuple[int, int]]:
    """Half-open runs of equal known values."""
    edges = np.flatnonzero(np.diff(values)) + 1
    bounds = [0, *edges.tolist(), len(values)]
    return [(a, b) for a, b in itertools.pairwise(bounds) if a < b and values[a] != MISSING]


def _count_up(q: Ints, k: Ints, prompt: int, context: npt.NDArray[np.int64], padded: npt.NDArray[np.bool_]) -> None:
    """Within a run of equal k: replace the buffer's size by the tokens that were put in so far.

    Args:
        q, k: of the steps of the run.
        prompt: length of a prompt that was read without the buffer just before the run, MISSING where none was.
        context, padded: the run's part of the result, written in place.
    """
    long = len(q) >= _PADDED_AT_LEAST and bool((q == 1).any())
    if not long or (q == k).any():
        return
    seen = prompt if prompt < k[0] else MISSING
    for i, length in enumerate(q.tolist()):
        fresh = length > 1 and (i == 0 or q[i - 1] == 1)
        seen = length if fresh else (MISSING if seen == MISSING else seen + length)
        context[i], padded[i] = seen if seen <= k[i] else MISSING, True
