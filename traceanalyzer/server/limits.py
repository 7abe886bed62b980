"""How much one caller may ask for in a time: token buckets in memory.

What could be wrong: the buckets are this process's own, and a restart forgives. At most `_MOST_KEYS` callers are
remembered; one that was forgotten starts again with a full bucket.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from traceanalyzer.server.problems import Problem
from traceanalyzer.server.settings import Limits

_MOST_KEYS = 10_000


@dataclass(slots=True)
class _Bucket:
    level: float
    seen: float


class Buckets:
    """One bucket per key: it holds `capacity` and fills in `period_s` seconds.

    Args:
        capacity: how much may be taken at once.
        period_s: how long an empty bucket takes to fill.
        clock: seconds that only grow.
    """

    def __init__(self, capacity: float, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """No key is known yet: every bucket is full."""
        self._capacity = float(capacity)
        self._rate = capacity / period_s
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, key: str, amount: float = 1.0) -> float:
        """Take `amount`; returns 0, or the seconds to wait where less than 1 was left.

        Taking may leave a debt, so that a large body is not refused for its size. A refused request takes nothing.
        """
        with self._lock:
            bucket = self._of(key)
            if bucket.level < 1:
                return (1 - bucket.level) / self._rate
            bucket.level -= amount
            return 0.0

    def _of(self, key: str) -> _Bucket:
        now = self._clock()
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(self._capacity, now)
            if len(self._buckets) > _MOST_KEYS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        bucket.level = min(self._capacity, bucket.level + (now - bucket.seen) * self._rate)
        bucket.seen = now
        return bucket


class Rates:
    """The rates of one server: requests and uploaded bytes per token, failed requests per address."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        """Every caller starts with full buckets."""
        self._requests = Buckets(limits.requests_per_minute, 60, clock)
        self._bytes = Buckets(limits.upload_bytes_per_hour, 3600, clock)
        self._failures = Buckets(limits.failures_per_minute, 60, clock)

    def request(self, key: str) -> None:
        """Count one request of a caller; raises the 429 when there were too many."""
        _refuse_after(self._requests.take(key), "too many requests with this token")

    def uploaded(self, key: str, count: int) -> None:
        """Count bytes of a body; raises the 429 when there were too many in this hour."""
        _refuse_after(self._bytes.take(key, count), "too many bytes uploaded with this token")

    def failed(self, address: str) -> None:
        """Count one request without a good token; raises the 429 when an address tries too often."""
        _refuse_after(self._failures.take(address), "too many requests without a valid token")


def _refuse_after(seconds: float, what: str) -> None:
    if seconds:
        raise Problem(429, f"{what}; wait as long as Retry-After says", {"Retry-After": str(int(seconds) + 1)})
