"""Rings are read whole and once, whatever the writer does; the step log's figures follow from their definitions."""

from __future__ import annotations

import csv
import gzip
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collect.rings import DECODE, DRAFT, MIXED, MS, PREFILL, Ring, S, hello, steady, step
from traceanalyzer.collect import steplog
from traceanalyzer.collect.inside import layout
from traceanalyzer.collect.processes import Processes
from traceanalyzer.collect.ring import RingReader, Step
from traceanalyzer.collect.steplog import StepLog, percentile

START = 1_790_000_000 * S


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[tuple[Ring, RingReader]]:
    writer = Ring(tmp_path / "1.ring")
    reader = RingReader(tmp_path / "1.ring")
    yield writer, reader
    reader.close()
    writer.close()


def test_each_step_is_read_once_in_order(ring: tuple[Ring, RingReader]) -> None:
    writer, reader = ring
    assert reader.new_records() == []
    writer.write(*steady(3, START, tokens=5))
    first = reader.new_records()
    assert [(found.number, found.start_ns - START, found.tokens) for found in first] == [
        (0, 0, 5), (1, 10 * MS, 5), (2, 20 * MS, 5)
    ]  # fmt: skip
    writer.write(step(START + S))
    assert [found.number for found in reader.new_records()] == [3]
    assert reader.new_records() == []
    assert reader.lost == 0


def test_a_ring_that_is_not_made_yet_has_no_steps(tmp_path: Path) -> None:
    path = tmp_path / "2.ring"
    path.write_bytes(b"")
    reader = RingReader(path)
    assert (reader.new_records(), reader.count) == ([], 0)
    path.write_bytes(bytes(layout.PAGE))
    assert reader.new_records() == []
    reader.close()


def test_a_record_that_is_written_late_is_waited_for(ring: tuple[Ring, RingReader]) -> None:
    writer, reader = ring
    writer.slot(1, step(START + MS))
    writer.tell(2)  # the thread with record 1 was quicker than the one with record 0
    assert reader.new_records() == []
    writer.slot(0, step(START))
    assert [found.number for found in reader.new_records()] == [0, 1]
    assert reader.lost == 0


def test_a_record_that_never_comes_is_given_up_and_counted(ring: tuple[Ring, RingReader]) -> None:
    writer, reader = ring
    writer.slot(1, step(START + MS))
    writer.tell(2)
    reads = [[found.number for found in reader.new_records()] for _ in range(30)]
    assert [read for read in reads if read] == [[1]]
    assert not reads[0], "not at once"
    assert reader.lost == 1


def test_a_count_that_goes_back_for_a_moment_is_no_new_beginning(ring: tuple[Ring, RingReader]) -> None:
    writer, reader = ring
    writer.write(*steady(5, START))
    assert len(reader.new_records()) == 5
    writer.tell(4)  # of two threads the one that was first tells last
    assert reader.new_records() == []
    writer.slot(5, step(START + S))
    writer.tell(6)
    assert [found.number for found in reader.new_records()] == [5]


def test_a_reader_never_sees_half_a_word(tmp_path: Path) -> None:
    """Numbers with a carry in them: written in pieces, they would be seen to go back."""
    path = tmp_path / "words"
    path.write_bytes(bytes(layout.PAGE))
    code = (
        "import mmap, os, sys, time; from traceanalyzer.collect.inside import layout\n"
        f"ring = mmap.mmap(os.open({str(path)!r}, os.O_RDWR), 0)\n"
        "until, number = time.monotonic() + 1.5, 0\n"
        "while time.monotonic() < until:\n"
        "    for _ in range(1000): number += 85; layout.write_word(ring, layout.RING_COUNT, number)"
    )
    writer = subprocess.Popen([sys.executable, "-c", code])
    reader = RingReader(path)
    seen = []
    while writer.poll() is None:
        seen.append(reader.count)
    assert writer.wait() == 0
    assert len(set(seen)) > 10 and seen == sorted(seen)
    reader.close()


def test_a_process_that_replaces_itself_begins_anew(tmp_path: Path) -> None:
    writer = Ring(tmp_path / "1.ring")
    reader = RingReader(tmp_path / "1.ring")
    writer.write(*steady(5, START))
    assert len(reader.new_records()) == 5
    writer.close()
    again = Ring(tmp_path / "1.ring")
    assert reader.new_records() == []
    again.write(step(START + S))
    assert [found.start_ns for found in reader.new_records()] == [START + S]
    again.close()
    reader.close()


class _Overtaken(RingReader):
    """While it copies the first slots, the writer writes most of a ring more."""

    def overtake(self, writer: Ring, steps: int) -> None:
        self._overtake = (writer, steps)

    def _slots(self, first: int, number: int) -> bytes:
        data = super()._slots(first, number)
        writer, steps = self._overtake
        writer.tell(writer.written + steps)
        self._overtake = (writer, 0)
        return data


def test_what_is_overwritten_during_the_copy_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "RING_CAPACITY", 128)
    monkeypatch.setattr(layout, "RING_SIZE", layout.PAGE + 128 * layout.RECORD.size)
    writer = Ring(tmp_path / "1.ring")
    reader = _Overtaken(tmp_path / "1.ring")
    writer.write(*steady(40, START))
    reader.overtake(writer, 50)  # 90 written: those up to 26 may be half overwritten, with 64 slots of care
    found = reader.new_records()
    assert [one.number for one in found] == list(range(26, 40))
    assert reader.lost == 26
    writer.close()
    reader.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.booleans()), max_size=12))
def test_read_and_lost_are_all_that_was_written(turns: list[tuple[int, bool]]) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(layout, "RING_CAPACITY", 128)
        patch.setattr(layout, "RING_SIZE", layout.PAGE + 128 * layout.RECORD.size)
        path = Path(folder) / "1.ring"
        writer = Ring(path)
        reader = RingReader(path)
        try:
            got = []
            for many, read in [*turns, (0, True)]:
                for _ in range(many):
                    writer.write(step(START + writer.written, tokens=writer.written + 1))
                if read:
                    got += reader.new_records()
            assert [one.number for one in got] == sorted({one.number for one in got})
            assert all(one.start_ns == START + one.number and one.tokens == one.number + 1 for one in got)
            assert len(got) + reader.lost == writer.written
        finally:
            writer.close()
            reader.close()


@given(st.lists(st.integers(0, 1000), min_size=1), st.sampled_from([50, 99, 100]))
def test_a_percentile_is_the_smallest_value_that_enough_do_not_exceed(values: list[int], share: int) -> None:
    found = percentile(sorted(values), share)
    assert found == min(v for v in values if sum(w <= v for w in values) * 100 >= share * len(values))
    assert percentile([], share) is None


def logged(*steps: Step) -> StepLog:
    log = StepLog()
    log.add(steps)
    return log


def test_the_summary_of_one_request() -> None:
    """A prompt of 512 in 50 ms, then 100 decode steps 10 ms apart, the last two slower; batch 4."""
    steps = [step(START, 30 * MS, PREFILL, tokens=512, prefill_tokens=512, sequences=4, new_sequences=4)]
    at = START + 50 * MS
    for i in range(100):
        steps.append(step(at, 4 * MS, tokens=4, sequences=4, context_sum=4 * (128 + i)))
        at += (10 if i < 98 else 20) * MS
    found = logged(*steps).summary(at)
    assert found == {
        "seconds": 0.05 + 0.98 + 0.02 + 0.004, "steps": 101, "prefill_steps": 1, "decode_steps": 100, "mixed_steps": 0,
        # 50 ms of prefill; 98 periods of 10 ms, one of 20, and the last step's 4 ms: 1004 ms of decode.
        "prefill_share": round(50 / 1054, 4), "decode_share": round(1004 / 1054, 4), "mixed_share": 0.0,
        "other_share": 0.0, "idle_s": 0.0, "tokens_in": 512, "tokens_out": 400, "sequences_mean": 4.0,
        "context_mean": 128 + 49.5, "decode_period_p50_us": 10_000.0,
        "decode_period_p99_us": 20_000.0,  # of 99 periods the 99th in order
        "prefill_p50_us": 50_000.0, "prefill_p99_us": 50_000.0,
    }  # fmt: skip


def test_the_server_s_idle_time_is_no_step_s() -> None:
    first = steady(3, START)
    later = [step(START + 60 * S, 20 * MS, PREFILL, tokens=8, prefill_tokens=8, new_sequences=1)]
    found = logged(*first, *later, *steady(2, START + 60 * S + 25 * MS)).summary(START + 61 * S)
    assert found["idle_s"] == round(60 - 0.024, 3)
    assert found["prefill_p50_us"] == 25_000.0
    assert found["decode_period_p99_us"] == 10_000.0
    # decode 10 + 10 + 4 and 10 + 4 ms, prefill 25 ms
    assert found["decode_share"] == round(38 / 63, 4)


def test_prompts_between_the_steps_of_others_leave_no_time_idle() -> None:
    """32 sequences decode all the time, and after each fifth step the prompt of one more is run for one that ended."""
    steps, at = [], START
    for i in range(200):
        steps.append(step(at, 4 * MS, sequences=32, tokens=32))
        at += 20 * MS
        if i % 5 == 4:
            steps.append(step(at, 4 * MS, PREFILL, tokens=64, prefill_tokens=64, new_sequences=1))
            at += 25 * MS
    found = logged(*steps).summary(at)
    assert found["idle_s"] == 0.0
    decode, prefill = 199 * 20 + 4, 39 * 25 + 4  # what follows the last prompt is not there yet
    assert found["decode_share"] == round(decode / (decode + prefill), 4)
    assert found["decode_period_p50_us"] == found["decode_period_p99_us"] == 20_000.0


def prompt(start_ns: int, sequences: int) -> Step:
    return step(start_ns, 10 * MS, PREFILL, tokens=8, prefill_tokens=8, sequences=sequences, new_sequences=sequences)


@pytest.mark.parametrize(
    ("decoding", "prompts", "then", "idle"),
    [
        (2, [1], 1, [True]),  # two have ended, one has come
        (2, [1], 2, [False]),  # one of two goes on
        (2, [1, 3], 4, [True, False]),  # two prompts one after the other: the second one interrupts the first
        (2, [1, 3], 5, [False, False]),
        (2, [1, 3], 3, [True, True]),  # the first one ended with its prompt
        (0, [1, 1, 1, 1], 0, [True, True]),  # nothing but prompts
    ],
)
@pytest.mark.parametrize("mixed", [False, True])
def test_a_gap_is_idle_if_all_that_goes_on_came_after_it(
    decoding: int, prompts: list[int], then: int, idle: list[bool], mixed: bool
) -> None:
    """Each step lasts 10 ms and begins 100 ms after the one before it, in the thread of another one's steps."""
    steps = [step(START, 10 * MS, sequences=decoding)] if decoding else []
    steps += [prompt(START + (len(steps) + i) * 100 * MS, many) for i, many in enumerate(prompts)]
    if then and mixed:
        steps.append(
            step(START + len(steps) * 100 * MS, 10 * MS, MIXED, sequences=then + 7, new_sequences=7, tokens=99)
        )
    elif then:
        steps.append(step(START + len(steps) * 100 * MS, 10 * MS, sequences=then))
    log = StepLog()
    for one in steps:
        log.add([one, step(one.start_ns + MS, thread=8)])
    idle_ns, periods, threads = log._copy(("idle_ns", "period_ns", "thread"), 0)
    own = [(idle, period) for idle, period, thread in zip(idle_ns, periods, threads, strict=True) if thread == 7]
    assert [pair != (0, 100 * MS) for pair in own[: len(idle)]] == idle
    assert {pair for pair in own[: len(idle)] if pair != (0, 100 * MS)} <= {(90 * MS, 0)}


def test_a_gap_is_not_known_before_the_step_after_it_has_ended() -> None:
    """As the period of the last step: of what came after the last prompt nothing is known."""
    assert logged(step(START), prompt(START + S, 1)).summary(START + 2 * S)["idle_s"] == 0.0
    assert logged(step(START), prompt(START + S, 1), prompt(START + 2 * S, 1)).summary(START + 3 * S)["idle_s"] == 0.996


def test_no_period_reaches_over_a_window_s_edge_though_it_is_not_idle() -> None:
    steps = [step(START, sequences=32), prompt(START + S, 1)._replace(window=1)]
    log = logged(*steps, step(START + 2 * S, sequences=33, window=1))
    assert [column[0] for column in log._copy(("idle_ns", "period_ns"), 0)] == [0, 0]


def test_a_gap_within_a_request_is_the_host_s_and_counts() -> None:
    found = logged(step(START), step(START + S), step(START + 2 * S)).summary(START + 3 * S)
    assert (found["decode_period_p50_us"], found["idle_s"]) == (1_000_000.0, 0.0)


def test_a_night_is_idle_even_where_requests_are_not_known() -> None:
    found = logged(step(START), step(START + 70 * S)).summary(START + 71 * S)
    assert (found["decode_period_p50_us"], found["idle_s"]) == (None, 70 - 0.004)


def test_drafts_belong_to_the_decode_step_before_them() -> None:
    steps = []
    for i in range(3):
        at = START + i * 30 * MS
        steps += [step(at, tokens=4), step(at + 10 * MS, phase=DRAFT), step(at + 20 * MS, phase=DRAFT)]
    found = logged(*steps).summary(START + S)
    assert found["decode_period_p50_us"] == 30_000.0
    assert (found["decode_steps"], found["steps"]) == (3, 9)
    # of each 30 ms, 10 lie before the first draft; the last draft's own period is unknown: its 4 ms
    assert found["decode_share"] == round(30 / 84, 4)
    assert found["other_share"] == round(54 / 84, 4)


def test_threads_have_periods_of_their_own() -> None:
    pairs = [(step(START + i * 10 * MS, thread=1), step(START + (i * 10 + 3) * MS, thread=2)) for i in range(5)]
    found = logged(*(one for pair in pairs for one in pair)).summary(START + S)
    assert found["decode_period_p50_us"] == found["decode_period_p99_us"] == 10_000.0


def test_a_mixed_step_breaks_the_decode_period() -> None:
    steps = [step(START), step(START + 10 * MS, phase=MIXED, tokens=65, prefill_tokens=64), step(START + 60 * MS)]
    found = logged(*steps).summary(START + S)
    assert found["decode_period_p50_us"] is None
    assert (found["tokens_in"], found["tokens_out"]) == (64, 3)


def test_an_empty_log_says_so() -> None:
    assert StepLog().summary(START) == {"seconds": 0.0, "steps": 0}


def test_the_summary_covers_ten_minutes() -> None:
    log = logged(*steady(10, START), *steady(5, START + 700 * S))
    assert log.summary(START + 701 * S)["steps"] == 5


def test_memory_is_bounded_by_time_and_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = StepLog()
    for i in range(2000):
        slow.add([step(START + i * S)])
    assert 600 <= len(slow) <= 640 and slow.dropped == 0
    monkeypatch.setattr(steplog, "MOST_ROWS", 320)
    quick = StepLog()
    for i in range(5000):
        quick.add([step(START + i * MS, thread=i % 1000)])
    assert 300 <= len(quick) <= 320 and quick.dropped == 5000 - len(quick)
    assert len(quick._threads) <= 256


def test_profiled_steps_are_held_against_those_of_the_same_batch() -> None:
    log = StepLog()
    log.add(steady(100, START, 10 * MS, sequences=2))
    log.add(steady(100, START + 5 * S, 30 * MS, sequences=8))  # a larger batch, unprofiled
    opened = START + 20 * S
    log.mark(opened - S, opened + S)
    log.add(steady(40, opened, 15 * MS, sequences=2, window=3))
    log.add(steady(100, opened + 600 * MS, 12 * MS, sequences=2))  # while Kineto writes
    found = log.overhead(opened, opened + 600 * MS)
    assert found == {"phase": "decode", "step_us": 15_000.0, "unprofiled_step_us": 10_000.0, "profiled_steps": 39,
                     "unprofiled_steps": 100, "same_batch": True}  # fmt: skip


def test_without_that_batch_all_steps_stand_for_it() -> None:
    log = logged(*steady(50, START, 10 * MS, sequences=1), *steady(20, START + 60 * S, 20 * MS, sequences=4, window=1))
    found = log.overhead(START + 60 * S, START + 61 * S)
    assert (found["step_us"], found["unprofiled_step_us"], found["same_batch"]) == (20_000.0, 10_000.0, False)
    assert log.overhead(START + 300 * S, START + 301 * S) == {}
    named = logged(*steady(50, START, 10 * MS, phase=0), *steady(20, START + 60 * S, 15 * MS, phase=0, window=1))
    found = named.overhead(START + 60 * S, START + 61 * S)
    assert (found["phase"], found["step_us"], found["unprofiled_step_us"]) == ("other", 15_000.0, 10_000.0)


def test_the_neighbours_of_a_window_are_not_unprofiled() -> None:
    """The `python` recorder starts and stops between two steps, which the step before it pays for."""
    steps = [*steady(5, START), *steady(3, START + 10 * S, window=1), *steady(5, START + 20 * S)]
    found = logged(*steps).overhead(START + 10 * S, START + 11 * S)
    assert found["profiled_steps"] == 2
    # of the first five, four periods are plain: the fifth leads into the window; the first after it is its neighbour
    assert found["unprofiled_steps"] == 4 + 3


def test_every_window_of_the_last_ten_minutes_is_kept_away_from() -> None:
    """A step a second for ten minutes; in the middle of each fifth second for 500 s lies a window of 0.1 s."""
    log = StepLog()
    log.mark(START - 7200 * S, START - 7100 * S)
    log.add(steady(600, START, S))
    for i in range(100):
        log.mark(START + i * 5 * S + 500 * MS, START + i * 5 * S + 600 * MS)
    log.add(steady(10, START + 610 * S, 10 * MS, window=1))
    found = log.overhead(START + 610 * S, START + 611 * S)
    # Of each five seconds the periods from -1 (ends within a second of the window), 0 and 1 are near: two are left. The
    # last window is in second 495; 497 to 598 are far, 599 leads into the window that is asked for.
    assert found["unprofiled_steps"] == 99 * 2 + (599 - 497)


def test_windows_that_no_step_is_left_of_are_forgotten() -> None:
    log = logged(*steady(10, START))
    for i in range(1000):
        log.mark(START + (i - 2000) * 10 * S, START + (i - 2000) * 10 * S + S)
    log.mark(START, START + S)
    assert len(log._spans) == 1
    idle = StepLog()  # a process without a step has windows, too
    for i in range(1000):
        idle.mark(START + i * 60 * S, START + i * 60 * S + S)
    assert len(idle._spans) <= 12


def test_two_that_ask_for_the_cost_of_a_window_are_told_the_same() -> None:
    log = logged(*steady(50, START), *steady(20, START + 60 * S, 15 * MS, window=1))
    first = log.overhead(START + 60 * S, START + 61 * S)
    log.add(steady(4, START + 90 * S))
    assert log.overhead(START + 60 * S, START + 61 * S) == first
    assert log.overhead(START + 60 * S, START + 62 * S)["unprofiled_steps"] == first["unprofiled_steps"] + 2, (
        "the first one is near"
    )
    log.add(steady(8, START + 90 * S + 40 * MS))
    assert log.overhead(START + 60 * S, START + 62 * S)["unprofiled_steps"] == first["unprofiled_steps"] + 10


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60_000), st.integers(1, 3000), st.sampled_from([1, 2])), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 6000)), max_size=6),
)
def test_unprofiled_is_what_lies_a_second_from_any_window(
    steps: list[tuple[int, int, int]], windows: list[tuple[int, int]]
) -> None:
    """Against the definition, for steps of two threads and windows that overlap; all in ms."""
    log = StepLog()
    log.add([step(START)])
    for begin, lasts in windows:
        log.mark(START + begin * MS, START + (begin + lasts) * MS)
    log.add([step(START + begin * MS, lasts * MS, thread=thread) for begin, lasts, thread in sorted(steps)])
    window = (START + 70 * S, START + 71 * S)
    log.add(steady(3, window[0], 100 * MS, thread=9, window=1))
    spans = [*((START + b * MS, START + (b + lasts) * MS) for b, lasts in windows), window]
    rows = zip(*log._copy(("start_ns", "decode_period_ns", "window"), 0), strict=True)
    far = sum(
        all(start + period < opened - S or start > closed + S for opened, closed in spans)
        for start, period, number in rows
        if period and not number
    )
    assert log.overhead(*window)["unprofiled_steps"] == far


def test_a_stable_batch() -> None:
    now = START + S
    assert StepLog().settled(now) is None
    assert logged(*steady(16, now - 160 * MS)).settled(now) is True
    assert logged(*steady(5, now - 50 * MS)).settled(now) is False, "too few"
    assert logged(*steady(5, now - 2 * S, 400 * MS)).settled(now) is True, "slow steps: one second of them is enough"
    grown = [*steady(10, now - 160 * MS), *steady(6, now - 60 * MS, sequences=2)]
    assert logged(*grown).settled(now) is False
    prompt = [*steady(15, now - 160 * MS), step(now - 10 * MS, phase=PREFILL)]
    assert logged(*prompt).settled(now) is False
    assert logged(*steady(16, now - 60 * S)).settled(now) is None, "it stands still"
    assert logged(*steady(16, now - 160 * MS, phase=0, sequences=0)).settled(now) is True, "steps of no known phase"


def test_the_usual_period_leaves_windows_out() -> None:
    assert StepLog().usual_period_ns() is None
    log = logged(*steady(20, START, 10 * MS), *steady(60, START + S, 30 * MS, window=2))
    assert log.usual_period_ns() == 10 * MS
    assert logged(*steady(20, START, 7 * MS, phase=0)).usual_period_ns() == 7 * MS, "steps of no known phase"


def test_the_file_holds_every_step(tmp_path: Path) -> None:
    log = logged(step(START, phase=PREFILL, tokens=8, prefill_tokens=8), *steady(3, START + 50 * MS, sequences=2))
    assert log.write_csv(tmp_path / "steps-1.csv.gz") == 4
    assert [path.name for path in tmp_path.iterdir()] == ["steps-1.csv.gz"]
    with gzip.open(tmp_path / "steps-1.csv.gz", "rt") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["phase"] for row in rows] == ["prefill", "decode", "decode", "decode"]
    assert [int(row["start_ns"]) - START for row in rows] == [0, 50 * MS, 60 * MS, 70 * MS]
    assert [int(row["period_ns"]) for row in rows] == [50 * MS, 10 * MS, 10 * MS, 0]
    assert {row["sequences"] for row in rows[1:]} == {"2"}


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        logged(step(START)).write_csv(tmp_path / "missing" / "steps-1.csv.gz")
    assert list(tmp_path.iterdir()) == []


def test_a_process_is_drained_before_it_is_let_go(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        ring = hello(tmp_path, child.pid, model={"name": "tiny"}, world_size=2)
        processes = Processes(tmp_path)
        processes.refresh()
        (process,) = processes.live
        assert process.holds_model and process.shares_steps and process.stepped_s is None
        ring.write(step(START, new_sequences=2), step(START + MS))
        processes.refresh()
        assert len(process.fresh) == 2 and process.fresh_requests == 2 and process.fresh_periods == [MS]
        ring.write(step(START + 2 * MS))
    finally:
        child.communicate(b"\n", timeout=10)
    processes._looked_s = 0.0
    processes._look()
    assert processes.live == [] and [len(one.log) for one in processes.ended] == [3]
    processes._look()
    assert len(processes.ended) == 1, "it is not met again"
    ring.close()


def test_a_number_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    ring = hello(tmp_path, os.getpid())
    ring.write(step(START))
    processes = Processes(tmp_path)
    processes.refresh()
    (first,) = processes.live
    first.born = "1"  # as if started at another time
    processes._look()
    assert processes.live == [] and processes.ended == [first]
    ring.close()
    again = hello(tmp_path, os.getpid(), model={"name": "other"})
    os.utime(tmp_path / "procs" / f"{os.getpid()}.json", ns=(1, 1))
    processes._look()
    assert [one.facts["model"] for one in processes.live] == [{"name": "other"}]
    again.close()
    processes.close()


def test_what_is_no_hello_file_is_passed_over(tmp_path: Path) -> None:
    ring = hello(tmp_path, os.getpid())
    for name, text in (("1.json", "{"), ("2.json", "[1]"), ("3.json", '{"pid": 4}'), ("x.json", "{}"), ("9.tmp", "{}")):
        (tmp_path / "procs" / name).write_text(text)
    processes = Processes(tmp_path)
    processes.refresh()
    assert [process.pid for process in processes.live] == [os.getpid()]
    processes.close()
    ring.close()


def test_a_process_that_cannot_be_seen_lives_while_it_asks(tmp_path: Path) -> None:
    unseen = 2**22 + 5  # above any process number
    ring = hello(tmp_path, unseen)
    asking = [unseen]
    processes = Processes(tmp_path, lambda pid: pid in asking)
    processes.refresh()
    (process,) = processes.live
    process.seen_s -= 3600
    processes._look()
    assert processes.live == [process]
    asking.clear()
    processes._look()
    assert processes.ended == [process]
    ring.close()


def test_decode_is_what_the_layout_calls_it() -> None:
    assert layout.PHASES[DECODE] == "decode" and layout.PHASES[PREFILL] == "prefill"


def test_what_the_recorder_itself_takes_is_no_step_of_the_run() -> None:
    """Two windows of ten steps, one after the other: closing the first and opening the second takes two seconds."""
    log = StepLog()
    log.add(steady(10, START, 10 * MS, window=1))
    log.add(steady(10, START + 100 * MS + 2 * S, 10 * MS, window=2))
    found = log.summary(START + 3 * S)
    assert found["decode_period_p50_us"] == found["decode_period_p99_us"] == 10_000.0
