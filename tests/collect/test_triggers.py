"""When windows are asked for: on time, not in step with anything periodic, and not again and again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from traceanalyzer.collect import options as collect_options
from traceanalyzer.collect.options import Options
from traceanalyzer.collect.triggers import BACK_OFF_S, LEAST_PERIODS, MOST_BACK_OFF_S, Triggers

MS = 1_000_000


@dataclass
class Seen:
    """What the triggers look at in a process."""

    pid: int = 1
    shares_steps: bool = False
    fresh_requests: int = 0
    fresh_periods: list[int] = field(default_factory=list)


def options(*words: str) -> Options:
    return collect_options.parse([*words, "--", "python", "x.py"], "0")


def triggers(*words: str, now: float = 0.0) -> Triggers:
    return Triggers(options(*words), now, random.Random(7))


def test_the_clock_varies_by_a_tenth() -> None:
    found = triggers("--every", "100s")
    fired = [now for now in range(20_000) if found.due(now, [])]
    gaps = [later - sooner for sooner, later in pairwise([0, *fired])]
    assert len(fired) in range(190, 211)
    assert min(gaps) >= 90 and max(gaps) <= 111
    assert len(set(gaps)) > 5, "not in step with anything periodic"


def test_two_runs_do_not_keep_step() -> None:
    first, second = (Triggers(options("--every", "100s"), 0.0) for _ in range(2))
    assert first._next != second._next


def test_nothing_of_itself_before_start_after() -> None:
    found = triggers("--every", "100s", "--start-after", "30s", "--on-latency", "50ms", "--every-requests", "2")
    busy = Seen(fresh_requests=5, fresh_periods=[80 * MS])
    assert [found.due(now, [busy]) for now in (0.0, 15.0, 29.9)] == [None] * 3
    assert found.due(30.0, []) == "every", "the first window comes then, and not an interval later"
    found.ask("signal")
    later = triggers("--every", "100s", "--start-after", "30s")
    later.ask("signal")
    assert later.due(1.0, []) == "signal", "who asks gets a window"


def test_requests_are_counted_from_the_last_window() -> None:
    found = triggers("--every-requests", "10")
    due = [found.due(float(i), [Seen(fresh_requests=3)]) for i in range(9)]
    assert due == [None, None, None, "requests", None, None, None, "requests", None]


def test_ranks_that_share_steps_see_the_same_requests() -> None:
    found = triggers("--every-requests", "10")
    ranks = [Seen(pid, shares_steps=True, fresh_requests=3) for pid in range(8)]
    assert [found.due(float(i), ranks) for i in range(4)] == [None, None, None, "requests"]
    apart = triggers("--every-requests", "10")
    assert apart.due(0.0, [Seen(pid, fresh_requests=3) for pid in range(8)]) == "requests"


def test_a_slow_step_and_then_quiet_for_longer_each_time() -> None:
    found = triggers("--on-latency", "50ms")
    slow = [Seen(fresh_periods=[10 * MS, 51 * MS])]
    assert found.due(0.0, [Seen(fresh_periods=[50 * MS])]) is None, "at the limit is not over it"
    fired = [now for now in range(10_000) if found.due(float(now), slow)]
    gaps = [later - sooner for sooner, later in pairwise(fired)]
    assert gaps == [60, 120, 240, 480, 960, 1800, 1800, 1800, 1800]
    assert BACK_OFF_S == 60 and MOST_BACK_OFF_S == 1800


def test_after_a_calm_time_it_looks_as_closely_as_at_first() -> None:
    found = triggers("--on-latency", "50ms")
    slow = [Seen(fresh_periods=[60 * MS])]
    fired = [now for now in range(400) if found.due(float(now), slow)]
    assert fired == [0, 60, 180]
    fired = [now for now in range(10_000, 10_130) if found.due(float(now), slow)]
    assert fired == [10_000, 10_060]


def test_a_multiple_of_a_percentile_needs_to_know_what_is_usual() -> None:
    found = triggers("--on-latency", "p99x3")
    early = [found.due(i * 0.05, [Seen(fresh_periods=[500 * MS if i == 20 else 10 * MS])]) for i in range(100)]
    assert early == [None] * 100, f"fewer than {LEAST_PERIODS} steps"
    for i in range(100, 1000):
        assert found.due(i * 0.05, [Seen(fresh_periods=[10 * MS])]) is None
    assert found.due(50.0, [Seen(fresh_periods=[29 * MS])]) is None
    assert found.due(50.05, [Seen(fresh_periods=[31 * MS])]) == "latency"


def test_what_is_usual_changes_with_the_load() -> None:
    found = triggers("--on-latency", "p50x2")
    for i in range(5000):
        found.due(i * 0.05, [Seen(fresh_periods=[10 * MS])])
    assert found.due(250.0, [Seen(fresh_periods=[25 * MS])]) == "latency"
    for i in range(5000, 12_000):
        found.due(i * 0.05, [Seen(fresh_periods=[25 * MS])])
    assert found.due(4000.0, [Seen(fresh_periods=[25 * MS])]) is None


def test_asking_twice_at_once_is_asking_once() -> None:
    found = triggers("--signal")
    for _ in range(1000):
        found.ask("signal")
    found.ask("http")
    assert [found.due(0.0, []) for _ in range(4)] == ["signal", "http", None, None]


@pytest.mark.parametrize("words", [("--signal",), ("--listen", "127.0.0.1:0"), ("--mode", "sample")])
def test_without_a_trigger_of_its_own_nothing_is_due(words: tuple[str, ...]) -> None:
    found = triggers(*words)
    busy = Seen(fresh_requests=100, fresh_periods=[10**12])
    assert not any(found.due(float(now), [busy]) for now in range(1000))
