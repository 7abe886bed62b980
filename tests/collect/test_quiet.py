"""The end of a window on demand: no operation is on its way into it, and a step that lacks some is not a whole one."""

from __future__ import annotations

import _thread
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.collect.ondemand import OnDemand
from tests.collect.runtime import Runtime
from traceanalyzer.collect import takers
from traceanalyzer.collect.facts import RawWindow
from traceanalyzer.collect.inside import guard, layout, session
from traceanalyzer.collect.inside.arbiter import arbiter
from traceanalyzer.collect.inside.quiet import LATEST_NS, Quiet
from traceanalyzer.collect.inside.runtime import process
from traceanalyzer.collect.scan import scan

MS = 1_000_000
AGAIN = 6
LATEST_MS = LATEST_NS // MS


class Plan:
    """A control block, a ring, and when torch was told to take no more."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.block, self.ring = bytearray(layout.CONTROL_SIZE), bytearray(layout.PAGE)
        self.told: list[int] = []
        self.quiet = Quiet()
        self.threads: list[threading.Thread] = []
        patch.setattr(process, "control", self.block)
        patch.setattr(process, "ring", self.ring)
        patch.setattr(session, "switch_off", lambda: lambda: self.told.append(time.time_ns()))
        patch.setattr(_thread, "start_new_thread", self.start)

    def start(self, run: Callable[..., None], arguments: tuple[object, ...]) -> None:
        self.threads.append(threading.Thread(target=run, args=arguments))
        self.threads[-1].start()

    def step(self) -> None:
        self.quiet.step(time.time_ns())

    def over(self) -> int:
        """What the ring says of it, once nobody waits any more."""
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
        return layout.read_word(self.ring, layout.RING_QUIET_NS)

    def window(self, quiet_ms: int, end_ms: int) -> tuple[int, int]:
        """Plan one from now on."""
        now = time.time_ns()
        quiet_ns, end_ns = now + quiet_ms * MS, now + end_ms * MS
        layout.write_word(self.block, layout.QUIET_FROM_NS, quiet_ns)
        layout.write_word(self.block, layout.WINDOW_END_NS, end_ns)
        return quiet_ns, end_ns


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plan]:
    monkeypatch.setattr(guard, "failures", {})
    found = Plan(monkeypatch)
    yield found
    found.over()


def test_a_thread_tells_torch_after_the_last_whole_step(plan: Plan) -> None:
    quiet_ns, end_ns = plan.window(100, 60_000)
    for _ in range(3):
        plan.step()
    said = plan.over()
    assert len(plan.threads) == len(plan.told) == 1 and quiet_ns <= said <= plan.told[0] < end_ns


def test_a_step_tells_it_where_the_thread_has_not_yet(plan: Plan) -> None:
    plan.window(-1, 60_000)
    plan.step()
    plan.step()
    assert len(plan.told) == 1 and not plan.threads and 0 < plan.over() <= plan.told[0]


def test_each_window_is_told_of_once_also_when_it_is_begun_anew(plan: Plan) -> None:
    for _ in range(3):
        plan.window(-1, 60_000)
        plan.step()
    assert len(plan.told) == 3


@pytest.mark.parametrize("quiet_ms", [-100, 1])
def test_too_late_is_not_at_all(plan: Plan, quiet_ms: int) -> None:
    """The session may be ending, and what is told of it may be gone."""
    plan.window(quiet_ms, LATEST_MS)
    plan.step()
    assert plan.over() == 0 and not plan.told


def test_a_window_that_is_given_up_is_not_told_of(plan: Plan) -> None:
    plan.window(200, 60_000)
    plan.step()
    layout.write_word(plan.block, layout.WINDOW_END_NS, 0)
    assert plan.over() == 0 and len(plan.threads) == 1 and not plan.told


def test_a_session_of_the_script_is_left_alone(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arbiter, "foreign", 1)
    plan.window(-1, 60_000)
    plan.step()
    assert plan.over() == 0 and not plan.told


def test_a_torch_that_cannot_is_left_alone(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "switch_off", lambda: None)
    plan.window(-1, 60_000)
    plan.step()
    assert plan.over() == 0 and not guard.failures


def test_where_it_fails_it_is_not_tried_again(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def fail() -> None:
        tried.append(1)
        raise RuntimeError("no session")

    monkeypatch.setattr(session, "switch_off", lambda: fail)
    plan.window(-1, 60_000)
    for _ in range(5):
        plan.step()
    assert len(tried) == 1 and list(guard.failures) == ["quiet"] and plan.over() == 0


def test_a_process_that_gets_no_thread_runs_its_steps(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    plan.window(60_000, 120_000)
    plan.step()
    assert list(guard.failures) == ["quiet"]


def test_no_step_waits_for_who_opens_a_session_but_the_thread_does(plan: Plan) -> None:
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with arbiter.lock:
            taken.set()
            over.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    assert taken.wait(60)
    try:
        plan.window(50, 60_000)
        plan.step()
        time.sleep(0.1)
        plan.step()  # it would hang
        assert not plan.told
    finally:
        over.set()
        other.join(60)
    assert plan.over() and len(plan.told) == 1


def test_the_time_of_no_window_is_none(plan: Plan) -> None:
    plan.step()
    assert not plan.told and not plan.threads


def test_a_forked_child_does_not_wait_for_its_parents_thread(tmp_path: Path) -> None:
    """The lock may be held at that moment, by a thread that the child does not have."""
    runtime = Runtime(tmp_path / "r", recorder="ondemand")
    script = """
import os, threading, time, torch
from _traceanalyzer_inside.arbiter import arbiter

def hold():
    with arbiter.lock:
        held.set()
        time.sleep(60)

held = threading.Event()
threading.Thread(target=hold, daemon=True).start()
assert held.wait(60)
if os.fork() == 0:
    os._exit(0 if arbiter.lock.acquire(timeout=20) else 3)
os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = subprocess.run([sys.executable, "-c", script], env=runtime.environment(), timeout=120, check=False)
    assert done.returncode == 0


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
            if raw.quiet_ns is not None:
                break
        else:
            pytest.fail("torch was told too late each time")
        check_steps(raw, trace)
        planned = (raw.closed_ns or 0) - takers.TAIL_NS
        assert planned <= raw.quiet_ns <= (raw.closed_ns or 0) - LATEST_NS
        began = operations(trace)
        assert min(began) < planned and max(began) < raw.quiet_ns + LATEST_NS // 2


def check_steps(raw: RawWindow, trace: dict[str, Any]) -> None:
    """Whole steps are those that ended before operations were left out; the others are cut."""
    base = trace["baseTimeNanoseconds"]
    finished = [
        base + round((event["ts"] + event["dur"]) * 1e3)
        for event in trace["traceEvents"]
        if event.get("cat") == "user_annotation" and str(event["name"]).startswith("ta.step[")
        and event["args"].get("finished") not in (False, "false")
    ]  # fmt: skip
    with Path(raw.path).open("rb") as stream:
        found = scan(stream, raw.quiet_ns)
    with Path(raw.path).open("rb") as stream:
        unbounded = scan(stream)
    assert found.steps == sum(end <= (raw.quiet_ns or 0) for end in finished) > 0
    assert found.steps + found.unfinished == unbounded.steps + unbounded.unfinished
