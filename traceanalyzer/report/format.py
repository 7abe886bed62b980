"""Numbers as people read them: three significant digits, a unit that fits, and "unknown" for what is not known.

Every figure of the page, the Markdown and the terminal goes through here, so that they print the same text. What could
be wrong: rounding hides differences below half a percent (the JSON keeps full precision), and units are decimal
(1 GB = 1e9 bytes), as on the sheets of the GPU vendors.
"""

from __future__ import annotations

import math

UNKNOWN = "unknown"
"""What stands where a figure is not known; never 0 and never an empty cell."""

TIMES = "\N{MULTIPLICATION SIGN}"
DASH = "\N{EN DASH}"
_MICRO = "\N{MICRO SIGN}s"


def known(value: float | None) -> bool:
    """Whether there is a finite number to print."""
    return value is not None and math.isfinite(value)


def significant(value: float, digits: int = 3) -> str:
    """A number rounded to `digits` significant digits, with thousands separators and without an exponent.

    Integer digits are never rounded away: 15360 stays "15,360".
    """
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    places = max(0, digits - 1 - magnitude)
    rounded = round(value, places)
    if rounded and math.floor(math.log10(abs(rounded))) > magnitude:  # 9.996 -> 10.0, not 10.00
        places = max(0, places - 1)
    return f"{rounded:,.{places}f}"


def count(value: float | None) -> str:
    """A count, such as tokens or kernels: integers in full, means to three digits."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{int(value):,}" if float(value).is_integer() else significant(value)


def duration(us: float | None) -> str:
    """A time given in microseconds: "812 µs", "20.1 ms", "1.25 s"."""
    if us is None or not math.isfinite(us):
        return UNKNOWN
    return _scaled(us, ((1e6, "s"), (1e3, "ms"), (1.0, _MICRO)))


def size(number_of_bytes: float | None) -> str:
    """Bytes: "93.3 MB", "16.1 GB" (decimal)."""
    if number_of_bytes is None or not math.isfinite(number_of_bytes):
        return UNKNOWN
    return _scaled(number_of_bytes, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")))


def work(flops: float | None) -> str:
    """Floating-point operations: "8.22 TFLOP", "16.1 GFLOP"."""
    if flops is None or not math.isfinite(flops):
        return UNKNOWN
    units = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"), (1.0, "FLOP"))
    return _scaled(flops, units)


def flop_rate(tflops: float | None) -> str:
    """A rate given in TFLOP/s: "137 TFLOP/s", "8.4 GFLOP/s"."""
    if tflops is None or not math.isfinite(tflops):
        return UNKNOWN
    return _scaled(tflops * 1e12, ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s")))


def byte_rate(gbs: float | None) -> str:
    """A rate given in GB/s: "2.04 TB/s", "746 GB/s"."""
    if gbs is None or not math.isfinite(gbs):
        return UNKNOWN
    return _scaled(gbs * 1e9, ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s")))


def percent(share: float | None) -> str:
    """A share of one: "61 %", "8.1 %", "99.8 %". Neither a small share prints as 0 nor a nearly full one as 100."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    value = round(share * 100, 7)  # shares that are sums of floats may miss 1 by a last digit
    if value == 0:
        return "0 %"
    if abs(value) < 0.1:
        return "< 0.1 %"
    if abs(value) < 9.95 or 99 < value < 100:
        return f"{min(value, 99.9) if value < 100 else value:.1f} %"
    return f"{value:,.0f} %"


def fraction(share: float | None) -> str:
    """A share of one: as one over a whole number where it is a tenth or less, such as "1/512", else in percent."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    return f"1/{count(round(1 / share))}" if 0 < share <= 0.1 else percent(share)


def percent_range(low: float | None, high: float | None) -> str:
    """A range of shares: the two ends around a dash; one figure when both ends read the same."""
    if not known(low) or not known(high):
        return UNKNOWN
    first, last = percent(low), percent(high)
    return first if first == last else f"{first} {DASH} {last}"


def factor(ratio: float | None) -> str:
    """A ratio, two digits and a multiplication sign."""
    if ratio is None or not math.isfinite(ratio):
        return UNKNOWN
    return f"{significant(ratio, 2)} {TIMES}"


def intensity(flop_per_byte: float | None) -> str:
    """Arithmetic intensity in FLOP per byte."""
    if flop_per_byte is None or not math.isfinite(flop_per_byte):
        return UNKNOWN
    return f"{significant(flop_per_byte)} FLOP/B"


def rate(per_second: float | None, unit: str) -> str:
    """Something per second, such as tokens: "47.6 tokens/s"."""
    if per_second is None or not math.isfinite(per_second):
        return UNKNOWN
    return f"{significant(per_second)} {unit}/s"


def money(amount: float | None, currency: str) -> str:
    """An amount of money: "0.185 CNY"."""
    if amount is None or not math.isfinite(amount):
        return UNKNOWN
    return f"{significant(amount)} {currency}"


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    """The value in the largest unit in which it is at least one, after rounding to three digits."""
    for scale, unit in units[:-1]:
        if abs(value) >= 0.9995 * scale:
            return f"{significant(value / scale)} {unit}"
    scale, unit = units[-1]
    return f"{significant(value / scale)} {unit}"
