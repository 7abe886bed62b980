"""What a user may set: prices, peaks and bandwidths within which arithmetic keeps its meaning.

Imports nothing heavy, for the command line reads it first.
"""

from __future__ import annotations

from traceanalyzer.errors import InputError

LEAST, MOST = 1e-6, 1e9
"""No price, peak or bandwidth, in the units asked for, lies outside these."""
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4", "int4")
"""The dtype words of the GPU catalogue."""


def check(name: str, value: float) -> None:
    """Take a number within the limits.

    Raises:
        InputError: it is outside them, or not a number; the message names it by `name`.
    """
    if not LEAST <= value <= MOST:
        raise InputError(f"{name}: {value} is out of range", f"between {LEAST:g} and {MOST:g}")


def check_dtype(name: str, dtype: str) -> None:
    """Take a dtype of the catalogue.

    Raises:
        InputError: it is none of them.
    """
    if dtype not in DTYPES:
        raise InputError(f"{name}: unknown dtype {dtype[:40]!r}", f"one of {' '.join(DTYPES)}")
