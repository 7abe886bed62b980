"""One window at a time over all ranks, within its limits, on a clock that the test turns; what fails says why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.collect.rings import MS, PREFILL, Ring, steady, step
from traceanalyzer.collect import options as collect_options
from traceanalyzer.collect import takers
from traceanalyzer.collect.facts import RawWindow, Refused, Window
from traceanalyzer.collect.inside import layout
from traceanalyzer.collect.kineto import ROOM_S
from traceanalyzer.collect.processes import Process
from traceanalyzer.collect.ring import RingReader
from traceanalyzer.collect.windows import Windows

NOW = 1_790_000_000.0
STEP = {"ph": "X", "cat": "user_annotation", "name": "ta.step[decode n=1]", "ts": 0, "dur": 1}


@dataclass
class Control:
    """What was written into the control block."""

    asked: list[tuple[int, int, int]] = field(default_factory=list)
    span: tuple[int, int, int, int] = (0, 0, 0, 0)
    stopped: int = 0
    held: list[int] = field(default_factory=list)

    def hold_profilers(self, until_ns: int) -> None:
        self.held.append(until_ns)

    def request(self, window: int, steps: int, ms: int) -> None:
        self.asked.append((window, steps, ms))

    def record_span(self, from_ns: int, until_ns: int, quiet_ns: int, end_ns: int) -> None:
        self.span = (from_ns, until_ns, quiet_ns, end_ns)

    def word(self, offset: int) -> int:
        assert offset == layout.STOPPED
        return self.stopped


@dataclass
class Daemon:
    """Kineto as the processes show it."""

    asking: set[int] = field(default_factory=set)
    busy: set[int] = field(default_factory=set)
    sent: dict[int, str] = field(default_factory=dict)
    fetched: bool = True
    unused: dict[int, int] = field(default_factory=dict)

    def polling(self, pid: int) -> bool:
        return pid in self.asking

    def idle(self, pid: int) -> bool:
        return pid in self.asking - self.busy

    def asks_in(self, pid: int) -> float:
        return 0.5

    def send(self, pid: int, config: str, wait_s: float) -> None:
        assert wait_s > self.asks_in(pid), "it has time to fetch it"
        self.sent[pid] = config

    def fetched_ago(self, pid: int) -> float | None:
        return 0.0 if self.fetched else None


@dataclass
class Live:
    """The processes that run."""

    live: list[Process] = field(default_factory=list)


class Bench:
    """A collector without a command: its clock, its ranks and its recorder are the test's."""

    def __init__(self, folder: Path, *words: str, ranks: int = 1) -> None:
        self.folder, self.now = folder, NOW
        self.options = collect_options.parse([*(words or ("--signal",)), "--", "x"], "0")
        self.control, self.daemon, self.processes = Control(), Daemon(), Live()
        self.rings: dict[int, Ring] = {}
        for pid in range(100, 100 + ranks):
            self.add(pid, model={"name": "tiny"})
        on_demand = self.options.recorder == "ondemand"
        self.windows = Windows(
            self.options, self.control, self.processes, self.daemon if on_demand else None, folder, self.now
        )  # type: ignore[arg-type]

    def add(self, pid: int, asks: bool = True, **facts: object) -> Process:
        self.rings[pid] = Ring(self.folder / f"{pid}.ring", pid)
        process = Process(pid, {"pid": pid, "device": "cpu", **facts}, RingReader(self.folder / f"{pid}.ring"))
        self.processes.live.append(process)
        if asks:
            self.daemon.asking.add(pid)
        return process

    def decode(self, count: int = 20, period_ns: int = 10 * MS, **fields: int) -> None:
        """All ranks have just decoded."""
        start = int(self.now * 1e9) - count * period_ns
        for pid, ring in self.rings.items():
            ring.write(*steady(count, start, period_ns, **fields))
            next(process for process in self.processes.live if process.pid == pid).read()

    def go(self, seconds: float, each: float = 0.25) -> list[Window]:
        found: list[Window] = []
        until = self.now + seconds
        while self.now < until - 1e-9:
            self.now += each
            for pid in self.daemon.asking if self.now % 1 < each else ():  # Kineto asks once a second
                self.daemon.unused[pid] = self.daemon.unused.get(pid, 0) + 1 if self.daemon.idle(pid) else 0
            self.windows.tick(self.now)
            found += self.windows.finished()
        return found

    def go_to_end(self) -> list[Window]:
        """To just after the end of the window, when it is sent."""
        self.go(0.0 if self.daemon.sent else 0.5)
        return self.go(self.control.span[1] / 1e9 - 1.5 - self.now + 0.25)

    def request(self, reason: str = "signal") -> Window | Refused:
        return self.windows.request(reason, self.now)

    def refused(self, reason: str = "signal") -> str:
        found = self.request(reason)
        assert isinstance(found, Refused) and found.message
        return found.code

    def traces(self, number: int, *pids: int, steps: int = 1) -> None:
        """Kineto has written."""
        for pid in pids or self.daemon.sent:
            lines = dict(line.split("=", 1) for line in self.daemon.sent[pid].splitlines())
            path = Path(lines["ACTIVITIES_LOG_FILE"])
            assert path.stem.split(".")[0] == f"od-{number}"
            path.with_name(f"{path.stem}_{pid}.json").write_text(json.dumps({"traceEvents": [STEP][:steps]}))

    def take(self, number: int) -> Window:
        """Ask for a window and get it."""
        self.decode()
        assert isinstance(self.request(), Window)
        self.go(0.5)
        self.go_to_end()
        self.traces(number)
        (window,) = self.go(0.25)
        return window

    def close(self) -> None:
        for ring in self.rings.values():
            ring.close()
        for process in self.processes.live:
            process.ring.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path, ranks=2)
    yield found
    found.close()


def test_a_window_over_all_ranks(bench: Bench) -> None:
    bench.decode()
    window = bench.request()
    assert isinstance(window, Window) and (window.number, window.reason) == (1, "signal")
    assert window.requested_ns == int(NOW * 1e9)
    bench.go(0.5)
    configs = set(bench.daemon.sent.values())
    assert set(bench.daemon.sent) == {100, 101} and len(configs) == 1, "all start at the same time"
    lines = dict(line.split("=", 1) for line in configs.pop().splitlines())
    start_ms, lasts_ms = int(lines["PROFILE_START_TIME"]), int(lines["ACTIVITIES_DURATION_MSECS"])
    ms = lasts_ms - takers.TAIL_NS // MS
    assert start_ms / 1000 == pytest.approx(NOW + 0.5 + 0.5 + ROOM_S + 0.25, abs=0.26), "it fetches in half a second"
    assert lines["ACTIVITIES_LOG_FILE"] == str(bench.folder / "od-1.json")
    assert 34 * 10 <= ms < 34 * 10 * 2, "32 whole steps of 10 ms, with what profiling may cost"
    assert bench.control.asked == [(1, 32, ms)]
    begin, until, quiet, end = bench.control.span
    assert begin <= (start_ms - 100) * MS and until >= (start_ms + lasts_ms + 1000) * MS, "each step in it has a label"
    assert (quiet, end) == ((start_ms + ms) * MS, (start_ms + lasts_ms) * MS), "no operation at its end"
    assert bench.go_to_end() == []
    bench.traces(1, 100)
    told = (start_ms + ms + 3) * MS
    bench.rings[100].word(layout.RING_QUIET_NS, told)
    bench.rings[101].word(layout.RING_QUIET_NS, (start_ms - 5000) * MS)  # of the window before this one
    assert bench.go(1) == []
    bench.traces(1, 101)
    assert bench.go(0.25) == [window]
    assert window.stable is True and window.missing == [] and window.failed is None and window.weight_s == 0.0
    path = bench.folder / "od-1_100.json"
    assert window.raws[0] == RawWindow(
        path, 100, "ondemand", start_ms * MS, (start_ms + lasts_ms) * MS, "steps", None, None, None, quiet_ns=told
    )
    assert window.raws[1].quiet_ns is None, "its torch was not told"
    assert bench.windows.taken == 1 and not bench.windows.dropped


def test_a_batch_that_does_not_settle_is_taken_anyway_and_says_so(bench: Bench) -> None:
    bench.request()
    for turn in range(100):
        bench.decode(4, 50 * MS, sequences=1 + turn % 2)
        if bench.go(0.25) or bench.daemon.sent:
            break
    window = bench.windows.current
    assert window is not None and window.stable is False
    assert bench.now - NOW == pytest.approx(20, abs=0.6)
    assert "ACTIVITIES_DURATION_MSECS=2100" in bench.daemon.sent[100], "no step time to go by: as long as it may last"
    bench.go_to_end()
    bench.traces(1)
    (done,) = bench.go(0.25)
    assert done.raws[0].closed_by == "time"


def test_a_batch_that_settles_later_is_waited_for(bench: Bench) -> None:
    bench.decode(20)
    for ring in bench.rings.values():
        ring.write(step(int(bench.now * 1e9), phase=PREFILL))
    for process in bench.processes.live:
        process.read()
    bench.request()
    bench.go(1.5)
    assert not bench.daemon.sent
    bench.decode(16)
    bench.go(0.5)
    assert set(bench.daemon.sent) == {100, 101}


def test_an_idle_server_gives_no_empty_window(bench: Bench) -> None:
    bench.decode()
    bench.go(60)
    window = bench.request()
    (failed,) = bench.go(21)
    assert failed is window and failed.failed is not None and failed.failed.code == "idle"
    assert failed.missing == [100, 101] and failed.raws == []
    assert bench.windows.dropped == {"idle": 1} and not bench.daemon.sent
    assert bench.windows.current is None


def test_what_hinders_is_waited_for_and_then_told(bench: Bench) -> None:
    bench.rings[101].word(layout.RING_OPEN_SCOPES, 2)
    bench.decode()
    bench.request()
    bench.go(5)
    assert not bench.daemon.sent
    bench.rings[101].word(layout.RING_OPEN_SCOPES, 0)
    bench.go(0.5)
    assert set(bench.daemon.sent) == {100, 101}


def test_the_script_s_own_profiler_keeps_its_place(bench: Bench) -> None:
    bench.rings[100].word(layout.RING_FOREIGN, 1)
    bench.decode()
    bench.request()
    (window,) = bench.go(12)
    assert window.failed == Refused("busy", "a profiler of the script's own is running")
    assert not bench.daemon.sent


def test_the_script_s_profilers_are_held_back_while_kineto_works(bench: Bench) -> None:
    bench.decode()
    bench.request()
    bench.go(0.25)
    assert len(bench.control.held) == 1 and not bench.daemon.sent, "first said, then looked once more, then sent"
    assert bench.control.held[0] > (bench.now + 60) * 1e9
    bench.go(0.25)
    assert bench.daemon.sent
    bench.go_to_end()
    bench.traces(1, 100)
    bench.go(1)
    assert len(bench.control.held) == 1
    bench.traces(1, 101)
    bench.go(0.25)
    assert bench.control.held[1:] == [0]


def test_a_profiler_that_was_quicker_goes_first(bench: Bench) -> None:
    bench.decode()
    bench.request()
    bench.go(0.25)
    bench.rings[101].word(layout.RING_FOREIGN, 1)
    bench.go(1)
    assert bench.control.held[1:] == [0] and not bench.daemon.sent
    bench.rings[101].word(layout.RING_FOREIGN, 0)
    bench.go(0.5)
    assert bench.daemon.sent and bench.control.held[2] > 0


def test_nobody_is_held_back_by_a_window_that_failed(bench: Bench) -> None:
    bench.decode()
    bench.request()
    bench.go(0.25)
    bench.control.stopped = 1
    assert len(bench.go(0.25)) == 1
    assert bench.control.held[-1] == 0


def test_a_busy_kineto_is_not_sent_anything(bench: Bench) -> None:
    bench.daemon.busy = {101}
    bench.decode()
    bench.request()
    (window,) = bench.go(12)
    assert window.failed == Refused("busy", "Kineto is busy") and not bench.daemon.sent


def test_one_at_a_time_with_a_gap(bench: Bench) -> None:
    assert isinstance(bench.request(), Window)
    assert bench.refused() == "busy"
    bench.go(25)
    assert bench.windows.current is None
    assert bench.refused() == "min_gap", "60 s between two windows"
    bench.now = NOW + 60
    assert isinstance(bench.request(), Window)
    assert bench.windows.dropped == {"busy": 1, "idle": 1, "min_gap": 1}


def test_kineto_gets_five_seconds_between_two_windows(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "--signal", "--min-gap", "0s")
    bench.take(1)
    ended = bench.now
    bench.decode()
    bench.daemon.sent.clear()
    assert isinstance(bench.request(), Window)
    while not bench.daemon.sent:
        bench.decode(2, 100 * MS)
        bench.go(0.25)
    assert 4.9 <= bench.now - ended <= 5.6
    bench.close()


def test_a_storm_of_triggers_takes_no_more_than_the_quota(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "--signal", "--min-gap", "0s", "--max-per-day", "5")
    taken = 0
    for turn in range(4000):  # a quarter of an hour
        bench.request(f"http{turn % 2}")
        if turn % 4 == 0:
            bench.decode(4, 250 * MS)
        number = bench.windows.current.number if bench.windows.current else 0
        if number and bench.daemon.sent and turn % 4 == 0:
            bench.traces(number)
            bench.daemon.sent.clear()
        taken += sum(bool(window.raws) for window in bench.go(0.25))
    assert taken == bench.windows.taken == 5
    assert bench.windows.dropped["per_day"] > 1000
    assert sum(bench.windows.dropped.values()) == 4000 - 5
    bench.now += 86_400
    assert isinstance(bench.request(), Window), "24 hours later there is room again"
    bench.close()


def test_a_window_stands_for_the_time_since_the_last_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "--signal", "--min-gap", "0s")
    bench.now += 100
    assert bench.take(1).weight_s == 100
    bench.now = NOW + 400
    bench.request()
    (failed,) = bench.go(21)  # idle: stands for nothing
    assert failed.weight_s is None
    bench.now = NOW + 700
    assert bench.take(3).weight_s == 600
    bench.close()


def test_a_rank_without_a_file_is_named(bench: Bench) -> None:
    bench.decode()
    window = bench.request()
    bench.go_to_end()
    bench.traces(1, 100)
    (bench.folder / "od-1_101.json.tmp").write_text("{")
    gone = bench.processes.live.pop()
    (done,) = bench.go(1)
    assert done is window and [raw.pid for raw in done.raws] == [100] and done.missing == [101]
    bench.go(1)
    bench.request()
    assert not (bench.folder / "od-1_101.json.tmp").exists(), "nothing half-written is kept"
    gone.ring.close()


def test_a_window_that_the_script_s_profiler_took_over_is_given_up(bench: Bench) -> None:
    bench.decode()
    bench.request()
    bench.go(0.5)
    bench.go_to_end()
    bench.traces(1, 100)
    (done,) = bench.go(8)  # rank 101 asks for work again and has written nothing
    assert done.missing == [101]


def test_a_window_that_kineto_still_writes_is_waited_for(bench: Bench) -> None:
    bench.decode()
    bench.request()
    bench.go(0.5)
    bench.daemon.busy = {100, 101}
    assert bench.go(90) == []
    bench.traces(1)
    (done,) = bench.go(0.25)
    assert len(done.raws) == 2


def test_but_not_for_ever(bench: Bench) -> None:
    bench.decode()
    bench.request()
    bench.go(0.5)
    bench.daemon.busy = {100, 101}
    (done,) = bench.go(130)
    assert done.failed is not None and done.failed.code == "lost" and done.missing == [100, 101]


def test_a_rank_that_did_not_fetch_the_window_is_not_waited_for(bench: Bench) -> None:
    bench.daemon.fetched = False
    bench.decode()
    bench.request()
    found = []
    while not found:
        bench.decode(2, 100 * MS)
        found = bench.go(0.25)
    assert found[0].failed == Refused(
        "lost", "no process gave a file: " + takers.UNFETCHED + " (2 of 2 processes) (try 4)"
    )
    assert bench.now - NOW < 15


def test_a_window_that_nobody_could_begin_is_begun_anew(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.decode()
    window = bench.request()
    bench.go_to_end()
    first = dict(bench.daemon.sent)
    bench.daemon.sent.clear()
    bench.decode()
    assert bench.go(3) == [] and bench.windows.current is window, "both ranks have asked for work again"
    assert f"window 1 is begun anew: {takers.DROPPED} (2 of 2 processes)" in capsys.readouterr().err
    assert bench.control.held[1] == 0, "the script's own profiler had its turn"
    (bench.folder / "od-1_100.json").write_text("of the first try, late")
    bench.go_to_end()
    assert set(bench.daemon.sent) == {100, 101} and bench.daemon.sent != first
    bench.traces(1)
    (done,) = bench.go(0.25)
    assert done is window and done.tries == 2 and not done.lost and done.missing == [] and done.failed is None
    assert sorted(raw.path.name for raw in done.raws) == ["od-1.2_100.json", "od-1.2_101.json"]
    assert not (bench.folder / "od-1_100.json").exists()
    assert bench.windows.taken == 1 and not bench.windows.dropped


def write_steps(bench: Bench) -> None:
    """Steps all through the window that was sent."""
    begin, end, *_ = bench.control.span
    for ring in bench.rings.values():
        ring.write(*steady((end - begin) // (10 * MS), begin, 10 * MS))
    for process in bench.processes.live:
        process.read()


def test_a_window_that_missed_all_its_steps_is_begun_anew_and_lasts_longer(bench: Bench) -> None:
    bench.decode(100)
    bench.request()
    bench.go(0.5)
    lasted = bench.control.asked[0][2]
    write_steps(bench)
    bench.go_to_end()
    bench.traces(1, steps=0)
    assert bench.go(0.25) == []
    again = iter([4 * lasted, 16 * lasted, 2000])
    for _ in range(10):
        bench.decode()
        bench.go(1)
        assert bench.control.asked[-1] == (1, 32, min(2000, next(again)))
        if bench.control.asked[-1][2] == 2000:
            break
        write_steps(bench)
        bench.go_to_end()
        bench.traces(1, steps=0)
        assert bench.go(0.25) == []
    write_steps(bench)
    bench.go_to_end()
    bench.traces(1, steps=0)
    (done,) = bench.go(0.25)
    assert len(done.raws) == 2 and done.raws[0].closed_by == "time", "kept: it lasted as long as a window may"


def test_a_window_without_a_step_is_kept_where_none_ran(bench: Bench) -> None:
    bench.decode()
    bench.request()
    bench.go_to_end()
    bench.traces(1, steps=0)
    (done,) = bench.go(0.25)
    assert len(done.raws) == 2 and done.tries == 1


def test_a_window_is_not_begun_anew_when_recording_has_stopped(bench: Bench) -> None:
    bench.decode()
    bench.request()
    bench.go_to_end()
    bench.control.stopped = 1
    (done,) = bench.go(3)
    assert done.failed is not None and done.failed.code == "lost" and takers.DROPPED in done.failed.message


def test_each_process_that_gave_no_file_says_why(bench: Bench) -> None:
    bench.decode()
    bench.request()
    bench.go_to_end()
    bench.processes.live.pop().ring.close()
    (done,) = bench.go(3)
    assert done.lost == {100: takers.DROPPED, 101: takers.ENDED} and done.tries == 1, (
        "with a rank less it would miss it"
    )
    assert done.failed is not None
    assert takers.ENDED in done.failed.message and takers.DROPPED in done.failed.message


def test_forked_ranks_and_old_torch_are_told_what_to_do(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ranks=0)
    assert bench.refused() == "no_model"
    process = bench.add(100, asks=False, model={"name": "tiny"}, forked=True)
    found = bench.request()
    assert isinstance(found, Refused) and found.code == "unsupported"
    assert "VLLM_WORKER_MULTIPROC_METHOD=spawn" in found.message and "--recorder python" in found.message
    process.facts = {"model": {}, "device": "cuda", "torch": "2.6.0+cu124"}
    process.stepped_s = 1.0
    bench.daemon.asking = {100}
    found = bench.request()
    assert isinstance(found, Refused) and "torch 2.7" in found.message
    process.facts["torch"] = "2.13.0+cu130"
    assert isinstance(bench.request(), Window)
    bench.close()


def test_a_rank_that_cannot_be_recorded_is_missing_from_the_start(bench: Bench) -> None:
    bench.daemon.asking = {100}
    window = bench.take(1)
    assert [raw.pid for raw in window.raws] == [100] and window.missing == [101]


def test_a_process_that_imports_torch_alone_is_not_recorded(bench: Bench) -> None:
    """The launcher of torchrun asks for work, too."""
    bench.add(99).seen_s -= 3600
    bench.rings.pop(99).close()
    bench.decode()
    bench.request()
    bench.go(0.5)
    assert set(bench.daemon.sent) == {100, 101}


def test_an_unknown_model_is_recorded_without_labels(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ranks=0)
    process = bench.add(100)
    assert bench.refused() == "no_model", "it may still load one"
    process.seen_s -= 21
    window = bench.request()
    assert isinstance(window, Window)
    bench.go(0.5)
    assert window.labelled is False and window.stable is None
    assert "ACTIVITIES_DURATION_MSECS=2100" in bench.daemon.sent[100]
    bench.close()


@pytest.mark.parametrize(
    "module", ["vllm.v1.worker.gpu_worker", "sglang.srt.model_executor.model_runner", "transformers.modeling_utils"]
)
def test_an_engine_that_still_loads_is_not_recorded(tmp_path: Path, module: str) -> None:
    """Nor the server in front of it, which has torch as long: an hour of weights and graphs."""
    bench = Bench(tmp_path, "--every", "5m", ranks=0)
    engine, front = bench.add(100, hooks=["torch._dynamo.eval_frame", module]), bench.add(101)
    engine.seen_s -= 3600
    front.seen_s -= 3600
    found = bench.request("every")
    assert isinstance(found, Refused) and found.code == "no_model" and "--step" in found.message
    bench.go(60)
    assert not bench.daemon.sent and not bench.control.held
    bench.decode()
    engine.facts["model"] = {"name": "tiny"}
    assert isinstance(bench.request("every"), Window)
    bench.close()


def test_torch_itself_is_no_engine(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ranks=0)
    bench.add(100, hooks=["torch._dynamo.eval_frame"]).seen_s -= 21
    assert isinstance(bench.request(), Window)
    bench.close()


def test_a_model_that_has_not_run_yet_is_waited_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.request()
    (window,) = bench.go(21)
    assert window.labelled and window.failed is not None and window.failed.code == "idle"
    bench.close()


def test_stopped_is_stopped(bench: Bench) -> None:
    bench.decode()
    bench.request()
    bench.control.stopped = 1
    (window,) = bench.go(0.25)
    assert window.failed is not None and window.failed.code == "stopped"
    bench.now += 100
    assert bench.refused() == "stopped"


def test_the_end_waits_for_nothing(bench: Bench) -> None:
    bench.decode()
    bench.request()
    bench.go_to_end()
    bench.windows.flush(bench.now)
    assert bench.windows.current is not None, "what is being taken is still collected"
    bench.traces(1, 101)
    bench.windows.close(bench.now)
    (window,) = bench.windows.finished()
    assert [raw.pid for raw in window.raws] == [101] and window.missing == [100]


def test_the_end_gives_up_what_has_not_begun(bench: Bench) -> None:
    bench.request()
    bench.windows.flush(bench.now)
    (window,) = bench.windows.finished()
    assert window.failed is not None and window.failed.code == "stopped"


def test_the_cost_of_one_window_is_reckoned_with_in_the_next(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "--signal", "--min-gap", "0s")
    bench.decode(100)
    bench.request()
    bench.go(0.5)
    begin = bench.control.span[0] + 500 * MS
    for ring in bench.rings.values():
        ring.write(*steady(20, begin, 25 * MS, window=1))  # two and a half times as slow
    for process in bench.processes.live:
        process.read()
    bench.go_to_end()
    bench.traces(1)
    assert len(bench.go(0.25)) == 1
    bench.now += 20
    bench.decode(100)
    bench.request()
    bench.go(0.5)
    assert bench.control.asked[1][2] == pytest.approx(34 * 25, rel=0.1)
    bench.close()


def meta(folder: Path, pid: int, number: int, **facts: object) -> None:
    (folder / f"{pid}-{number}.json").write_text("{}")
    text = json.dumps({"window": number, "pid": pid, "recorder": "python", "closed_by": "steps", **facts})
    (folder / f"{pid}-{number}.meta.json").write_text(text)


def test_the_python_recorder_when_it_is_forced(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "--signal", "--recorder", "python", ranks=2)
    bench.decode()
    window = bench.request()
    assert bench.go(0.5) == [] and bench.control.asked == [(1, 32, 2000)] and bench.control.span == (0, 0, 0, 0)
    meta(tmp_path, 100, 1, opened_ns=5, closed_ns=9, open_ms=1.5, stop_ms=2, path="/somewhere/else", steps="?")
    assert bench.go(1) == []
    bench.rings[101].word(layout.RING_SEEN_WINDOW, 1)  # it refused: its own profiler runs
    (done,) = bench.go(6)
    assert done is window and done.missing == [101]
    assert done.raws == [RawWindow(tmp_path / "100-1.json", 100, "python", 5, 9, "steps", 1.5, 2.0, None)]
    bench.close()


def test_a_python_window_that_nobody_waits_for_any_more_is_withdrawn(tmp_path: Path) -> None:
    """Else an idle process would open it at its next step, hours later."""
    bench = Bench(tmp_path, "--signal", "--recorder", "python", ranks=2)
    bench.decode()
    bench.request()
    bench.go(0.5)
    meta(tmp_path, 100, 1)
    (done,) = bench.go(60)
    assert done.missing == [101]
    assert bench.control.asked == [(1, 32, 2000), (1, 0, 0)]
    meta(tmp_path, 101, 1)  # it had begun all the same
    bench.decode()
    bench.request()
    bench.go(0.5)
    assert sorted(path.name for path in tmp_path.glob("10*-1.*")) == ["100-1.json", "100-1.meta.json"]
    bench.close()


def test_a_python_window_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "--signal", "--recorder", "python")
    bench.decode()
    bench.request()
    bench.rings[100].word(layout.RING_SEEN_WINDOW, 1)
    bench.rings[100].word(layout.RING_WINDOW, 1)
    assert bench.go(60) == []
    meta(tmp_path, 100, 1)
    assert len(bench.go(0.25)[0].raws) == 1
    bench.close()


def test_in_mode_full_the_processes_windows_are_collected_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "--mode", "full", ranks=2)
    assert bench.refused() == "unsupported"
    meta(tmp_path, 100, 1, opened_ns=7)
    meta(tmp_path, 101, 1)
    meta(tmp_path, 100, 2)
    (tmp_path / "5-5.meta.json").write_text("{")
    (tmp_path / "x-y.meta.json").write_text("{}")
    (tmp_path / "100-3.json").write_text("{")  # being written: its meta file is not there yet
    found = bench.go(1)
    assert [(w.number, w.reason, w.raws[0].pid) for w in found] == [
        (1, "full", 100),
        (2, "full", 100),
        (1, "full", 101),
    ]
    assert found[0].requested_ns == 7 and found[0].weight_s is None
    assert bench.go(2) == []
    bench.windows.close(bench.now)
    assert bench.windows.finished() == []
    bench.close()
