"""Turns recorded numbers into columns: decimal microseconds exactly into nanoseconds, loose integers into int64.

What could be wrong: more than three decimals are rounded to the nearest nanosecond, and text that is no number at all
reads as missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from traceanalyzer.trace.tables import MISSING

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_INT64 = np.iinfo(np.int64)
_NEWLINE, _DOT, _ZERO = 10, 46, 48
_NS_DIGITS = 18
_NUMBER_AT_END = re.compile(r"(?:^|\D)(\d{1,18})\s*$")


def nanoseconds(texts: Sequence[Raw | bytes]) -> tuple[Ints, Bools]:
    """Decimal microseconds as exact integer nanoseconds.

    Args:
        texts: n JSON texts, numbers or strings that hold one.

    Returns:
        n nanoseconds (int64, 0 where unreadable, the nearest where beyond int64) and n flags that say which could be
        read.
    """
    count = len(texts)
    values = np.zeros(count, np.int64)
    known = np.zeros(count, np.bool_)
    joined = b"\n".join(texts) + b"\n"
    raw = np.frombuffer(joined, np.uint8)
    ends = np.flatnonzero(raw == _NEWLINE)
    if count and len(ends) == count:
        starts = np.concatenate(([0], ends[:-1] + 1))
        dots = np.flatnonzero(raw == _DOT)
        decimals = np.full(count, -1, np.int64)
        decimals_row = np.searchsorted(ends, dots)
        decimals[decimals_row] = ends[decimals_row] - dots - 1
        shapes = (ends - starts) * 32 + np.minimum(decimals, 4) + 1
        for shape in np.unique(shapes):
            length, places = divmod(int(shape), 32)
            _fixed_width(raw, starts, np.flatnonzero(shapes == shape), length, places - 1, values, known)
    for row in np.flatnonzero(~known).tolist():
        exact = _decimal_ns(bytes(texts[row]))
        if exact is not None:
            values[row], known[row] = exact, True
    return values, known


def _fixed_width(
    raw: npt.NDArray[np.uint8], starts: Ints, rows: Ints, length: int, places: int, values: Ints, known: Bools
) -> None:
    """Parse the `rows` whose texts are `length` characters long with `places` decimals (-1: no dot)."""
    whole = length if places < 0 else length - 1 - places
    if places == 0 or places > 3 or whole < 1 or whole + 3 > _NS_DIGITS + 1:
        return
    begin = starts[rows]
    value = np.zeros(len(rows), np.int64)
    good = np.ones(len(rows), np.bool_)
    for column in range(length):
        if places > 0 and column == whole:
            good &= raw[begin + column] == _DOT
            continue
        digit = raw[begin + column] - np.uint8(_ZERO)
        good &= digit < 10
        if column == 0 and whole + 3 > _NS_DIGITS:
            good &= digit < 9
        value = value * 10 + digit
    values[rows] = np.where(good, value * 10 ** (3 - max(places, 0)), 0)
    known[rows] = good


def _decimal_ns(text: bytes) -> int | None:
    try:
        exact = Decimal(text.decode().strip().strip('"')) * 1000
        if not exact.is_finite():
            return None
        if abs(exact) >= _INT64.max:
            return int(_INT64.max) if exact > 0 else int(_INT64.min)
        return int(exact.to_integral_value(ROUND_HALF_EVEN))
    except (InvalidOperation, UnicodeDecodeError):
        return None


def integers(values: Sequence[object]) -> Ints:
    """Loose integers as int64: numbers, decimal or hex text, text that ends in a number; else MISSING."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.fromiter((integer(value) for value in values), np.int64, len(values))


def integer(value: object) -> int:
    """One loose integer; MISSING where it is none or does not fit in 64 bits."""
    number = MISSING
    if isinstance(value, float):
        number = int(value) if abs(value) < 2**63 else MISSING
    elif isinstance(value, int):
        number = value
    elif isinstance(value, str):
        number = _text_integer(value.strip())
    return number if _INT64.min <= number <= _INT64.max else MISSING


def _text_integer(text: str) -> int:
    try:
        if len(text) <= 20:
            return int(text, 16) if text[:2].lower() == "0x" else int(text)
    except ValueError:
        pass
    match = _NUMBER_AT_END.search(text)
    return int(match.group(1)) if match else MISSING


def narrow(values: Ints) -> npt.NDArray[np.int32]:
    """int64 as int32, MISSING where it does not fit."""
    fits = (values >= -(2**31)) & (values < 2**31)
    return np.where(fits, values, MISSING).astype(np.int32)


def reals(values: Sequence[object]) -> npt.NDArray[np.float64]:
    """Loose numbers as float64, NaN where unknown."""
    try:
        result = np.array(values, np.float64)  # None becomes NaN
    except (TypeError, ValueError, OverflowError):
        result = np.fromiter((_real(value) for value in values), np.float64, len(values))
    result[~np.isfinite(result)] = np.nan
    return result


def _real(value: object) -> float:
    try:
        return float(value) if isinstance(value, int | float | str) else np.nan
    except (ValueError, OverflowError):
        return np.nan
