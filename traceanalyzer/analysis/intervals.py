"""Interval arithmetic on integer nanoseconds: unions, coverage and who owns an instant.

An interval is half-open, [start, end). Busy time is a union, never a sum: kernels overlap on several streams, and even
inside one stream. Everything here is vectorised and exact in int64; zero-length intervals contribute nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Union(NamedTuple):
    """Disjoint, sorted, non-touching intervals. `before[i]` is the total length of the intervals before interval i."""

    starts: Ints
    ends: Ints
    before: Ints

    @property
    def length(self) -> int:
        """The total length, in nanoseconds."""
        return int((self.ends - self.starts).sum())


def union(starts: Ints, ends: Ints) -> Union:
    """The union of intervals given in any order. Shapes: (n,), (n,) -> (m,) with m <= n."""
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if not len(starts):
        empty = np.empty(0, np.int64)
        return Union(empty, empty, empty)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    first = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    begin, end = starts[first], reach[last]
    lengths = end - begin
    return Union(begin, end, np.cumsum(lengths) - lengths)


def covered_until(cover: Union, instants: Ints) -> Ints:
    """How much of the union lies before each instant. Shape: (n,) -> (n,)."""
    if not len(cover.starts):
        return np.zeros(len(instants), np.int64)
    index = np.searchsorted(cover.starts, instants, side="right") - 1
    safe = np.maximum(index, 0)
    inside = np.minimum(instants, cover.ends[safe]) - cover.starts[safe]
    until: Ints = np.where(index < 0, 0, cover.before[safe] + inside)
    return until


def covered(cover: Union, starts: Ints, ends: Ints) -> Ints:
    """How much of each interval the union covers. Shapes: (n,), (n,) -> (n,)."""
    shared: Ints = np.maximum(covered_until(cover, ends) - covered_until(cover, starts), 0)
    return shared


def owned(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """The part of each interval in which no earlier interval is running; `starts` must be sorted.

    Where several intervals run at once, the instant belongs to the one that started first (the first in order among
    equals). That part is one interval: it begins where the last of the earlier intervals has ended. The parts are
    disjoint and their union is the union of the intervals. Shapes: (n,), (n,) -> (n,), (n,); an interval that owns
    nothing comes back empty (start == end).
    """
    if not len(starts):
        return starts, ends
    reach = np.maximum.accumulate(ends)
    earlier = np.concatenate((starts[:1], reach[:-1]))
    begin = np.minimum(np.maximum(starts, earlier), np.maximum(ends, starts))
    return begin, np.maximum(ends, begin)


def union_by_group(groups: Ints, starts: Ints, ends: Ints, count: int) -> Ints:
    """Length of the union of the intervals of each group 0..count-1. Shapes: (n,), (n,), (n,) -> (count,).

    Each group is moved to a stretch of the axis of its own, so that one pass over all intervals serves every group.
    """
    if not len(starts):
        return np.zeros(count, np.int64)
    origin, stretch = starts.min(), int(ends.max() - starts.min()) + 1
    moved = groups * stretch - origin
    order = np.lexsort((starts, groups))
    own_start, own_end = owned((starts + moved)[order], (ends + moved)[order])
    lengths = np.zeros(count, np.int64)
    np.add.at(lengths, groups[order], own_end - own_start)
    return lengths


def gaps(busy: Union) -> tuple[Ints, Ints]:
    """The gaps between the intervals of a union: starts and ends, shape (m - 1,)."""
    return busy.ends[:-1], busy.starts[1:]


def shared_time(starts: Ints, ends: Ints) -> Floats:
    """Each interval's time when the intervals running at one instant share it equally. Shape: (n,), nanoseconds.

    The result sums to the length of the union (up to floating-point rounding).
    """
    if not len(starts):
        return np.empty(0, np.float64)
    if (starts[1:] >= ends[:-1]).all() and (ends >= starts).all():  # one after the other: nothing is shared
        return (ends - starts).astype(np.float64)
    edges = np.sort(np.concatenate((starts, ends)))
    edges = edges[np.diff(edges, prepend=edges[0] - 1) > 0]
    first = np.searchsorted(edges, starts)
    last = np.searchsorted(edges, ends)
    change = np.bincount(first, minlength=len(edges)) - np.bincount(last, minlength=len(edges))
    running = np.cumsum(change)[:-1]
    lengths = np.diff(edges).astype(np.float64)
    per_interval = np.divide(lengths, running, out=np.zeros_like(lengths), where=running > 0)
    total = np.concatenate(([0.0], np.cumsum(per_interval)))
    return np.asarray(total[last] - total[first])


def largest_remainder(values: Floats, total: int) -> Ints:
    """Round non-negative values to integers that sum to `total`, giving the leftover to the largest remainders.

    `values` must sum to `total` within rounding (their count at most). Ties go to the earlier value.
    """
    floor = np.floor(values).astype(np.int64)
    left = total - int(floor.sum())
    order = np.argsort(-(values - floor), kind="stable")
    step = 1 if left >= 0 else -1
    candidates = order if left >= 0 else order[::-1][floor[order[::-1]] > 0]
    for place in range(abs(left)):
        floor[candidates[place % len(candidates)]] += step
    return floor
