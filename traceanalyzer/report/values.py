"""Cell values of the Report: nanoseconds to microseconds, NaN to None, names capped."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

MAX_NAME = 400
"""Characters of a name that are kept; the longest real kernel names differ within their first few hundred."""


def us(ns: float | None) -> float | None:
    """Nanoseconds as microseconds; unknown stays unknown."""
    return None if ns is None or math.isnan(ns) else ns / 1e3


def number(value: Any) -> float | None:
    """A cell of a table as a float; NaN, NA and None are unknown."""
    return None if value is None or pd.isna(value) else float(value)


def whole(value: Any) -> int | None:
    """A cell of a table as an integer; NaN, NA and None are unknown."""
    return None if value is None or pd.isna(value) else round(float(value))


def capped(text: str) -> str:
    """A name cut to `MAX_NAME` characters, with an ellipsis where it was longer."""
    return text if len(text) <= MAX_NAME else text[: MAX_NAME - 1] + "\N{HORIZONTAL ELLIPSIS}"
