"""The command line of `collect`: defaults, units, and what is refused."""

from __future__ import annotations

import pytest

from traceanalyzer.collect.options import OnLatency, Options, UsageError, parse, split


def _parse(line: str) -> Options:
    return parse(line.split(), "0")


def test_without_a_trigger_the_whole_run_is_recorded() -> None:
    found = _parse("-- python x.py")
    assert (found.mode, found.recorder, found.steps, found.window_s) == ("full", "python", 64, 30.0)
    assert (found.disk_bytes, found.keep_s, found.grace_s) == (2_000_000_000, 604_800.0, 5.0)
    assert (found.record_shapes, found.with_stack, found.counters_s) == (True, False, 0.1)
    assert found.command == ("python", "x.py")


@pytest.mark.parametrize(
    "trigger",
    ["--every 5m", "--every-requests 10", "--on-latency 200ms", "--signal", "--listen 127.0.0.1:0", "--mode sample"],
)
def test_any_trigger_makes_it_a_sample(trigger: str) -> None:
    found = _parse(f"{trigger} -- x")
    assert (found.mode, found.recorder, found.steps, found.window_s) == ("sample", "ondemand", 32, 2.0)


def test_units_are_read() -> None:
    found = _parse(
        "--every 1h --min-gap 90s --window 250ms --keep 2d --disk 1.5GiB --start-after 1m --counters off -- x"
    )
    assert (found.every_s, found.min_gap_s, found.window_s, found.keep_s) == (3600.0, 90.0, 0.25, 172_800.0)
    assert (found.disk_bytes, found.start_after_s, found.counters_s) == (1_610_612_736, 60.0, None)
    assert _parse("--on-latency 200ms -- x").on_latency == OnLatency(limit_s=0.2)
    assert _parse("--on-latency p99x2.5 -- x").on_latency == OnLatency(percentile=99, factor=2.5)


def test_the_gap_never_refuses_the_timer() -> None:
    assert _parse("--every 5m -- x").min_gap_s == 60.0
    assert _parse("--every 10s -- x").min_gap_s <= 9.0  # the timer's own jitter is 10 %


@pytest.mark.parametrize(
    "line",
    [
        "", "--", "-q", "--every 5 -- x", "--every 0s -- x", "--every -5s -- x", "--steps 0 -- x", "--steps 1.5 -- x",
        "--disk 2 -- x", "--disk 0GB -- x", "--window 1h -- x", "--on-latency p99 -- x", "--on-latency p99x1 -- x",
        "--on-latency 0ms -- x", "--listen 0.0.0.0:80 -- x", "--listen 127.0.0.1 -- x", "--listen unix: -- x",
        "--listen 127.0.0.1:70000 -- x", "--metrics http://example.org/metrics -- x", "--attach host:80",
        "--step module -- x", "--step module:9 -- x", "--mode full --every 5m -- x", "--recorder ondemand -- x",
        "--every 10s --min-gap 1m -- x", "--attach http://127.0.0.1:1 -- x", "--counters 1ms -- x", "--ever 5m -- x",
        "--output", "-o -- x", "--inject no -- x",
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(line: str) -> None:
    with pytest.raises(UsageError) as error:
        _parse(line)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "ours", "command"),
    [
        ("-o D -- python -o E", "-o D", "python -o E"),
        ("-o D python --steps 3 -- y", "-o D", "python --steps 3 -- y"),
        ("-qv --steps=3 python", "-qv --steps=3", "python"),
        ("-oD --signal python -v", "-oD --signal", "python -v"),
        ("--no-shapes -- --weird", "--no-shapes", "--weird"),
        ("python", "", "python"),
    ],
)
def test_the_command_begins_at_the_first_word_that_is_no_option(line: str, ours: str, command: str) -> None:
    assert split(line.split()) == (ours.split(), command.split())
