"""Which decode step goes on with which one, and whether requests, or groups of them, take turns.

The context of a group of sequences grows by one token per sequence and step. A step therefore goes on with the earlier
one that served as many sequences and whose context sum was smaller by their number; steps that go on with each other
are a chain. Chains that overlap in time are groups that take turns, each with steps of its own, where one step could
serve them all. Requests one after the other are one chain, or several that do not overlap.

Groups that take turns are each served about as often as any other, so a chain that is passed over many times has ended:
without that, over a long recording, another group's context would continue it by chance.

What could be wrong: two groups of as many sequences whose contexts differ by exactly what one grows in the meantime can
swap, which does not change their number. A group that loses a request goes on as a new chain.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceanalyzer.trace.tables import MISSING

FEWEST_STEPS = 4
PASSED_OVER = 8
"""A chain has ended once some other one has gone on so often without it."""
MOST_BETWEEN = 4096
"""No chain is looked for further back than so many steps."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Turns:
    """The most groups that took turns at one time (1: none did), and the sequences of all of them together."""

    groups: int
    sequences: int


def successors(steps: pd.DataFrame) -> Ints:
    """For each step the place of the next one of the same sequences, MISSING where none is known to go on with it.

    Args:
        steps: decode steps in start order. One of unknown context, or of several tokens per sequence, goes on with
            none.
    """
    count, context = steps["sequences"].to_numpy(np.float64), steps["context_sum"].to_numpy(np.float64)
    told = (steps["tokens"].to_numpy(np.float64) == count) & ~np.isnan(context)
    after = np.full(len(steps), MISSING, np.int64)
    chain = np.full(len(steps), MISSING, np.int64)
    waiting: dict[tuple[int, int], deque[int]] = {}
    for place in np.flatnonzero(told).tolist():
        grows, keys = int(count[place]), int(context[place])
        open_steps = waiting.get((grows, keys - grows), deque())
        chain[place] = place
        while open_steps:
            before = open_steps.popleft()
            if _goes_on(chain, before, place):
                after[before], chain[place] = place, chain[before]
                break
        waiting.setdefault((grows, keys), deque()).append(place)
    return after


def _goes_on(chain: Ints, before: int, place: int) -> bool:
    """Whether the chain of an earlier step was not passed over since."""
    if place - before > MOST_BETWEEN:
        return False
    others = chain[before + 1 : place]
    others = others[others != MISSING]
    return len(others) < PASSED_OVER or int(np.unique(others, return_counts=True)[1].max()) < PASSED_OVER


def turns(steps: pd.DataFrame) -> Turns | None:
    """How many groups of sequences took turns, and how many sequences that were.

    Args:
        steps: complete decode steps in start order.

    Returns:
        None where sequences or contexts are unknown, a step works on several tokens of a sequence, no step goes on with
        another, or there are too few steps.
    """
    told = (steps["tokens"] == steps["sequences"]) & steps["context_sum"].notna()
    if len(steps) < FEWEST_STEPS or not told.all():
        return None
    after = successors(steps)
    linked = after != MISSING
    if not linked.any():
        return None
    first = linked.copy()
    first[after[linked]] = False
    begins = np.flatnonzero(first)
    ends = np.array([_last(after, begin) for begin in begins.tolist()], np.int64)
    sequences = steps["sequences"].to_numpy(np.int64)[begins]
    # At each beginning: the chains that have begun by then, less those that have ended.
    by_end = np.argsort(ends)
    ended = np.searchsorted(ends[by_end], begins, side="left")
    groups = np.arange(1, len(begins) + 1) - ended
    together = np.cumsum(sequences) - np.concatenate(([0], np.cumsum(sequences[by_end])))[ended]
    most = int(np.lexsort((together, groups))[-1])
    return Turns(int(groups[most]), int(together[most]))


def _last(after: Ints, step: int) -> int:
    """The last step of the chain that a step begins."""
    while after[step] != MISSING:
        step = int(after[step])
    return step
