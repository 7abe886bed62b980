"""Interval arithmetic against counting single nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceanalyzer.analysis import intervals

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=12)


def arrays(items: list[tuple[int, int]], ordered: bool = False) -> tuple[np.ndarray, np.ndarray]:
    if ordered:
        items = sorted(items, key=lambda item: item[0])
    start = np.array([s for s, _ in items], np.int64)
    return start, start + np.array([d for _, d in items], np.int64)


def instants(start: np.ndarray, end: np.ndarray) -> set[int]:
    return {t for s, e in zip(start, end, strict=True) for t in range(s, e)}


@given(pairs)
def test_union_covers_exactly_the_instants_of_its_intervals(items: list[tuple[int, int]]) -> None:
    start, end = arrays(items)
    merged = intervals.union(start, end)
    assert instants(merged.starts, merged.ends) == instants(start, end)
    assert merged.length == len(instants(start, end))
    assert (merged.starts[1:] > merged.ends[:-1]).all()


@given(pairs, pairs)
def test_covered_counts_the_instants_shared_with_the_union(
    cover: list[tuple[int, int]], items: list[tuple[int, int]]
) -> None:
    merged = intervals.union(*arrays(cover))
    start, end = arrays(items)
    counted = [len(instants(merged.starts, merged.ends) & set(range(s, e))) for s, e in zip(start, end, strict=True)]
    assert intervals.covered(merged, start, end).tolist() == counted


@given(pairs)
def test_every_instant_is_owned_by_the_interval_that_started_first(items: list[tuple[int, int]]) -> None:
    start, end = arrays(items, ordered=True)
    own_start, own_end = intervals.owned(start, end)
    expected = [0] * len(start)
    for t in instants(start, end):
        expected[next(i for i in range(len(start)) if start[i] <= t < end[i])] += 1
    assert (own_end - own_start).tolist() == expected


@given(pairs)
def test_shared_time_divides_every_instant_equally(items: list[tuple[int, int]]) -> None:
    start, end = arrays(items)
    expected = np.zeros(len(start))
    for t in instants(start, end):
        running = (start <= t) & (t < end)
        expected[running] += 1 / running.sum()
    np.testing.assert_allclose(intervals.shared_time(start, end), expected, atol=1e-9)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_largest_remainder_keeps_the_total_and_moves_no_value_by_a_whole_unit(values: list[float]) -> None:
    exact = np.array(values)
    total = round(float(exact.sum()))
    rounded = intervals.largest_remainder(exact, total)
    assert rounded.sum() == total
    assert (np.abs(rounded - exact) <= 1.0 + 1e-6).all()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 15)), max_size=12))
def test_union_by_group_counts_the_instants_of_each_group(items: list[tuple[int, int, int]]) -> None:
    group = np.array([g for g, _, _ in items], np.int64)
    start, end = arrays([(s, d) for _, s, d in items])
    expected = [len(instants(start[group == g], end[group == g])) for g in range(4)]
    assert intervals.union_by_group(group, start, end, 4).tolist() == expected
