"""The daemon that Kineto asks: with processes that really do, and with datagrams that nobody should send."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collect.ondemand import OnDemand
from traceanalyzer.collect import kineto, takers
from traceanalyzer.collect.facts import RawWindow, Window
from traceanalyzer.collect.kineto import ROOM_S, Daemon, environment, start_s, window_config
from traceanalyzer.collect.processes import Process

STEPS = 12
FAR = 20  # steps, at least, that nothing of Kineto's is near


class Taken(NamedTuple):
    """One window of two processes and a forked child, and what the rings said while it was written."""

    window: Window
    traces: dict[int, dict[str, Any]]
    written_ns: dict[int, int]
    processes: dict[int, Process]
    forked: list[int]
    left: list[str]
    usual_ns: int
    costs: dict[int, dict[str, Any]]
    missed: Window
    """The next window: both processes stood still from fetching it until it was over."""


@pytest.fixture(scope="module")
def taken() -> Iterator[Taken]:
    with pytest.MonkeyPatch.context() as patch, OnDemand("--steps", str(STEPS)) as od:
        patch.setattr(takers, "GAP_S", 0.0)
        od.spawn("120")
        od.spawn("120", "fork")
        od.until(lambda: od.stepping(3), 60)
        od.until(lambda: all(process.log.settled(time.time_ns()) for process in od.processes.live), 20)
        usual = [process.log.usual_period_ns() or 0 for process in od.processes.live]
        window = od.take()
        traces = {raw.pid: json.loads(raw.path.read_bytes()) for raw in window.raws}
        written = {raw.pid: raw.path.stat().st_mtime_ns for raw in window.raws}
        left = sorted(path.name for path in od.raw.iterdir())
        span = window.raws[0].opened_ns or 0, (window.raws[0].closed_ns or 0) - takers.TAIL_NS
        recorded = [process for process in od.processes.live if process.pid in traces]
        od.until(lambda: all(process.log.overhead(*span)["unprofiled_steps"] > FAR for process in recorded), 60)
        costs = {process.pid: process.log.overhead(*span) for process in recorded}
        missed = miss(od, list(traces))
        found = {process.pid: process for process in od.processes.live}
        forked = [pid for pid, process in found.items() if process.forked]
        yield Taken(window, traces, written, found, forked, left, min(usual), costs, missed)


def miss(od: OnDemand, pids: list[int]) -> Window:
    """Take a window of processes that are too slow for it: they stand still from when they have fetched it."""
    assert od.daemon is not None
    window = od.windows.request("signal", time.time())
    assert isinstance(window, Window)
    od.until(lambda: window.tries and all(od.daemon.fetched_ago(pid) is not None for pid in pids), 30)  # type: ignore[union-attr]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    over = od.windows._taker.spans()[1] / 1e9 + 0.3
    try:
        od.until(lambda: time.time() > over, 10)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    od.until(lambda: window in od.done, 60)
    return window


def labels(trace: dict[str, Any]) -> list[tuple[int, int]]:
    """Begin and end of each label of ours, epoch nanoseconds."""
    base = trace["baseTimeNanoseconds"]
    return sorted(
        (base + round(event["ts"] * 1e3), base + round((event["ts"] + event["dur"]) * 1e3))
        for event in trace["traceEvents"]
        if event.get("ph") == "X" and event.get("cat") == "user_annotation" and event["name"].startswith("ta.step[")
    )


def steps(process: Process) -> list[tuple[int, int]]:
    """Begin and end of each step, from the ring."""
    starts, durations = process.log._copy(("start_ns", "duration_ns"), 0)
    return [(start, start + duration) for start, duration in zip(starts, durations, strict=True)]


def test_every_process_that_asks_gave_its_trace(taken: Taken) -> None:
    assert len(taken.traces) == 2 and len(taken.forked) == 1
    assert taken.window.missing == taken.forked, "no Kineto thread in a forked child: it is named, not waited for"
    assert taken.window.stable is True and taken.window.failed is None and taken.window.labelled
    assert taken.left == sorted(raw.path.name for raw in taken.window.raws), "nothing half-written beside them"
    for raw in taken.window.raws:
        assert raw.recorder == "ondemand" and raw.closed_by == "steps"


def test_a_window_holds_the_steps_that_were_asked_for(taken: Taken) -> None:
    for raw in taken.window.raws:
        whole = [s for s in steps(taken.processes[raw.pid]) if raw.opened_ns <= s[0] and s[1] <= raw.whole_until_ns]
        found = labels(taken.traces[raw.pid])
        # Within a few ms of the window's edges a step may be in or out: Kineto keeps its time to about 1 ms.
        assert abs(len(found) - len(whole)) <= 2
        lasted = (raw.closed_ns or 0) - takers.TAIL_NS - (raw.opened_ns or 0)
        assert lasted >= STEPS * taken.usual_ns, "enough for all of them, unless the machine became slower meanwhile"
        assert found
        for (begin, end), step in zip(found[1:-1], whole[1:-1], strict=False):
            nearest = min(whole, key=lambda one, begin=begin: abs(one[0] - begin))
            assert abs(nearest[0] - begin) < 2_000_000 and end > begin, step


def test_all_ranks_start_together(taken: Taken) -> None:
    begins = []
    for trace in taken.traces.values():
        (start,) = [e for e in trace["traceEvents"] if str(e.get("name")).startswith("Iteration Start")]
        begins.append(trace["baseTimeNanoseconds"] + start["ts"] * 1e3)
    opened = taken.window.raws[0].opened_ns or 0
    assert max(begins) - min(begins) < 500e6, "50 ms on a machine with nothing else to do"
    assert all(abs(begin - opened) < 500e6 for begin in begins)
    assert opened / 1e9 - taken.window.requested_ns / 1e9 >= ROOM_S - 0.01


def test_kineto_s_own_thread_wrote_it_while_the_model_ran_on(taken: Taken) -> None:
    for raw in taken.window.raws:
        trace = taken.traces[raw.pid]
        assert "PyTorch Profiler" in {e["name"].split(" (")[0] for e in trace["traceEvents"] if e.get("ph") == "X"}
        assert "traceanalyzer" not in trace, "not written by us"
        written = taken.written_ns[raw.pid]
        meanwhile = [begin for begin, _ in steps(taken.processes[raw.pid]) if raw.closed_ns < begin < written]
        assert len(meanwhile) >= 10, "steps between the window's end and the file's last byte"
        threads = {e["tid"] for e in trace["traceEvents"] if str(e.get("name", "")).startswith("ta.step[")}
        assert threads == {raw.pid}, "the steps ran in the main thread"
        assert len(list(Path(f"/proc/{raw.pid}/task").iterdir())) >= 3, "and Kineto has threads of its own"


def test_a_window_that_every_process_was_too_slow_for_is_taken_all_the_same(taken: Taken) -> None:
    window = taken.missed
    assert window.failed is None and not window.lost and window.missing == taken.forked
    assert window.tries >= 2
    assert {raw.path.name for raw in window.raws} == {f"od-2.{window.tries}_{pid}.json" for pid in taken.traces}


def test_the_cost_of_recording_is_known(taken: Taken) -> None:
    for raw in taken.window.raws:
        found = taken.costs[raw.pid]
        assert abs(found["profiled_steps"] - len(labels(taken.traces[raw.pid]))) <= 3
        assert found["unprofiled_steps"] > FAR
        assert 0.2 < found["step_us"] / found["unprofiled_step_us"] < 20
    assert isinstance(taken.window.raws[0], RawWindow)


HEADER = struct.Struct("<Q32s")


def question(pid: int, kinds: int = 3, *ancestors: int) -> bytes:
    pids = (pid, *ancestors)
    body = struct.pack(f"<iiq{len(pids)}i", kinds, len(pids), 0, *pids)
    return HEADER.pack(len(body), b"req") + body


class Client:
    """A process' end of the socket."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / f"client{id(self)}"))
        self.socket.settimeout(10)
        self.to = str(folder / "dynolog")

    def send(self, data: bytes) -> None:
        self.socket.sendto(data, self.to)

    def ask(self, data: bytes) -> tuple[bytes, bytes]:
        """The answer's name and body."""
        self.send(data)
        answer = self.socket.recv(65536)
        size, name = HEADER.unpack_from(answer)
        assert size == len(answer) - HEADER.size
        return name.rstrip(b"\0"), answer[HEADER.size :]


@pytest.fixture
def daemon(short: Path) -> Iterator[Daemon]:
    found = Daemon(short)
    found.start()
    yield found
    found.close()
    assert not list(short.glob("dynolog*"))


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("k")


@pytest.fixture
def client(short: Path) -> Iterator[Client]:
    found = Client(short)
    yield found
    found.socket.close()


def test_a_configuration_is_given_once_to_whom_it_is_for(daemon: Daemon, client: Client) -> None:
    assert not daemon.polling(41)
    assert client.ask(question(41, 3, 7, 1)) == (b"req", b"")
    assert daemon.polling(41) and daemon.idle(41) and not daemon.polling(7), "the others are its ancestors"
    daemon.send(41, "A=1\n", wait_s=30)
    assert daemon.fetched_ago(41) is None
    assert client.ask(question(42)) == (b"req", b"")
    assert client.ask(question(41)) == (b"req", b"A=1\n")
    assert 0 <= (daemon.fetched_ago(41) or -1) < 60 and not daemon.idle(41)
    assert client.ask(question(41)) == (b"req", b"")
    assert daemon.refused == 0


def test_a_busy_process_is_asked_again_and_a_late_one_not(daemon: Daemon, client: Client) -> None:
    daemon.send(41, "A=1\n", wait_s=30)
    assert client.ask(question(41, kinds=1)) == (b"req", b""), "it records or writes: Kineto would drop it"
    assert daemon.polling(41) and not daemon.idle(41) and daemon.fetched_ago(41) is None
    assert client.ask(question(41, kinds=2)) == (b"req", b"A=1\n")
    daemon.send(41, "A=2\n", wait_s=-1)
    assert client.ask(question(41)) == (b"req", b""), "its start has passed"
    assert daemon.fetched_ago(41) is None


def test_who_has_not_read_its_last_answer_is_not_given_another(daemon: Daemon, client: Client) -> None:
    """It would take that for the answer to its question, and be a second late for ever."""
    client.send(question(41))  # and does not wait long enough
    until = time.monotonic() + 30
    while daemon.unused.get(41) != 1:
        assert time.monotonic() < until
        time.sleep(0.01)
    daemon.send(41, "A=1\n", wait_s=30)
    client.send(question(41))
    while daemon.unused[41] != 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert client.socket.recv(65536)[40:] == b"" and daemon.fetched_ago(41) is None
    client.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.socket.recv(65536)
    client.socket.settimeout(10)
    assert client.ask(question(41)) == (b"req", b"A=1\n")
    assert client.ask(question(41)) == (b"req", b"")


def test_a_greeting_is_answered(daemon: Daemon, client: Client) -> None:
    body = struct.pack("<iiq", 0, 41, 0)
    assert client.ask(HEADER.pack(len(body), b"ctxt") + body) == (b"ctxt", struct.pack("<i", 1))


HOSTILE = {
    "nothing": b"", "short": b"\x01", "no body": HEADER.pack(44, b"req"), 
    "another size": HEADER.pack(2**63, b"req") + b"x" * 44,
    "unknown": HEADER.pack(0, b"exec"), "no name": HEADER.pack(0, b"\xff" * 32), "no pids": question(1)[:-4],
    "many pids": HEADER.pack(20, b"req") + struct.pack("<iiqi", 3, 2**31 - 1, 0, 1),
    "negative count": HEADER.pack(20, b"req") + struct.pack("<iiqi", 3, -1, 0, 1),
    "no process": question(0), "negative process": question(-5), "large": b"\0" * 60_000,
}  # fmt: skip


def test_odd_datagrams_are_counted_and_harm_nothing(daemon: Daemon, client: Client) -> None:
    for data in HOSTILE.values():
        client.send(data)
    nameless = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    nameless.sendto(question(77), client.to)  # nobody to answer
    nameless.close()
    assert client.ask(question(41)) == (b"req", b"")
    assert daemon.refused == len(HOSTILE)
    assert set(daemon.polls) == {41, 77}


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=120), st.sampled_from([b"req", b"ctxt", b"rep", b""]), st.booleans())
def test_no_datagram_is_an_error(body: bytes, name: bytes, sized: bool) -> None:
    answer = Daemon.__new__(Daemon)
    answer.polls, answer.unused, answer._idle, answer._waiting, answer._delivered = {}, {}, {}, {}, {}
    answer._lock = kineto.threading.Lock()
    found = answer._answer(HEADER.pack(len(body) if sized else 9, name) + body)
    assert found is None or len(found) >= HEADER.size
    assert all(pid > 0 for pid in answer.polls)


def test_a_client_that_does_not_read_is_not_waited_for(daemon: Daemon, client: Client, short: Path) -> None:
    deaf = Client(short)
    for _ in range(2000):
        deaf.send(question(50))
    assert client.ask(question(41)) == (b"req", b"")
    deaf.socket.close()


def test_a_path_that_no_socket_can_have(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 110)
    folder.mkdir()
    with pytest.raises(OSError):
        Daemon(folder)


def test_what_is_too_long_or_cannot_stand_in_a_line(daemon: Daemon) -> None:
    with pytest.raises(ValueError, match="too long"):
        daemon.send(1, "x" * 20_000, wait_s=1)
    for name in ("a\nPROFILE_START_TIME=0", "a#b"):
        with pytest.raises(ValueError, match="line break"):
            window_config(Path("/tmp") / name, 1, 1, shapes=False, stack=False)


def test_the_configuration_of_a_window() -> None:
    found = window_config(Path("/r/od-3.json"), 1_790_000_000_123_456_789, 250, shapes=True, stack=False)
    lines = dict(line.split("=") for line in found.splitlines())
    assert lines["PROFILE_START_TIME"] == "1790000000123" and lines["ACTIVITIES_DURATION_MSECS"] == "250"
    assert lines["PROFILE_REPORT_INPUT_SHAPES"] == "true" and lines["PROFILE_WITH_STACK"] == "false"
    assert not any("ITERATION" in name for name in lines), "bounded by steps it would have no bound in time"


def test_the_environment_keeps_what_the_user_set(tmp_path: Path) -> None:
    own = tmp_path / "own.conf"
    own.write_text("ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB=64\nSOMETHING=1")
    found = environment(tmp_path, tmp_path / "raw", {"KINETO_CONFIG": str(own), "KINETO_LOG_LEVEL": "0"})
    assert "KINETO_LOG_LEVEL" not in found and found["KINETO_USE_DAEMON"] == "1"
    assert found["KINETO_IPC_SOCKET_DIR"] == str(tmp_path)
    lines = Path(found["KINETO_CONFIG"]).read_text().splitlines()
    assert lines[:2] == own.read_text().splitlines() and "ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1" in lines
    assert own.read_text().count("ON_DEMAND") == 0, "their file is left alone"
    gone = environment(tmp_path, tmp_path / "raw", {"KINETO_CONFIG": str(tmp_path / "gone")})
    assert gone["KINETO_LOG_LEVEL"] == "6"


def begins(turn: float, fetch: float, start: float, late: Iterator[float]) -> bool:
    """Whether Kineto's thread begins a window: it looks once a second, each time as late as the machine is busy."""
    while turn < fetch:
        turn += 1
    while True:
        now = turn + next(late)
        if now > start:
            return False
        if now + 1 >= start:
            return True
        turn += 1


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.one_of(st.none(), st.floats(-1e5, 0))), min_size=1, max_size=8),
    st.integers(0, 2**32),
)
def test_no_process_misses_the_start(ranks: list[tuple[float, float | None]], seed: int) -> None:
    """Of the first window the thread looks from its fetching on, of later ones from the end of the last one on."""
    now, chance = 1_790_000_000.0, random.Random(seed)
    fetches = [now + fetch for fetch, _ in ranks]
    turns = [fetch if turn is None else now + turn for fetch, (_, turn) in zip(fetches, ranks, strict=True)]
    start = start_s(fetches, turns)
    assert max(fetches) + ROOM_S <= start <= max(fetches) + ROOM_S + 1
    bearable = 0.7 / len(set(turns))
    for fetch, turn, (_, known) in zip(fetches, turns, ranks, strict=True):
        late = iter(lambda: chance.uniform(0, bearable), None)
        first = fetch + 1 if known is None else turn + int(max(0, fetch - turn))
        assert begins(first, fetch, start, late)


def test_a_start_just_behind_a_turn_is_what_is_kept_away_from() -> None:
    """What the thread of the simulation does with it, being 2 ms late; and where the start goes instead."""
    assert not begins(10.0, 10.0, 12.001, iter([0.0, 0.0, 0.002]))
    assert start_s([10.0], [10.0]) == pytest.approx(11.75)
    assert start_s([10.3], [4.0]) == pytest.approx(12.75), "known from an earlier window"
    assert start_s([10.0, 10.5], [10.0, 10.5]) == pytest.approx(12.375)
