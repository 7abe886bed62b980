"""The parent of an op is the innermost op around it, by definition and by brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceanalyzer.trace.nesting import parents


def run(ops: list[tuple[int, int, int]], slack: int = 0) -> list[int]:
    thread, start, end = (np.array(column, np.int64) for column in zip(*ops, strict=True))
    return parents(thread.astype(np.int32), start, end, slack).tolist()


def test_by_hand() -> None:
    ops = [(0, 0, 100), (0, 10, 50), (0, 10, 20), (0, 30, 40), (0, 60, 70), (0, 200, 210), (1, 5, 6)]
    assert run(ops) == [-1, 0, 1, 1, 0, -1, -1]


def test_an_op_without_duration_belongs_to_what_runs_then() -> None:
    assert run([(0, 0, 10), (0, 5, 5), (0, 10, 10)]) == [-1, 0, 0]


def test_partial_overlap_does_not_hide_the_enclosing_op() -> None:
    assert run([(0, 0, 100), (0, 10, 50), (0, 40, 60), (0, 45, 55)]) == [-1, 0, 0, 2]


def test_slack_for_rounded_times() -> None:
    ops = [(0, 3000, 5000), (0, 4000, 6000), (0, 5000, 7000)]
    assert run(ops) == [-1, -1, -1]
    assert run(ops, slack=1000)[:2] == [-1, 0]


def test_ops_that_overlap_without_nesting_take_linear_time() -> None:
    """Each of 200,000 ops runs until long after the next ones began; none encloses another."""
    count = 200_000
    start = np.arange(count, dtype=np.int64)
    found = parents(np.zeros(count, np.int32), start, start + count, slack_ns=0)
    assert (found == -1).all()


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=30))
def test_against_brute_force(made: list[tuple[int, int, int]]) -> None:
    check(made, slack=0)


@given(st.lists(st.tuples(st.just(0), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=30))
def test_against_brute_force_with_slack(made: list[tuple[int, int, int]]) -> None:
    check(made, slack=3)


def check(made: list[tuple[int, int, int]], slack: int) -> None:
    ops = sorted(((t, s, s + d) for t, s, d in made), key=lambda op: (op[0], op[1], -(op[2] - op[1])))
    expected = []
    for row, (thread, start, end) in enumerate(ops):
        around = [
            p for p in range(row)
            if ops[p][0] == thread and ops[p][1] <= start and ops[p][2] + slack * (ops[p][2] > start) >= end
        ]  # fmt: skip
        expected.append(max(around, default=-1))
    assert run(ops, slack) == expected
