"""Turns recorded numbers into columns: decimal microseconds exactly into nanoseconds, loose integers into int64.

What could be wrong: more than three decimals are rounded to the nearest nanosecond, and text that is no number at all
reads as missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from itertools import compress

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from traceanalyzer.trace.tables import MISSING

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_INT64 = np.iinfo(np.int64)
_NEWLINE, _DOT, _ZERO, _NINE = 10, 46, 48, 57
_DECIMALS, _WHOLE_DIGITS = 3, 16
"""The most digits after and before the point that are read at once; 16 before it fit in int64 below a leading 9."""
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
    known, decimals = _plain(b"\n".join(texts) + b"\n", count)
    plain = texts if known.all() else list(compress(texts, known.tolist()))
    if plain:
        digits = b"\n".join(plain).replace(b".", b"")
        values[known] = np.fromstring(digits, np.int64, sep="\n") * 10 ** (_DECIMALS - decimals[known])
    for row in np.flatnonzero(~known).tolist():
        exact = _decimal_ns(bytes(texts[row]))
        if exact is not None:
            values[row], known[row] = exact, True
    return values, known


def _plain(lines: bytes, count: int) -> tuple[Bools, Ints]:
    """Which of `count` lines are digits, with a point and up to three more digits or without, and how many more."""
    raw = np.frombuffer(lines, np.uint8)
    ends = np.flatnonzero(raw == _NEWLINE)
    decimals = np.zeros(count, np.int64)
    if len(ends) != count:
        return np.zeros(count, np.bool_), decimals
    starts = np.concatenate(([0], ends[:-1] + 1))
    is_dot = raw == _DOT
    dots = np.flatnonzero(is_dot)
    if len(dots) == count and (dots > starts).all() and (dots < ends).all():
        points, decimals = np.ones(count, np.int64), ends - dots - 1
    else:
        row = np.searchsorted(ends, dots)
        points = np.bincount(row, minlength=count)
        decimals[row] = ends[row] - dots - 1
    whole = ends - starts - points - decimals
    plain: Bools = (whole >= 1) & (whole <= _WHOLE_DIGITS) & ((whole < _WHOLE_DIGITS) | (raw[starts] < _NINE))
    plain &= (points == 0) | ((points == 1) & (decimals >= 1) & (decimals <= _DECIMALS))
    other = raw - np.uint8(_ZERO) > 9  # wraps around below the digit zero
    if np.count_nonzero(other) > count + len(dots):
        plain[np.searchsorted(ends, np.flatnonzero(other & ~is_dot & (raw != _NEWLINE)))] = False
    return plain, decimals


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


def singles(values: Sequence[object]) -> npt.NDArray[np.float32]:
    """Loose numbers as float32, NaN where unknown or beyond it."""
    wide = reals(values)
    return np.where(np.abs(wide) <= np.finfo(np.float32).max, wide, np.nan).astype(np.float32)


def _real(value: object) -> float:
    try:
        return float(value) if isinstance(value, int | float | str) else np.nan
    except (ValueError, OverflowError):
        return np.nan
