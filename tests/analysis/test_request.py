"""Times between tokens, counted instead of repeated."""

from __future__ import annotations

import numpy as np
import pytest

from traceanalyzer.analysis.request import _percentile


@pytest.mark.parametrize("percent", [0, 50, 90, 99, 100])
def test_counted_values_have_the_percentiles_of_repeated_ones(percent: float) -> None:
    made = np.random.default_rng(7)
    for size in (1, 2, 5, 40):
        values, counts = made.integers(1, 100, size).astype(np.float64), made.integers(1, 9, size)
        wanted = np.percentile(np.repeat(values, counts), percent)
        assert _percentile(values, counts.astype(np.float64), percent) == pytest.approx(wanted, rel=1e-12)


def test_more_tokens_than_memory_holds_are_no_failure() -> None:
    assert _percentile(np.array([1.0, 3.0]), np.array([9e15, 1.0]), 50) == 1.0
    assert _percentile(np.array([1.0, 3.0]), np.array([9e18, 9e18]), 99) == 3.0


def test_no_token_has_no_time() -> None:
    assert _percentile(np.array([]), np.array([]), 50) is None
    assert _percentile(np.array([5.0]), np.array([0.0]), 50) is None
