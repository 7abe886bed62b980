"""Option values that a user types by hand: prices, peaks and sizes. Each parser returns a value or says what is wrong.

Numbers must be finite and above zero: Python reads "nan", "inf" and "1_0" as numbers, and none of them is a price.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from traceanalyzer.analysis.limits import LEAST, MOST, check_dtype
from traceanalyzer.errors import InputError

DEFAULT_CURRENCY = "USD"

_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?"
_SYMBOLS = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY"}
_PRICE = re.compile(
    rf"\s*(?P<sign>[$€£¥])?\s*(?P<number>{_NUMBER})\s*(?P<code>[A-Za-z]{{3}}|[$€£¥])?\s*(?:/\s*(?:h|hr|hour))?\s*",
    re.ASCII,
)


def positive(option: str, text: str) -> float:
    """A number above zero, within `LEAST` and `MOST`.

    Raises:
        InputError: `text` is none; the message names `option`.
    """
    if re.fullmatch(_NUMBER, text.strip(), re.ASCII):
        value = float(text)
        if LEAST <= value <= MOST:
            return value
        if value > 0:
            raise InputError(f"{option}: {text!r} is out of range")
    raise InputError(f"{option}: {text!r} is not a number above 0")


_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_LARGEST_SIZE = 10**12


def size(option: str, text: str) -> int:
    """A size in bytes: "1GB", "500 MB", "64MiB", "2e9".

    Raises:
        InputError: `text` has another form, or is less than a byte or more than a terabyte.
    """
    found = re.fullmatch(rf"\s*({_NUMBER})\s*([kmg]?i?b)?\s*", text, re.ASCII | re.IGNORECASE)
    unit = _UNITS.get((found[2] or "").lower()) if found else None
    if found is None or unit is None:
        raise InputError(f"{option}: {text!r} is no size", "write it as 500MB or 1GB")
    value = float(found[1]) * unit
    if not 1 <= value <= _LARGEST_SIZE:
        raise InputError(f"{option}: {text!r} is out of range")
    return int(value)


def price(text: str) -> tuple[float, str]:
    """Price of one GPU for one hour and its currency: "2.5", "2.5/h", "2.5 EUR/h", "$2.50/h".

    Raises:
        InputError: `text` has another form, or two currencies.
    """
    found = _PRICE.fullmatch(text)
    if found is None or (found["sign"] and found["code"]):
        raise InputError(f"--price: {text!r} is no price per GPU and hour", "write it as 2.5/h or '2.5 EUR/h'")
    amount = positive("--price", found["number"])
    currency = found["sign"] or found["code"] or DEFAULT_CURRENCY
    return amount, _SYMBOLS.get(currency, currency.upper())


def peaks(texts: Sequence[str]) -> dict[str, float]:
    """Dense peaks in TFLOP/s by dtype, from "bf16=312" or "bf16=312,fp8=624", several times.

    Raises:
        InputError: a part is no dtype=number, the dtype is unknown, or it is given twice.
    """
    result: dict[str, float] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        dtype, equals, number = part.partition("=")
        if not equals:
            raise InputError(f"--peak-tflops: {part!r} is not DTYPE=NUMBER", "for example bf16=312")
        check_dtype("--peak-tflops", dtype)
        if dtype in result:
            raise InputError(f"--peak-tflops: {dtype} is given twice")
        result[dtype] = positive(f"--peak-tflops {dtype}", number)
    return result
