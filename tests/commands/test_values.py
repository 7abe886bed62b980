"""Prices and peaks as users type them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceanalyzer.commands import values
from traceanalyzer.errors import InputError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.5", (2.5, "USD")),
        ("2.5/h", (2.5, "USD")),
        (" 2.5 / hour ", (2.5, "USD")),
        ("2.5 EUR/h", (2.5, "EUR")),
        ("2.5eur/hr", (2.5, "EUR")),
        ("$3/h", (3.0, "USD")),
        ("€ 3.20", (3.2, "EUR")),
        ("3.20€/h", (3.2, "EUR")),
        ("1e-2", (0.01, "USD")),
    ],
)
def test_prices_that_people_write(text: str, expected: tuple[float, str]) -> None:
    assert values.price(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "free", "0", "0.0/h", "-1", "nan", "inf", "1e999", "2,5", "2.5/d", "$2 EUR", "1_000", "٣", "2.5 EURO/h", "\n"],
)
def test_what_is_no_price_is_said_in_one_line(text: str) -> None:
    with pytest.raises(InputError) as caught:
        values.price(text)
    assert "--price" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_peaks_come_one_by_one_or_together() -> None:
    assert values.peaks(["bf16=312", "fp8=624.5, fp32=19.5"]) == {"bf16": 312.0, "fp8": 624.5, "fp32": 19.5}
    assert values.peaks([]) == {}


@pytest.mark.parametrize(
    "texts",
    [
        *([text] for text in ("", "bf16", "bf16=", "bf16=x", "bf16=nan", "bf16=-1", "bf16=0", "bfloat16=3", "=3")),
        ["bf16=1", "bf16=2"],
        ["bf16=1,,"],
    ],
)
def test_what_is_no_peak_is_refused(texts: list[str]) -> None:
    with pytest.raises(InputError, match="--peak-tflops"):
        values.peaks(texts)


@given(st.text())
def test_any_text_is_a_finite_price_or_one_message(text: str) -> None:
    try:
        amount, currency = values.price(text)
    except InputError:
        return
    assert 0 < amount < float("inf")
    assert len(currency) == 3
    assert currency.isascii()


@given(st.lists(st.text(alphabet="bf16p=,.e+- 0", max_size=12), max_size=3))
def test_any_peaks_are_finite_or_one_message(texts: list[str]) -> None:
    try:
        result = values.peaks(texts)
    except InputError:
        return
    assert all(0 < value < float("inf") for value in result.values())
