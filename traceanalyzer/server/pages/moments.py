"""Times for readers: the exact one in UTC, and how far away it is. The server's clock makes both."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from traceanalyzer.server.pages.words import text

_JUST_NOW_S = 45
_DAY_S = 86400
_UNITS = ((60, 60, "min"), (3600, 48, "h"), (_DAY_S, 60, "days"), (30 * _DAY_S, 24, "months"))
_LONGEST = (365 * _DAY_S, "years")
_LATEST_MS = 253_402_300_799_000


@dataclass(frozen=True, slots=True)
class Moment:
    """A time as a page shows it: for machines, in full, and relative to now."""

    iso: str
    full: str
    age: str


def moment(at_ms: int, now_ms: int) -> Moment:
    """The time `at_ms`, both in epoch milliseconds; a time beyond the year 9999 is shown as its last second."""
    when = datetime.fromtimestamp(min(max(at_ms, 0), _LATEST_MS) / 1000, UTC)
    return Moment(when.strftime("%Y-%m-%dT%H:%M:%SZ"), when.strftime("%Y-%m-%d %H:%M:%S UTC"), _age(at_ms, now_ms))


def _age(at_ms: int, now_ms: int) -> str:
    away = (now_ms - at_ms) / 1000
    if abs(away) < _JUST_NOW_S:
        return text("age.now")
    amount, unit = _amount(abs(away))
    return text("age.ago" if away > 0 else "age.in", amount=amount, unit=unit)


def _amount(seconds: float) -> tuple[int, str]:
    """A whole amount of the smallest unit that keeps it readable."""
    for size, most, unit in _UNITS:
        amount = max(1, round(seconds / size))
        if amount < most:
            return amount, unit
    size, unit = _LONGEST
    return round(seconds / size), unit
