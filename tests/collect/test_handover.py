"""Windows are handed over with what the step log says by then: stale sums would be the report's totals."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.collect.rings import MS, Ring, S, hello, steady
from traceanalyzer.collect import handover
from traceanalyzer.collect.block import About
from traceanalyzer.collect.facts import RawWindow, Window
from traceanalyzer.collect.handover import HandOver
from traceanalyzer.collect.processes import Process, Processes
from traceanalyzer.collect.steplog import StepLog


@dataclass
class Spool:
    """What was handed over: the window's number, and the steps that its block tells of."""

    got: list[tuple[int, int]] = field(default_factory=list)

    def add(self, window: Window, abouts: Mapping[int, About]) -> None:
        self.got += [(window.number, about.steplog["steps"]) for about in abouts.values()]


class Clock:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.s = 1000.0

    def monotonic(self) -> float:
        return self.s

    def time_ns(self) -> int:
        return 1_790_000_000 * S + int(self.s * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(handover, "time", found)
    return found


class Bench:
    """A process of this test's own number, and windows of it."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.clock, self.spool, self.folder = clock, Spool(), folder
        self.ring: Ring = hello(folder, os.getpid())
        self.processes = Processes(folder)
        self.processes.refresh()
        self.handover = HandOver(self.spool, self.processes, None, None)  # type: ignore[arg-type]

    @property
    def process(self) -> Process:
        return self.processes.live[0]

    def run(self, steps: int) -> None:
        self.ring.write(*steady(steps, self.clock.time_ns(), MS))

    def window(self, number: int) -> None:
        self.handover.add(Window(number, "full", 1, raws=[RawWindow(self.folder / "x", os.getpid(), "python", 1, 2)]))

    def after(self, seconds: float) -> list[tuple[int, int]]:
        self.clock.s += seconds
        self.handover.tick()
        found, self.spool.got = self.spool.got, []
        return found


@pytest.fixture
def bench(tmp_path: Path, clock: Clock) -> Iterator[Bench]:
    found = Bench(tmp_path, clock)
    yield found
    found.processes.close()
    found.ring.close()


def test_each_window_is_told_the_steps_up_to_now(bench: Bench) -> None:
    for number in range(1, 5):
        bench.run(64)
        bench.window(number)
        assert bench.after(0.3) == [(number, 64 * number)], "even of steps that no refresh has read yet"


def test_what_was_read_for_a_sum_is_fresh_at_the_next_refresh(bench: Bench) -> None:
    bench.run(3)
    bench.window(1)
    assert bench.after(0.1) == [(1, 3)]
    bench.run(2)
    bench.processes.refresh()
    assert (len(bench.process.fresh), len(bench.process.fresh_periods), len(bench.process.log)) == (5, 4, 5)
    bench.processes.refresh()
    assert bench.process.fresh == [] == bench.process.fresh_periods


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> list[float]:
    """Each sum takes half a second; returns when they were made."""
    made: list[float] = []
    original = StepLog.summary

    def summary(log: StepLog, now_ns: int) -> dict[str, Any]:
        made.append(clock.s)
        clock.s += 0.5
        return original(log, now_ns)

    monkeypatch.setattr(StepLog, "summary", summary)
    return made


def test_sums_that_take_long_are_made_seldom_and_are_never_old(bench: Bench, slow: list[float]) -> None:
    got: list[tuple[int, int]] = []
    for number in range(1, 31):
        bench.run(64)
        bench.window(number)
        got += bench.after(1.0)
    assert len(slow) == 3 and all(later - earlier >= 10 for earlier, later in pairwise(slow))
    assert [number for number, _ in got] == list(range(1, len(got) + 1)) and len(got) > 20
    assert all(steps >= 64 * number for number, steps in got)
    bench.handover.close()
    got += bench.spool.got
    assert got[-1] == (30, 64 * 30), "the recording's end waits for nothing, and its totals are exact"


def test_a_process_that_has_ended_is_told_whole(bench: Bench) -> None:
    bench.run(64)
    bench.window(1)
    assert bench.after(0.001) == [(1, 64)]
    bench.run(29)
    bench.processes.close()
    bench.window(2)
    assert bench.after(0.001) == [(2, 93)]
