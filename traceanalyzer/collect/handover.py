"""Hands finished windows to the spool, with what is known about their processes at that moment.

What could be wrong: the engine's metrics are asked for when a window is seen to open and to close, up to a tick late;
rates are over the time between the two answers. Counters of the last tenth of a second may not be there yet. A long
step log takes a while to be summed up: windows that come faster wait for the next sum, which then covers a few seconds
after them, too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from .block import About
from .control import Control
from .counters import Counters
from .facts import RawWindow, Window
from .inside import layout
from .processes import Process, Processes
from .service import TIMEOUT_S, Service, between
from .spool import Spool
from .takers import LABELS_AFTER_NS, LABELS_BEFORE_NS

if TYPE_CHECKING:
    from concurrent.futures import Future

_REST = 20
"""Least time between two sums of one step log, as a multiple of what one took."""


class _Sum(NamedTuple):
    """A step log's sum: when it was begun and how long it took, in monotonic seconds."""

    made_s: float
    took_s: float
    found: dict[str, Any]


class HandOver:
    """Windows on their way to the spool."""

    def __init__(self, spool: Spool, processes: Processes, counters: Counters | None, service: Service | None) -> None:
        """All four stay the caller's."""
        self._spool = spool
        self._processes = processes
        self._counters = counters
        self._service = service
        self._asked: dict[int, list[Future[dict[str, Any] | None]]] = {}
        self._waiting: list[tuple[Window, float]] = []
        self._contexts: dict[int, int] = {}
        self._sums: dict[int, _Sum] = {}
        self._ticked_s = float("-inf")
        self._closing = False

    def see(self) -> None:
        """To be called after each refresh of the processes: remembers the length of what is in flight."""
        for process in self._processes.live:
            if process.fresh:
                self._contexts[process.pid] = process.fresh[-1].context_sum

    def watch(self, window: Window | None, control: Control, now_ns: int) -> None:
        """Ask the engine when the current window opens and when it closes."""
        if self._service is None or window is None or control.word(layout.WINDOW_ID) != window.number:
            return
        until = control.word(layout.RECORD_UNTIL_NS)  # 0 with the recorder `python`, which opens at the next step
        asked = self._asked.setdefault(window.number, [])
        opened = not until or now_ns >= control.word(layout.RECORD_FROM_NS) + LABELS_BEFORE_NS
        closed = until and now_ns >= until - LABELS_AFTER_NS
        if (opened and not asked) or (closed and len(asked) == 1):
            asked.append(self._service.ask())

    def add(self, window: Window) -> None:
        """A finished window: it is handed over by `tick`."""
        asked = self._asked.get(window.number)
        if self._service is not None and asked and len(asked) == 1:
            asked.append(self._service.ask())
        self._waiting.append((window, time.monotonic() + 2 * TIMEOUT_S))

    def tick(self) -> None:
        """Hand over what has its metrics, or will not get them, and whose step logs may be summed up now."""
        waiting, self._waiting = self._waiting, []
        self._ticked_s = time.monotonic()
        for window, until in waiting:
            asked = self._asked.get(window.number, [])
            if not self._closing and (
                (self._ticked_s < until and not all(answer.done() for answer in asked)) or self._rests(window)
            ):
                self._waiting.append((window, until))
                continue
            self._asked.pop(window.number, None)
            answers = [answer.result() if answer.done() else None for answer in asked]
            if len(answers) == 2:
                window.service = between(*answers)
            self._spool.add(window, self._abouts(window))

    def close(self) -> None:
        """Hand over everything as it is now, without waiting for metrics."""
        self._closing = True
        self.tick()

    def _rests(self, window: Window) -> bool:
        """Whether a step log of the window was summed up before this tick, and too little time has passed since."""
        sums = [self._sums[raw.pid] for raw in window.raws if raw.pid in self._sums]
        return any(one.made_s < self._ticked_s < one.made_s + _REST * one.took_s for one in sums)

    def _abouts(self, window: Window) -> dict[int, About]:
        known = {process.pid: process for process in [*self._processes.ended, *self._processes.live]}
        raws = {raw.pid: raw for raw in window.raws}
        return {pid: self._about(known[pid], raws.get(pid), window) for pid in {*raws, *window.missing} if pid in known}

    def _about(self, process: Process, raw: RawWindow | None, window: Window) -> About:
        opened, closed = (raw.opened_ns, raw.whole_until_ns) if raw is not None else (None, None)
        overhead: dict[str, Any] = {}
        gpu: dict[str, Any] = {}
        if opened is not None and closed is not None:
            if window.reason != "full":  # there no step is unprofiled
                overhead = process.log.overhead(opened, closed)
            if self._counters is not None:
                gpu = self._counters.between(opened, closed, process.facts.get("gpu"))
        return About(
            process=dict(process.facts), steplog=self._summary(process), overhead=overhead, gpu=gpu,
            service=window.service, context_sum=self._contexts.get(process.pid),
        )  # fmt: skip

    def _summary(self, process: Process) -> dict[str, Any]:
        """The sum of a process' steps up to now, made once for all windows of a tick."""
        last = self._sums.get(process.pid)
        began = time.monotonic()
        if last is None or last.made_s < self._ticked_s:
            process.catch_up()
            found = process.log.summary(time.time_ns())
            found.update(steps_overwritten=process.ring.lost, steps_beyond_log=process.log.dropped)
            last = self._sums[process.pid] = _Sum(began, time.monotonic() - began, found)
        return last.found
