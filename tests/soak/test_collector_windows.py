"""Windows over running servers for minutes, with a heap that is filled with rubbish, and servers that are killed.

200 windows as quickly as Kineto allows: a window takes it a request (1 s), a start time two seconds ahead and a second
until it has written, so that one process gives at most one in about four seconds. Several servers are recorded at once.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.collect.ondemand import OnDemand
from traceanalyzer.collect import takers
from traceanalyzer.collect.facts import Refused

pytestmark = pytest.mark.soak

WINDOWS = int(os.environ.get("SOAK_WINDOWS", "200"))
SERVERS = 5
PERTURBED = {"MALLOC_PERTURB_": "165", "MALLOC_CHECK_": "3"}


def checked(path: Path, stepping: bool = True) -> dict[str, Any]:
    """A trace that is complete, and has steps in it unless its process was just ending."""
    trace: dict[str, Any] = json.loads(path.read_bytes())
    names = [str(event.get("name")) for event in trace["traceEvents"]]
    assert any(name.startswith("ta.step[") for name in names) or not stepping
    assert "Record Window End" in names
    return trace


def test_many_windows_over_servers_whose_heap_is_perturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, an event loop, and in one of them a profiler of the script's own."""
    monkeypatch.setattr(takers, "GAP_S", 0.0)
    taken = failed = 0
    with OnDemand("--steps", "5", "--window", "100ms", "--max-per-day", "100000") as od:
        servers = [
            od.spawn("3600", "threads", "3", **PERTURBED),
            od.spawn("3600", "threads", "2", "profile", "15", **PERTURBED),
            *(od.spawn("3600", **PERTURBED) for _ in range(SERVERS - 2)),
        ]
        od.until(lambda: od.stepping(SERVERS), 120)
        end = time.monotonic() + 900
        begun, rounds = time.monotonic(), 0
        while taken < WINDOWS and time.monotonic() < end:
            rounds += 1
            window = od.take(timeout=180)
            for raw in window.raws:
                checked(raw.path)
                raw.path.unlink()
            taken += len(window.raws)
            failed += window.failed is not None
            assert [server.poll() for server in servers] == [None] * SERVERS, "none has crashed"
        each = (time.monotonic() - begun) / rounds
        print(f"{taken} windows of {SERVERS} processes in {rounds} rounds of {each:.1f} s; {failed} rounds without any")
        assert taken >= WINDOWS
        assert {process.facts["failures"] == [] for process in od.processes.live} == {True}


def test_the_script_s_own_profiler_and_kineto_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they crash the process; every session of the script must also see its own operators (`looped.py`)."""
    monkeypatch.setattr(takers, "GAP_S", 1.0)
    with OnDemand("--steps", "5", "--window", "100ms", "--max-per-day", "100000") as od:
        servers = [od.spawn("90", "threads", "2", "profile", "0.7", **PERTURBED) for _ in range(4)]
        od.until(lambda: od.stepping(4), 120)
        taken = 0
        while all(server.poll() is None for server in servers):
            window = od.windows.request("signal", time.time())
            assert not isinstance(window, Refused) or window.code == "no_model"
            od.until(lambda window=window: window in od.done or all(s.poll() is not None for s in servers), 180)
            taken += sum(1 for raw in getattr(window, "raws", ()) if checked(raw.path, stepping=False))
        said = [json.loads(server.communicate(timeout=60)[0]) for server in servers]
        assert [server.returncode for server in servers] == [0] * 4
        assert taken >= 12 and all(one["sessions"] >= 5 for one in said), (taken, said)


def test_a_server_that_is_killed_leaves_no_half_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """At any time of a window: only complete files are ever named."""
    monkeypatch.setattr(takers, "GAP_S", 0.0)
    chance = random.Random(5)
    named = 0
    with OnDemand("--steps", "40", "--window", "500ms") as od:
        for _ in range(8):
            victim, other = od.spawn("600"), od.spawn("600")
            od.until(lambda: od.stepping(2), 60)
            window = od.windows.request("signal", time.time())
            assert not isinstance(window, Refused)
            at = time.monotonic() + chance.uniform(2.0, 6.0)
            od.until(lambda at=at: time.monotonic() > at, 10)
            od.kill(victim)
            od.until(lambda window=window: window in od.done, 60)
            for raw in window.raws:
                checked(raw.path)
                named += 1
            assert {raw.pid for raw in window.raws} | set(window.missing) >= {other.pid}
            od.kill(other)
            od.until(lambda: not od.processes.live, 10)
        window = od.windows.request("signal", time.time())
        assert isinstance(window, Refused) and window.code == "no_model"
        assert not [path.name for path in od.raw.glob("*.tmp")]
    assert named >= 8


def test_a_storm_of_triggers_takes_no_more_than_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takers, "GAP_S", 0.0)
    with OnDemand("--steps", "5", "--window", "100ms", "--max-per-day", "3") as od:
        od.spawn("600")
        od.until(lambda: od.stepping(1), 60)
        end = time.monotonic() + 40
        asked = 0
        while time.monotonic() < end:
            for reason in ("http", "signal", "latency"):
                od.windows.request(reason, time.time())
                asked += 1
            od.turn()
        files = len(list(od.raw.glob("od-*.json")))
        assert files == od.windows.taken == 3
        assert od.windows.dropped["per_day"] > 100
        assert sum(od.windows.dropped.values()) == asked - 3
