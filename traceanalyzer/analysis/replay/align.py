"""Lines up a replayed sequence of kernels with one whose work is known: which kernel of one is which of the other.

A kernel is compared by its name and, where both sequences recorded grids, by its grid. Of attention only that it is
attention is compared, and the kernels that add up its parts are left out where there are others: which kernel runs may
follow the context. The alignment is a longest common subsequence (E. W. Myers, "An O(ND) Difference
Algorithm and Its Variations", Algorithmica 1, 1986): time grows with length times differences, and few differences are
allowed, so it is linear in the length for every pair that is not refused.

Beside every difference the alignment may be able to slide: of two equal kernels side by side, one of which is missing,
either can be the one that is left. Walking away from a difference, kernels that also occur among what was skipped or
passed are such; they get no partner unless every partner they could have did the same work. Nor does a kernel in a
short run between two differences that has a namesake of other work nearby.

What could be wrong: two kernels of one name and grid that changed places everywhere cannot be told from the original.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceanalyzer.analysis.kernels import HELPER_ROLES, MATRIX_CATEGORIES, classify
from traceanalyzer.analysis.replay.reference import Ints, Reference
from traceanalyzer.analysis.work.opwork import OpWork
from traceanalyzer.trace.tables import MISSING

COVERED = 0.95
"""At least this share of the replayed kernels must find a partner, in order."""
_AROUND = 3
"""Products of a whole step that need not be in its graph."""
_NEAR = 8
"""How many kernels to either side of a short run are looked at."""
_MOST_DIFFERENCES = 400
"""Sequences that differ more are not compared to the end: the work grows with the square of the differences."""


@dataclass(frozen=True)
class Alignment:
    """For every replayed kernel its place in the reference, MISSING where none is beyond doubt."""

    position: Ints
    covered: float


@dataclass(frozen=True)
class Refused:
    """Why two sequences are not of the same graph, in a few words."""

    why: str


def align(names: Sequence[str], grids: Ints, reference: Reference) -> Alignment | Refused:
    """Line up a replayed sequence with a reference, or say why that cannot be done.

    Args:
        names: the replayed kernels' names, in order.
        grids: their grids and blocks, as `Reference.grids`.
        reference: what they may be a replay of.
    """
    if not names or not reference.names:
        return Refused("there is nothing to compare")
    own, theirs = _compared(names, reference.names)
    asked, known = _tokens(names, grids, reference)
    asked, known = [asked[i] for i in own], [known[i] for i in theirs]
    common = sum((Counter(asked) & Counter(known)).values())
    if common < COVERED * len(asked):
        by_name = sum((Counter(map(_named, names)) & Counter(map(_named, reference.names))).values())
        if by_name >= COVERED * len(names):
            return Refused("the same kernels ran on grids of another size")
        return Refused(f"{len(names) - by_name} of {len(names)} kernels have other names")
    position = _common(asked, known, _most(len(asked), len(known)))
    if position is None or (position >= 0).mean() < COVERED:
        return Refused("the same kernels ran in another order")
    covered = float((position >= 0).mean())
    if _left_over(reference, theirs[position[position >= 0]]):
        return Refused("it runs more layers than were replayed")
    position[_doubtful(asked, known, position, [reference.works[i] for i in theirs])] = MISSING
    whole = np.full(len(names), MISSING, np.int64)
    whole[own] = np.append(theirs, MISSING)[position]
    return Alignment(whole, covered)


def _compared(names: Sequence[str], others: Sequence[str]) -> tuple[Ints, Ints]:
    """The places of both sequences that are compared: all, or all but the kernels that add up split attention.

    How attention is split follows the context and the choice of the library, and shows in these alone.
    """
    helping = [[_adds_up(name) for name in each] for each in (names, others)]
    first, second = (
        Counter(name for name, helps in zip(each, those, strict=True) if helps)
        for each, those in zip((names, others), helping, strict=True)
    )
    kept = [np.arange(len(each)) for each in helping]
    if first != second:
        kept = [np.flatnonzero(~np.array(each, np.bool_)) for each in helping]
    return kept[0].astype(np.int64), kept[1].astype(np.int64)


def _adds_up(name: str) -> bool:
    kind = classify(name)
    return kind.category == "attention" and kind.role in HELPER_ROLES


def _named(name: str) -> str:
    """What a kernel is compared by: attention by being it, for libraries choose among kernels by the context."""
    return "attention" if classify(name).category == "attention" and not _adds_up(name) else name


def _left_over(reference: Reference, partners: Ints) -> bool:
    """Whether more products of the reference have no partner than may stand around its layers (the output layer)."""
    product = np.array([classify(name).category in MATRIX_CATEGORIES for name in reference.names], np.bool_)
    partner = np.zeros(len(product), np.bool_)
    partner[partners] = True
    return int((product & ~partner).sum()) > max(_AROUND, (1 - COVERED) * int(product.sum()))


def _most(asked: int, known: int) -> int:
    """The most insertions and deletions that an alignment which covers enough can have."""
    return min(2 * int((1 - COVERED) * asked) + abs(known - asked), _MOST_DIFFERENCES)


def _tokens(names: Sequence[str], grids: Ints, reference: Reference) -> tuple[list[int], list[int]]:
    """Both sequences as numbers that are equal where the kernels are."""
    both = _has_grids(grids) and _has_grids(reference.grids)
    place: dict[object, int] = {}

    def numbered(texts: Sequence[str], sizes: Ints) -> list[int]:
        keys = (
            (text, *size) if both and classify(text).category != "attention" else _named(text)
            for text, size in zip(texts, map(tuple, sizes.tolist()), strict=True)
        )
        return [place.setdefault(key, len(place)) for key in keys]

    return numbered(names, grids), numbered(reference.names, reference.grids)


def _has_grids(grids: Ints) -> bool:
    return bool(len(grids)) and bool((grids[:, 0] > 0).all())


def _common(asked: Sequence[int], known: Sequence[int], most: int) -> Ints | None:
    """The place of each asked number in `known` by a longest common subsequence; None past `most` differences."""
    position = np.full(len(asked), MISSING, np.int64)
    first = 0
    while first < min(len(asked), len(known)) and asked[first] == known[first]:
        first += 1
    last = 0
    while last < min(len(asked), len(known)) - first and asked[-1 - last] == known[-1 - last]:
        last += 1
    position[:first] = np.arange(first)
    if last:
        position[-last:] = np.arange(len(known) - last, len(known))
    pairs = _myers(asked[first : len(asked) - last], known[first : len(known) - last], most)
    if pairs is None:
        return None
    for i, j in pairs:
        position[first + i] = first + j
    return position


def _myers(a: Sequence[int], b: Sequence[int], most: int) -> list[tuple[int, int]] | None:
    """The pairs of a longest common subsequence, or None where it takes more than `most` insertions and deletions."""
    furthest = {1: 0}
    trail: list[dict[int, int]] = []
    for difference in range(most + 1):
        trail.append(dict(furthest))
        for diagonal in range(-difference, difference + 1, 2):
            down = diagonal == -difference or (
                diagonal != difference and furthest.get(diagonal - 1, -1) < furthest.get(diagonal + 1, -1)
            )
            x = furthest.get(diagonal + 1, 0) if down else furthest.get(diagonal - 1, 0) + 1
            y = x - diagonal
            while 0 <= x < len(a) and 0 <= y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x
            if x >= len(a) and y >= len(b):
                return _back(trail, len(a), len(b))
    return None


def _back(trail: Sequence[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    """Walk the trail of furthest points back to the start and collect what was equal on the way."""
    pairs: list[tuple[int, int]] = []
    for difference in range(len(trail) - 1, -1, -1):
        furthest = trail[difference]
        diagonal = x - y
        down = diagonal == -difference or (
            diagonal != difference and furthest.get(diagonal - 1, -1) < furthest.get(diagonal + 1, -1)
        )
        before = diagonal + 1 if down else diagonal - 1
        x_before = furthest.get(before, 0) if difference else 0
        y_before = x_before - before if difference else 0
        while x > x_before and y > y_before:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = x_before, y_before
    return pairs


def _doubtful(asked: Sequence[int], known: Sequence[int], position: Ints, works: Sequence[OpWork | None]) -> list[int]:
    """The asked places whose partner could as well be another one of different work, see the module docstring."""
    doubtful: set[int] = set()
    matched = [MISSING, *np.flatnonzero(position >= 0).tolist(), len(asked)]
    at = [MISSING, *position[position >= 0].tolist(), len(known)]
    for k in range(len(matched) - 1):
        extra = asked[matched[k] + 1 : matched[k + 1]]
        skipped = range(at[k] + 1, at[k + 1])
        if not extra and not skipped:
            continue
        for way in (range(k, 0, -1), range(k + 1, len(matched) - 1)):
            foreign = set(extra)
            passed: dict[int, list[int]] = {}
            for place in skipped:
                passed.setdefault(known[place], []).append(place)
            for step in way:
                token = known[at[step]]
                if token not in foreign and token not in passed:
                    break
                others = [works[place] for place in passed.get(token, ())]
                if token in foreign or any(other != works[at[step]] for other in others):
                    doubtful.add(matched[step])
                passed.setdefault(token, []).append(at[step])
    doubtful |= _between(known, position, works)
    return sorted(doubtful)


def _between(known: Sequence[int], position: Ints, works: Sequence[OpWork | None]) -> set[int]:
    """Places in a short run between two differences whose kernel also stands nearby with different work."""
    doubtful: set[int] = set()
    places = np.flatnonzero(position >= 0)
    breaks = np.flatnonzero((np.diff(places) != 1) | (np.diff(position[places]) != 1)) + 1
    for run in np.split(places, breaks)[1:-1]:
        if len(run) >= _NEAR:
            continue
        first, last = int(position[run[0]]), int(position[run[-1]])
        near = range(max(first - _NEAR, 0), min(last + _NEAR + 1, len(known)))
        for place in run.tolist():
            at = int(position[place])
            if any(known[j] == known[at] and works[j] != works[at] for j in near):
                doubtful.add(place)
    return doubtful
