"""Finds for every op the innermost op that encloses it on its thread.

Ops of one thread nest like calls. What could be wrong: old recordings round start and duration down to whole
microseconds, so a child can seem to outlive its parent by one; that much slack is allowed there. An op that spans an
asynchronous boundary overlaps others without nesting and counts as enclosing only what lies inside it.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from traceanalyzer.trace.tables import MISSING

Ints = npt.NDArray[np.int64]


def parents(thread: npt.NDArray[np.int32], start: Ints, end: Ints, slack_ns: int = 0) -> npt.NDArray[np.int32]:
    """Row of the innermost enclosing op, in time n log n.

    Args:
        thread, start, end: n ops sorted by (thread, start, -duration); times in ns.
        slack_ns: by how much an op may outlive the op that was running when it began.

    Returns:
        n rows, MISSING for a root. An op encloses another if it begins no later and ends no earlier (less the slack),
        and stands before it in the order; of several, the one that stands last.
    """
    # Enclosing means: stands before it on its thread, and ends at `least` or later.
    least = np.minimum(end, np.maximum(end - slack_ns, start + 1))
    found = np.arange(-1, len(start) - 1, dtype=np.int32)
    enclosed = np.zeros(len(start), np.bool_)
    for first, last in pairwise((0, *(np.flatnonzero(np.diff(thread)) + 1).tolist(), len(start))):
        enclosed[first + 1 : last] = np.maximum.accumulate(end[first:last])[:-1] >= least[first + 1 : last]
    found[~enclosed] = MISSING
    # All rows take one step at a time. What stands between a row that ends too early and the row that it has come to
    # itself ends earlier still, and can be passed over; so the steps double, and a few rounds serve any depth.
    rows = np.flatnonzero(enclosed)
    while len(rows):
        rows = rows[end[found[rows]] < least[rows]]
        found[rows] = found[found[rows]]
    return found
