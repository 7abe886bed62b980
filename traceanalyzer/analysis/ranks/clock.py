"""How far the clocks of two ranks are apart, and which of their collectives are the same one.

All ranks leave a collective at nearly the same time. On one host the clock is one, so calls of one name whose ends are
close are the same collective, and the median difference of the ends is what the two GPUs' times differ by. Between
hosts the clocks say nothing: there the order of the calls is shifted by whole calls until the ends' differences agree
best. Ranks that stopped at the same step agree unshifted, which is tried first.

What could be wrong: a run whose every step takes exactly as long as any other fits with several shifts; then nothing is
aligned, unless both ranks have as many calls. Clocks that drift apart during the window show as spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from traceanalyzer.analysis.intervals import Ints
from traceanalyzer.analysis.ranks.calls import Bools, Calls
from traceanalyzer.trace.tables import MISSING

FEWEST = 8
"""So many collectives have to match before their ends say anything of the clocks."""
MOST_SPREAD_NS = 100_000
"""Ends of the same collectives differ by at most this, for nine of ten of them, once the clocks are aligned."""
SAME_HOST_NS = 100_000
"""GPU times of one host come from one clock; drivers convert them to it with an error below this."""
_ENOUGH = 0.5
"""Share of the calls of the rank with fewer of them that has to match."""
_SAMPLE = 1024
_FARTHEST = 4096
"""Calls that a shift is judged by, and the largest shift that is tried."""
_SAME_NAMES = 0.95
_OUTLIER_NS = 1_000_000
"""No distance counts for more in the mean one, and calls of different names are as far apart."""
_CLEARLY = 2.0
_GRAIN_NS = 1_000
"""A shift is the best where every other one has so many times its spread, and this much more."""


@dataclass(frozen=True)
class Match:
    """Two ranks whose collectives are the same ones.

    Args:
        offset_ns: to take from the second rank's times to have them on the first one's clock.
        spread_ns: nine of ten matched ends differ by less than this then.
        partner: for each call of the second rank the call of the first that is the same collective, else MISSING.
        by: "host" where both have one clock already, "collectives" where the order of the calls aligned them.
    """

    offset_ns: int
    spread_ns: int
    partner: Ints
    by: Literal["host", "collectives"]


def match(first: Calls, second: Calls, same_host: bool, by_order: bool = True) -> Match | None:
    """Which collectives of two ranks are the same ones; None where that cannot be told.

    Args:
        first, second: the ranks' calls.
        same_host: whether both have the clock of one host.
        by_order: whether to look for the offset of two clocks too.
    """
    if min(first.together.sum(), second.together.sum()) < FEWEST:
        return None
    if same_host:
        found = _refined(first, second, 0, SAME_HOST_NS, "host")
        if found is not None:
            return found
    offset = _by_order(first, second) if by_order else None
    return None if offset is None else _refined(first, second, offset, MOST_SPREAD_NS, "collectives")


def _ends(calls: Calls) -> Ints:
    ends: Ints = calls.end + calls.base_ns
    return ends


def _refined(
    first: Calls, second: Calls, offset: int, tolerance: int, by: Literal["host", "collectives"]
) -> Match | None:
    """The match of the ends that lie within a tolerance at an offset, which the differences that are left correct."""
    close = _nearest(first, second, offset, tolerance)
    left = _left(first, second, close, offset)
    if not _enough(first, second, close, left):
        return None
    offset += round(float(np.median(left)))
    partner = _nearest(first, second, offset, MOST_SPREAD_NS)
    left = _left(first, second, partner, offset)
    spread = int(np.percentile(np.abs(left), 90)) if len(left) else MOST_SPREAD_NS + 1
    if not _enough(first, second, partner, left) or spread > min(MOST_SPREAD_NS, _interval(first) // 4):
        return None
    return Match(offset, spread, partner, by)


def _enough(first: Calls, second: Calls, partner: Ints, left: Ints) -> bool:
    """Whether enough calls match; of ranks that were not recorded at the same time, those that could."""
    begin = max(_ends(first)[0], _ends(second)[0])
    end = min(_ends(first)[-1], _ends(second)[-1])
    could = len(partner) if end <= begin else int(((_ends(second) >= begin) & (_ends(second) <= end)).sum())
    return len(left) >= max(FEWEST, _ENOUGH * min(could, len(first.key)))


def _left(first: Calls, second: Calls, partner: Ints, offset: int) -> Ints:
    """Differences of the ends of matched calls that no rank leaves before the others."""
    (rows,) = np.nonzero((partner != MISSING) & second.together)
    differences: Ints = _ends(second)[rows] - offset - _ends(first)[partner[rows]]
    return differences


def _interval(calls: Calls) -> int:
    """Median time from one collective's end to the next one's."""
    return int(np.median(np.diff(np.sort(_ends(calls))))) if len(calls.end) > 1 else 0


def _nearest(first: Calls, second: Calls, offset: int, tolerance: int) -> Ints:
    """For each call of the second rank the one of the same name that ends nearest, where both choose each other."""
    partner = np.full(len(second.key), MISSING, np.int64)
    for key in np.intersect1d(first.key, second.key):
        (mine,), (theirs,) = np.nonzero(first.key == key), np.nonzero(second.key == key)
        mine, theirs = mine[np.argsort(first.end[mine])], theirs[np.argsort(second.end[theirs])]
        own, other = _ends(first)[mine], _ends(second)[theirs] - offset
        chosen, back = _closest(own, other), _closest(other, own)
        mutual = (back[chosen] == np.arange(len(theirs))) & (np.abs(own[chosen] - other) <= tolerance)
        partner[theirs[mutual]] = mine[chosen[mutual]]
    return partner


def _closest(values: Ints, instants: Ints) -> Ints:
    """The place in sorted values of the one nearest to each instant. Shapes: (n,), (m,) -> (m,)."""
    after = np.clip(np.searchsorted(values, instants), 0, len(values) - 1)
    before = np.maximum(after - 1, 0)
    closest: Ints = np.where(np.abs(values[before] - instants) <= np.abs(values[after] - instants), before, after)
    return closest


def _by_order(first: Calls, second: Calls) -> int | None:
    """The offset at which calls in the same order end together; None where no shift fits, or several do."""
    own_key, own_end = _sequence(first)
    other_key, other_end = _sequence(second)
    if len(own_key) == len(other_key):
        offset, spread = _at_shift(own_key, own_end, other_key, other_end, 0)
        if spread is not None and spread <= MOST_SPREAD_NS // 4:
            return offset
    found: list[tuple[float, int]] = []
    least = max(FEWEST, round(_ENOUGH * min(len(own_key), len(other_key))))
    for shift in range(-min(len(other_key) - least, _FARTHEST), min(len(own_key) - least, _FARTHEST) + 1):
        offset, spread = _at_shift(own_key, own_end, other_key, other_end, shift)
        if spread is not None:
            found.append((spread, offset))
    found.sort()
    if not found or found[0][0] > MOST_SPREAD_NS // 4:
        return None
    if len(found) > 1 and found[1][0] < _CLEARLY * found[0][0] + _GRAIN_NS:
        return None
    return found[0][1]


def _sequence(calls: Calls) -> tuple[Ints, Ints]:
    """Names and ends of the calls that no rank leaves before the others, in order of their ends."""
    keys, ends = calls.key[calls.together], _ends(calls)[calls.together]
    order = np.argsort(ends, kind="stable")
    return keys[order], ends[order]


def _at_shift(own_key: Ints, own_end: Ints, other_key: Ints, other_end: Ints, shift: int) -> tuple[int, float | None]:
    """Median difference of the ends, and the mean distance from it, with call i of the second rank as call i + shift.

    The distance is None where too few names are the same.
    """
    begin = max(0, -shift)
    count = min(len(other_key) - begin, len(own_key) - (begin + shift), _SAMPLE)
    mine, theirs = slice(begin + shift, begin + shift + count), slice(begin, begin + count)
    same: Bools = own_key[mine] == other_key[theirs]
    if count < FEWEST or same.mean() < _SAME_NAMES:
        return 0, None
    differences = other_end[theirs] - own_end[mine]
    offset = round(float(np.median(differences[same])))
    # A shift within a step is betrayed by the few calls around the ends of steps alone, which a median would not see.
    distance = np.where(same, np.minimum(np.abs(differences - offset), _OUTLIER_NS), _OUTLIER_NS)
    return offset, float(distance.mean())
