"""Finds for every op the innermost op that encloses it on its thread.

Ops of one thread nest like calls. What could be wrong: old recordings round start and duration down to whole
microseconds, so a child can seem to outlive its parent by one; that much slack is allowed there. An op that spans an
asynchronous boundary overlaps others without nesting and counts as enclosing only what lies inside it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traceanalyzer.trace.tables import MISSING

Ints = npt.NDArray[np.int64]


def parents(thread: npt.NDArray[np.int32], start: Ints, end: Ints, slack_ns: int = 0) -> npt.NDArray[np.int32]:
    """Row of the innermost enclosing op, in time linear in n.

    Args:
        thread, start, end: n ops sorted by (thread, start, -duration); times in ns.
        slack_ns: by how much an op may outlive the op that was running when it began.

    Returns:
        n rows, MISSING for a root. An op encloses another if it begins no later and ends no earlier (less the slack),
        and stands before it in the order; of several, the one that stands last.
    """
    result = np.full(len(start), MISSING, np.int32)
    stack: list[int] = []
    ends = end.tolist()
    current = None
    for row, (on, begin, finish) in enumerate(zip(thread.tolist(), start.tolist(), ends, strict=True)):
        if on != current:
            current = on
            stack.clear()
        # Ends on the stack grow towards its bottom: what ends before this op encloses no later one that it does not.
        while stack and ends[stack[-1]] + (slack_ns if ends[stack[-1]] > begin else 0) < finish:
            stack.pop()
        if stack:
            result[row] = stack[-1]
        while stack and ends[stack[-1]] <= finish:
            stack.pop()
        stack.append(row)
    return result
