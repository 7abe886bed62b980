"""Hands finished windows to the spool, with what is known about their processes at that moment.

What could be wrong: the engine's metrics are asked for when a window is seen to open and to close, up to a tick late;
rates are over the time between the two answers. Counters of the last tenth of a second may not be there yet.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

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

_SUMMARY_S = 2.0
_SUMMARY_COST = 20
"""A step log is summed up anew when its sum is this old, or so many times older than it took to make."""


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
        self._summaries: dict[int, tuple[float, float, dict[str, Any]]] = {}

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
        """Hand over what has its metrics, or will not get them."""
        waiting, self._waiting = self._waiting, []
        for window, until in waiting:
            asked = self._asked.get(window.number, [])
            if time.monotonic() < until and not all(answer.done() for answer in asked):
                self._waiting.append((window, until))
                continue
            self._asked.pop(window.number, None)
            answers = [answer.result() if answer.done() else None for answer in asked]
            if len(answers) == 2:
                window.service = between(*answers)
            self._spool.add(window, self._abouts(window))

    def close(self) -> None:
        """Hand over everything, without waiting for metrics."""
        self._waiting = [(window, 0.0) for window, _ in self._waiting]
        self.tick()

    def _abouts(self, window: Window) -> dict[int, About]:
        known = {process.pid: process for process in [*self._processes.ended, *self._processes.live]}
        raws = {raw.pid: raw for raw in window.raws}
        return {pid: self._about(known[pid], raws.get(pid), window) for pid in {*raws, *window.missing} if pid in known}

    def _about(self, process: Process, raw: RawWindow | None, window: Window) -> About:
        span = (raw.opened_ns, raw.closed_ns) if raw is not None else (None, None)
        overhead: dict[str, Any] = {}
        gpu: dict[str, Any] = {}
        if span[0] is not None and span[1] is not None:
            if window.reason != "full":  # there no step is unprofiled
                overhead = process.log.overhead(span[0], span[1])
            if self._counters is not None:
                gpu = self._counters.between(span[0], span[1], process.facts.get("gpu"))
        return About(
            process=dict(process.facts), steplog=self._summary(process), overhead=overhead, gpu=gpu,
            service=window.service, context_sum=self._contexts.get(process.pid),
        )  # fmt: skip

    def _summary(self, process: Process) -> dict[str, Any]:
        """The step log's sum; in mode `full` windows may come faster than it can be made anew."""
        made, cost, found = self._summaries.get(process.pid, (float("-inf"), 0.0, {}))
        now = time.monotonic()
        if now - made > max(_SUMMARY_S, cost * _SUMMARY_COST):
            found = process.log.summary(time.time_ns())
            self._summaries[process.pid] = (now, time.monotonic() - now, found)
        return found
