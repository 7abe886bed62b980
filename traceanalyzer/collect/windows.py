"""Which window is taken when: one at a time over all ranks, within limits, when the batch has settled.

A window in mode `sample` is asked for, waits until the batch size has been the same for a while (at most 20 s; a window
that was not granted that says so), then until nothing hinders the recorder, is taken, and is finished when each process
gave its file or none can come any more. Where none came for a reason that passes, it is begun anew, a few times. In
mode `full` the processes take windows by themselves; only their files are collected. All times named `now` are epoch
seconds.

What could be wrong: the number of steps becomes a duration from what steps took lately, times what profiling cost the
last time (at first a guess). When steps then take longer, a window holds fewer than were asked for, when they are
faster, more. Its request lies seconds before its start, and the batch may change in between.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from pathlib import Path
from typing import Protocol

from .facts import Refused, Window
from .inside import layout
from .kineto import Daemon
from .options import Options
from .processes import Process, Processes
from .say import say
from .takers import EMPTY, PASSING, UNDONE, Asks, AtSteps, OnDemand, read_meta

SETTLE_S = 20.0
"""Longest wait for a stable batch, and for a first step."""
HINDERED_S = 10.0
"""Longest wait for what hinders the recorder."""
UNLABELLED_S = 20.0
"""So long after torch was imported a process without a model that is known is recorded without labels, where no
process has an engine that is known."""
_DAY_S = 86_400.0
_LEAST_MS = 20
_EDGE_STEPS = 2
"""The first and the last step of a window that is bounded by time are cut off."""
_LOOK_S = 0.2
_MOST_TRIES = 4
_LONGER = 4
"""A window without a step in it is made longer by this factor."""


class Commands(Asks, Protocol):
    """What is needed of `control.Control`."""

    def word(self, offset: int) -> int:
        """A field of the control block."""


class Windows:
    """The windows of a run. For one thread.

    current: the one being waited for or taken. taken: windows that gave a file. dropped: code -> triggers without one.
    files: in mode `full`, process -> windows of it that gave a file.
    """

    def __init__(
        self, options: Options, control: Commands, processes: Processes, daemon: Daemon | None, raw: Path, now: float
    ) -> None:
        """Nothing is asked for yet; `daemon` is needed for the recorder `ondemand`."""
        self.current: Window | None = None
        self.taken = 0
        self.dropped: Counter[str] = Counter()
        self.files: Counter[int] = Counter()
        self._options = options
        self._control = control
        self._processes = processes
        self._raw = raw
        self._taker = (
            OnDemand(control, daemon, raw, options.record_shapes, options.with_stack)
            if daemon is not None
            else AtSteps(control, raw)
        )
        self._number = 0
        self._steps = options.steps
        self._stretch = 1
        self._state = ""
        self._since = now
        self._targets: list[Process] = []
        self._finished: list[Window] = []
        self._asked: deque[float] = deque()
        self._counted_from = now
        self._slowdown = 2.0 if options.with_stack else 1.7 if options.record_shapes else 1.4
        self._collected: set[str] = set()
        self._looked = float("-inf")

    def request(self, reason: str, now: float, steps: int | None = None) -> Window | Refused:
        """Ask for a window, of `steps` steps where others are wanted than for all windows.

        Returns it, to be finished later, or why there will be none.
        """
        refused = self._refusal(now)
        if refused is not None:
            self.dropped[refused.code] += 1
            return refused
        self._asked.append(now)
        self._steps = steps or self._options.steps
        self._stretch = 1
        self._number += 1
        self.current = Window(self._number, reason, int(now * 1e9))
        self._state, self._since = "settling", now
        return self.current

    def tick(self, now: float) -> None:
        """Go on with what is going on; to be called often."""
        if self._options.mode == "full":
            self._collect_full(now)
        window = self.current
        if window is None:
            return
        if self._state != "taking" and self._control.word(layout.STOPPED):
            self._fail(Refused("stopped", "recording was stopped before the window began"))
        elif self._state == "settling" and not self._settled(window, now):
            return
        elif self._state == "clearing":
            self._clear(window, now)
        elif (
            self._state == "taking"
            and self._taker.collect(window, {process.pid for process in self._processes.live}, now)
            and not self._begin_anew(window, now)
        ):
            self._finish()

    def finished(self) -> list[Window]:
        """Windows that are done since the last call."""
        done, self._finished = self._finished, []
        return done

    def flush(self, now: float) -> None:
        """The run ends: give up what has not begun; what is being taken is still collected by `tick`."""
        if self.current is not None and self._state != "taking":
            self._fail(Refused("stopped", "the run ended before the window began"))

    def close(self, now: float) -> None:
        """Take what is there and wait for nothing."""
        self.flush(now)
        self._looked = float("-inf")
        self.tick(now)
        if self.current is not None:
            self._taker.give_up(self.current, UNDONE)
            self._taker.release()
            self._finish()

    def _refusal(self, now: float) -> Refused | None:
        options = self._options
        if options.mode == "full":
            return Refused("unsupported", "the whole run is being recorded")
        if self._control.word(layout.STOPPED):
            return Refused(
                "stopped", "no window is taken any more: the disk is full, its quota used up, or the run ends"
            )
        if self.current is not None:
            return Refused("busy", f"window {self.current.number} is being taken")
        while self._asked and self._asked[0] <= now - _DAY_S:
            self._asked.popleft()
        if self._asked and now - self._asked[-1] < options.min_gap_s:
            left = options.min_gap_s - (now - self._asked[-1])
            return Refused(
                "min_gap", f"the last window was asked for too recently; the next one may come in {left:.0f} s"
            )
        if len(self._asked) >= options.max_per_day:
            return Refused("per_day", f"{options.max_per_day} windows in 24 hours were taken (--max-per-day)")
        return self._nobody(now)

    def _nobody(self, now: float) -> Refused | None:
        holders = [process for process in self._processes.live if process.holds_model]
        if self._able(now):
            return None
        if holders:
            return Refused("unsupported", self._taker.why_not(holders))
        hint = ""
        if any(process.has_engine and process.age_s > UNLABELLED_S for process in self._processes.live):
            hint = "; where it is none of the engine's, name what one step calls by --step MODULE:CLASS.METHOD"
        return Refused("no_model", f"no process has run a model yet{hint}")

    def _able(self, now: float) -> list[Process]:
        """The processes to record: those that hold a model; without any, those that have had torch for a while.

        An engine takes minutes to load its weights and to capture its graphs, and no profiler should start meanwhile.
        So where one is known in any process, its first step is waited for.
        """
        live = self._processes.live
        holders = [process for process in live if process.holds_model]
        if not holders and not any(process.has_engine for process in live):
            holders = [process for process in live if process.age_s > UNLABELLED_S]
        return [process for process in holders if self._taker.able(process)]

    def _settled(self, window: Window, now: float) -> bool:
        """Whether the batch has settled, or is not to be waited for any longer."""
        stepping = [process for process in self._processes.live if process.stepped_s is not None]
        if not stepping:
            window.labelled = any(process.holds_model for process in self._processes.live)
        found = [process.log.settled(int(now * 1e9)) for process in stepping]
        waited = now - self._since >= SETTLE_S
        if window.labelled:
            window.stable = True in found and False not in found
            if waited and all(state is None for state in found):
                self._fail(Refused("idle", f"no step ran within {SETTLE_S:.0f} s"))
                return False
        if window.stable or waited or not window.labelled:
            self._state, self._since = "clearing", now
        return self._state == "clearing"

    def _clear(self, window: Window, now: float) -> None:
        targets = self._able(now)
        if not targets:
            ended = not any(process.holds_model for process in self._processes.live)
            found = None if ended else self._nobody(now)
            self._fail(found or Refused("lost", "the model's process has ended"))
            return
        if self._taker.rests(now):
            self._since = now
            return
        hindrance = self._taker.hindrance(targets, now)
        if hindrance is not None:
            if now - self._since >= HINDERED_S:
                self._fail(Refused("busy", hindrance))
            return
        ms = self._duration_ms(window, targets)
        ms = min(self._longest_ms, ms * self._stretch)
        by_steps = ms < self._longest_ms
        window.tries += 1
        try:
            self._taker.start(window, targets, self._steps, ms, by_steps, now)
        except ValueError as error:
            self._fail(Refused("unsupported", str(error)))
            return
        taken = {process.pid for process in targets}
        window.missing = [p.pid for p in self._processes.live if p.holds_model and p.pid not in taken]
        self._targets = targets
        self._state, self._since = "taking", now

    @property
    def _longest_ms(self) -> int:
        return math.ceil(self._options.window_s * 1000)

    def _duration_ms(self, window: Window, targets: list[Process]) -> int:
        """How long a window must last for its steps; where that is not known, as long as it may."""
        longest = self._longest_ms
        periods = [process.log.usual_period_ns() for process in targets]
        period = max((period for period in periods if period), default=None)
        if not window.stable or period is None or not isinstance(self._taker, OnDemand):
            return longest
        wanted = (self._steps + _EDGE_STEPS) * period * self._slowdown / 1e6
        return min(longest, max(_LEAST_MS, math.ceil(wanted)))

    def _begin_anew(self, window: Window, now: float) -> bool:
        """Go back to waiting for the right moment, where nobody recorded anything and the next try may succeed."""
        whys = set(window.lost.values())
        if window.raws or not whys <= PASSING or window.tries >= _MOST_TRIES or self._control.word(layout.STOPPED):
            return False
        if window.reason in ("signal", "http") or self._options.verbose:
            say(f"window {window.number} is begun anew: {_why_lost(window)}")
        if EMPTY in whys:
            self._stretch *= _LONGER
        self._state, self._since = "clearing", now
        return True

    def _finish(self) -> None:
        window = self.current
        if window is None:
            return
        if not window.raws:
            self._fail(Refused("lost", f"no process gave a file: {_why_lost(window)}"))
            return
        self.taken += 1
        requested = window.requested_ns / 1e9
        window.weight_s = max(0.0, requested - self._counted_from)
        self._counted_from = requested
        self._learn()
        self._done(window)

    def _learn(self) -> None:
        """What profiling cost this time, for the next window's duration."""
        start, end = self._taker.spans()
        costs = [process.log.overhead(start, end) for process in self._targets] if start else []
        ratios = [
            cost["step_us"] / cost["unprofiled_step_us"]
            for cost in costs
            if cost.get("same_batch") and cost["unprofiled_step_us"]
        ]
        if ratios:
            self._slowdown = min(4.0, max(1.0, max(ratios))) * 1.05

    def _fail(self, why: Refused) -> None:
        window = self.current
        if window is None:
            return
        self.dropped[why.code] += 1
        self._taker.release()
        window.failed = why
        window.missing = sorted({*window.missing, *(p.pid for p in self._processes.live if p.holds_model)})
        self._done(window)

    def _done(self, window: Window) -> None:
        self._finished.append(window)
        self.current = None
        self._targets = []
        self._state = ""

    def _collect_full(self, now: float) -> None:
        """Mode `full`: each process' windows as it wrote them."""
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        try:
            names = sorted(path.name for path in self._raw.glob("*-*.meta.json"))
        except OSError:
            return
        self._collected.intersection_update(names)
        for name in names:
            raw = None if name in self._collected else read_meta(self._raw / name)
            if raw is None:
                continue
            self._collected.add(name)
            number = int(name.split(".")[0].split("-")[1])
            self.taken += 1
            self.files[raw.pid] += 1
            opened = raw.opened_ns or int(now * 1e9)
            self._finished.append(Window(number, "full", opened, raws=[raw]))


def _why_lost(window: Window) -> str:
    """Why processes gave no file, each reason once, with how many times it was tried."""
    counts, many = Counter(window.lost.values()), len(window.lost)
    told = [f"{why} ({count} of {many} processes)" if many > 1 else why for why, count in counts.items()]
    return "; ".join(told) + (f" (try {window.tries})" if window.tries > 1 else "")
