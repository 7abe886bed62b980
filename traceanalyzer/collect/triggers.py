"""When a window is to be taken in mode `sample`: by the clock, by requests, by slow steps, or because someone asked.

What could be wrong: a percentile of decode steps follows a slow change of load and does not tell it from a fault; a
fixed limit does. Ranks that share each step see the same requests: of processes that say they belong to more than one
rank, the one with most requests counts, so that of data-parallel ranks some requests are not counted.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Iterable, Protocol, Sequence

from .options import OnLatency, Options
from .steplog import percentile

BACK_OFF_S = 60.0
"""After a slow step the next one is overlooked for so long, twice as long each time, at most `MOST_BACK_OFF_S`."""
MOST_BACK_OFF_S = 1800.0
_CALM = 4
"""After so many times the back-off without a slow step it starts from the beginning."""
LEAST_PERIODS = 200
"""Decode steps that a percentile needs."""
_BASELINE = 4096
_LOOK_AGAIN_S = 1.0


class Seen(Protocol):
    """What is needed of `processes.Process`."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def shares_steps(self) -> bool:
        """Whether other ranks run the same steps."""

    @property
    def fresh_requests(self) -> int:
        """Sequences that started since the last refresh."""

    @property
    def fresh_periods(self) -> Sequence[int]:
        """Decode periods since then, ns."""


class Triggers:
    """The triggers of a run. `now` is any clock in seconds that only goes forward, the same in all calls."""

    def __init__(self, options: Options, now: float, chance: random.Random | None = None) -> None:
        """Start counting."""
        self._options = options
        self._chance = chance or random.Random()  # noqa: S311 - spreads windows, keeps no secret
        self._begin = now + options.start_after_s
        self._next = self._begin if options.start_after_s else now + self._interval()
        self._asked: deque[str] = deque()
        self._requests: dict[int, int] = {}
        self._shared: dict[int, int] = {}
        self._counted = 0
        self._slow = _Slow(options.on_latency) if options.on_latency is not None else None

    def ask(self, reason: str) -> None:
        """Someone wants a window: signal or http. Safe in a signal handler; asking twice at once is asking once."""
        if reason not in self._asked:
            self._asked.append(reason)

    def due(self, now: float, processes: Iterable[Seen]) -> str | None:
        """Why a window is due now: signal | http | latency | requests | every; None: it is not.

        To be called once after each `Processes.refresh`, with the live processes.
        """
        slow = False
        for process in processes:
            self._count(process)
            if self._slow is not None and process.fresh_periods:
                slow = self._slow.see(now, process.fresh_periods) or slow
        if self._asked:
            return self._asked.popleft()
        if now < self._begin:
            self._counted = self._total()
            return None
        if slow and self._slow is not None and self._slow.fire(now):
            return "latency"
        if self._options.every_requests and self._total() - self._counted >= self._options.every_requests:
            self._counted = self._total()
            return "requests"
        if self._options.every_s and now >= self._next:
            self._next = now + self._interval()
            return "every"
        return None

    def _interval(self) -> float:
        jitter = self._options.jitter
        return (self._options.every_s or 0.0) * (1 + self._chance.uniform(-jitter, jitter))

    def _count(self, process: Seen) -> None:
        counts = self._shared if process.shares_steps else self._requests
        if process.fresh_requests:
            counts[process.pid] = counts.get(process.pid, 0) + process.fresh_requests

    def _total(self) -> int:
        return sum(self._requests.values()) + max(self._shared.values(), default=0)


class _Slow:
    """Notices decode steps that took long, and forgets to for a while after each window."""

    def __init__(self, wanted: OnLatency) -> None:
        self._wanted = wanted
        self._periods: deque[int] = deque(maxlen=_BASELINE)
        self._limit_ns = float("inf") if wanted.limit_s is None else wanted.limit_s * 1e9
        self._looked = float("-inf")
        self._quiet_until = float("-inf")
        self._back_off = BACK_OFF_S

    def see(self, now: float, periods: Sequence[int]) -> bool:
        """Whether one of these is too long, by what was usual before them."""
        if self._wanted.factor is not None and now - self._looked >= _LOOK_AGAIN_S:
            self._looked = now
            if len(self._periods) >= LEAST_PERIODS:
                usual = percentile(sorted(self._periods), self._wanted.percentile or 50) or 0
                self._limit_ns = usual * self._wanted.factor
        self._periods.extend(periods)
        return max(periods) > self._limit_ns

    def fire(self, now: float) -> bool:
        """Whether a slow step leads to a window now."""
        if now < self._quiet_until:
            return False
        calm = now - self._quiet_until > _CALM * self._back_off
        self._back_off = BACK_OFF_S if calm else min(MOST_BACK_OFF_S, self._back_off * 2)
        self._quiet_until = now + self._back_off
        return True
