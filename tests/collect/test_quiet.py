"""The end of a window on demand: no operation is on its way into it, and a step that lacks some is not a whole one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.collect.ondemand import OnDemand
from traceanalyzer.collect import takers
from traceanalyzer.collect.facts import RawWindow
from traceanalyzer.collect.inside import layout, session
from traceanalyzer.collect.inside.arbiter import arbiter
from traceanalyzer.collect.inside.bystanders import OUR_THREAD
from traceanalyzer.collect.inside.guard import failures
from traceanalyzer.collect.inside.quiet import LATEST_NS, Quiet
from traceanalyzer.collect.inside.runtime import process
from traceanalyzer.collect.scan import scan

MS = 1_000_000
AGAIN = 6


class Plan:
    """A control block, and when torch was told to take no more."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.block = bytearray(layout.CONTROL_SIZE)
        self.told: list[int] = []
        patch.setattr(process, "control", self.block)
        patch.setattr(session, "take_no_more", lambda: self.told.append(time.time_ns()))

    def window(self, quiet_ms: int, end_ms: int) -> tuple[int, int]:
        """Plan one from now on."""
        now = time.time_ns()
        quiet_ns, end_ns = now + quiet_ms * MS, now + end_ms * MS
        layout.write_word(self.block, layout.QUIET_FROM_NS, quiet_ns)
        layout.write_word(self.block, layout.WINDOW_END_NS, end_ns)
        return quiet_ns, end_ns


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plan]:
    yield Plan(monkeypatch)
    joined()
    assert not failures


def joined() -> None:
    for thread in threading.enumerate():
        if thread.name == OUR_THREAD:
            thread.join(60)


def test_a_thread_tells_torch_after_the_last_whole_step(plan: Plan) -> None:
    quiet = Quiet()
    quiet_ns, end_ns = plan.window(100, 60_000)
    for _ in range(3):
        quiet.step(time.time_ns())
    assert [thread.name for thread in threading.enumerate()].count(OUR_THREAD) == 1
    joined()
    assert len(plan.told) == 1 and quiet_ns <= plan.told[0] < end_ns


def test_a_step_tells_it_where_the_thread_has_not_yet(plan: Plan) -> None:
    quiet = Quiet()
    plan.window(-1, 60_000)
    quiet.step(time.time_ns())
    quiet.step(time.time_ns())
    assert len(plan.told) == 1 and OUR_THREAD not in [thread.name for thread in threading.enumerate()]


def test_each_window_is_told_of_once_also_when_it_is_begun_anew(plan: Plan) -> None:
    quiet = Quiet()
    for _ in range(3):
        plan.window(-1, 60_000)
        quiet.step(time.time_ns())
    assert len(plan.told) == 3


def test_too_late_is_not_at_all(plan: Plan) -> None:
    """The session may be ending, and what is told of it may be gone."""
    quiet = Quiet()
    plan.window(-100, LATEST_NS // MS)
    quiet.step(time.time_ns())
    assert not plan.told


def test_a_window_that_is_given_up_is_not_told_of(plan: Plan) -> None:
    quiet = Quiet()
    plan.window(200, 60_000)
    quiet.step(time.time_ns())
    layout.write_word(plan.block, layout.WINDOW_END_NS, 0)
    joined()
    assert not plan.told


def test_a_session_of_the_script_is_left_alone(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arbiter, "foreign", 1)
    quiet = Quiet()
    plan.window(-1, 60_000)
    quiet.step(time.time_ns())
    assert not plan.told


def test_no_step_waits_for_who_opens_a_session(plan: Plan) -> None:
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with arbiter.lock:
            taken.set()
            over.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    assert taken.wait(60)
    try:
        plan.window(-1, 60_000)
        Quiet().step(time.time_ns())  # it would hang
    finally:
        over.set()
        other.join(60)
    assert not plan.told


def test_the_time_of_no_window_is_none(plan: Plan) -> None:
    Quiet().step(time.time_ns())
    assert not plan.told and OUR_THREAD not in [thread.name for thread in threading.enumerate()]


def operations(trace: dict[str, Any]) -> list[int]:
    """When each began, epoch nanoseconds."""
    base = trace["baseTimeNanoseconds"]
    return [base + round(event["ts"] * 1e3) for event in trace["traceEvents"] if event.get("cat") == "cpu_op"]


def test_kineto_ends_a_window_in_which_no_operation_begins_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that run operations all the time. On a busy machine torch may be told too late, hence several windows."""
    monkeypatch.setattr(takers, "GAP_S", 0.0)
    with OnDemand("--steps", "5", "--window", "100ms", "--max-per-day", "100") as od:
        od.spawn("600", "threads", "3")
        od.until(lambda: od.stepping(1), 120)
        for _ in range(AGAIN):
            (raw,) = od.take(timeout=180).raws
            trace = json.loads(raw.path.read_bytes())
            began, quiet = operations(trace), raw.closed_ns or 0
            assert began and min(began) < quiet
            if max(began) < quiet + takers.QUIET_NS - LATEST_NS + MS:
                break
        else:
            pytest.fail("operations began until the end")
        check_steps(raw, trace)


def check_steps(raw: RawWindow, trace: dict[str, Any]) -> None:
    """Whole steps are those that ended before operations were left out."""
    base = trace["baseTimeNanoseconds"]
    ends = [
        base + round((event["ts"] + event["dur"]) * 1e3)
        for event in trace["traceEvents"]
        if event.get("cat") == "user_annotation" and str(event["name"]).startswith("ta.step[")
    ]
    with Path(raw.path).open("rb") as stream:
        found = scan(stream, raw.whole_until_ns)
    assert found.steps == sum(end <= (raw.closed_ns or 0) for end in ends) > 0
    assert found.unfinished == len(ends) - found.steps
    assert found.last_step_ns is not None and found.last_step_ns <= (raw.closed_ns or 0)
