"""Times are exact to the nanosecond and loose integers mean what they say."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace.test_damage import kernel, read, wrapped
from traceanalyzer.trace.numbers import integer, integers, nanoseconds, narrow, reals, singles


def test_times_are_exact() -> None:
    known = {
        b"1712195495534685.269": 1712195495534685269,  # a double ends in .25
        b"0": 0,
        b"5.110": 5110,
        b"17.5": 17500,
        b"17.05": 17050,
        b"3": 3000,
        b"-12.5": -12500,
        b"1.5e3": 1_500_000,
        b"1E-3": 1,
        b'"123.4"': 123_400,
        b"0.0005": 0,
        b"0.0015": 2,
        b"12.345600": 12346,
        b"9223372036854775.807": 2**63 - 1,
        b"1e300": 2**63 - 1,
        b"-1e300": -(2**63),
    }
    values, readable = nanoseconds(list(known))
    assert values.tolist() == list(known.values())
    assert readable.all()


def test_what_is_no_time_is_unknown() -> None:
    texts = [b"", b"null", b'"soon"', b"true", b"[1,\n 2]", b"{}", b'"nan"', b"7"]
    values, readable = nanoseconds(texts)
    assert readable.tolist() == [False] * 7 + [True]
    assert values.tolist() == [0] * 7 + [7000]
    assert nanoseconds([])[0].tolist() == []


@given(st.lists(st.tuples(st.integers(0, 9 * 10**18), st.integers(0, 3)), min_size=1, max_size=30))
def test_any_decimal_microseconds(numbers: list[tuple[int, int]]) -> None:
    texts, expected = [], []
    for ns, decimals in numbers:
        exact = (Decimal(ns) / 1000).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_EVEN)
        texts.append(str(exact).encode())
        expected.append(int(exact * 1000))
    values, readable = nanoseconds(texts)
    assert values.tolist() == expected
    assert readable.all()


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7), (-1, -1), ("0x1f", 31), ("0x0", 0), ("4096", 4096), ("stream 7", 7), ("GPU 12 ", 12), (3.0, 3),
        (None, -1), ("", -1), ("none", -1), (2**63, -1), (2**63 - 1, 2**63 - 1), (float("inf"), -1), (1e30, -1),
        ("9" * 40, -1), ([1], -1),
    ],
)  # fmt: skip
def test_loose_integers(value: object, number: int) -> None:
    assert integer(value) == number
    assert integers([value, 5]).tolist() == [number, 5]


def test_narrowing_keeps_what_fits() -> None:
    limits = [2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, -(2**63), 7]
    assert narrow(np.array(limits, np.int64)).tolist() == [2**31 - 1, -1, -(2**31), -1, -1, -1, 7]


def test_loose_reals() -> None:
    found = reals([1, 2.5, None, "3.5", "x", float("inf"), 10**400])
    assert found[[0, 1, 3]].tolist() == [1.0, 2.5, 3.5]
    assert np.isnan(found[[2, 4, 5, 6]]).all()
    assert np.isnan(reals([None, None])).all()


def test_reals_beyond_single_precision_are_unknown() -> None:
    found = singles([1.5, None, 1e39, -1e308, float("inf"), "x"])
    assert found.dtype == np.float32
    assert np.array_equal(found, np.array([1.5, *[np.nan] * 5], np.float32), equal_nan=True)


def test_precision_of_old_recordings_is_noted(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    whole = read(folder, wrapped(kernel("a", 10, 1), kernel("b", 20, 2)))
    assert "whole_microseconds" in {note.code for note in whole.quality}
    exact = read(folder, wrapped(kernel("a", 10, 1), kernel("b", 20, 2.001)))
    assert "whole_microseconds" not in {note.code for note in exact.quality}
