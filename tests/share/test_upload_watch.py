"""The sidecar: each file once, whatever the server, the spool and the machine do meanwhile."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.share.serving import Answer, Scripted, free_port, serving
from tests.share.test_upload import TOKEN, small
from traceanalyzer.share.address import Token, address
from traceanalyzer.share.offered import Watched
from traceanalyzer.share.sent import State
from traceanalyzer.share.transfer import Line, Server
from traceanalyzer.share.upload import Uploader
from traceanalyzer.share.watch import Sidecar

HOST = "0123456789ab"
RECORDING = f"20261130T045537.123Z-{HOST}-77"


def window(number: int, rank: int = 0) -> str:
    return f"traceanalyzer-{HOST}-{100 + rank}-rank{rank}-20261130T0455{number:02}.000Z.pt.trace.json.gz"


def collected(spool: Path, numbers: range, *, is_listed: bool = True, finished: bool = False) -> Path:
    """A recording with windows of these numbers, as the collector leaves it; files appear whole."""
    folder = spool / RECORDING
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        made = small(spool / ".made", "x.json", "." * number)
        made.with_suffix(".gz").write_bytes(gzip.compress(made.read_bytes(), mtime=0))
        made.with_suffix(".gz").rename(folder / window(number))
    listed = [path.name for path in sorted(folder.glob("*.pt.trace.json.gz"))] if is_listed else []
    manifest = {
        "schema": 1, "kind": "traceanalyzer-recording", "created_at": "x", "host_hash": HOST, "mode": "sample",
        "finished_at": "x" if finished else None,
        "windows": [{"number": n, "weight_s": 30.5 + n, "files": [{"name": name}]} for n, name in enumerate(listed)],
    }  # fmt: skip
    (folder / "new").write_text(json.dumps(manifest))
    (folder / "new").rename(folder / "recording.json")
    return folder


@dataclass
class Running:
    said: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


@contextmanager
def sidecar(url: str, spool: Path, state: Path, token: str | None = None, settled_s: float = 0.3) -> Iterator[Running]:
    """A sidecar in a thread, in a hurry."""
    running = Running()
    made: list[Sidecar] = []

    def work() -> None:
        kept, server = State(state), Server(address(url), Token(None, token), Line())
        uploader = Uploader(server, url, kept, "default", {}, lambda done, size: None)
        made.append(Sidecar(
            Watched([spool], settled_s), uploader, lambda sent: running.told.append(sent.page), running.said.append,
            look_s=0.05, first_pause_s=0.05,
        ))  # fmt: skip
        made[0].run()
        server.close()
        kept.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        until(lambda: made)
        yield running
    finally:
        made[0].stop(drain=False)
        thread.join(30)
        assert not thread.is_alive()


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def server() -> Iterator[Scripted]:
    with serving() as running:
        yield running


def test_what_appears_in_a_spool_is_sent_once(server: Scripted, tmp_path: Path) -> None:
    spool = tmp_path / "spool"  # not there yet
    with sidecar(server.url, spool, tmp_path / "s") as running:
        time.sleep(0.2)
        collected(spool, range(3))
        until(lambda: len(server.stored) == 3)
        collected(spool, range(3, 5), is_listed=False)  # finished, and not yet in the manifest
        until(lambda: len(server.stored) == 5)
        collected(spool, range(5, 5), finished=True)
        time.sleep(0.3)
    assert len(server.puts) == 5
    assert len(running.told) == 5
    assert running.said == []
    labels = [seen.labels for seen in server.puts]
    assert {label["recording"] for label in labels} == {RECORDING}
    assert {label["host"] for label in labels} == {HOST}
    assert [label["weight_s"] for label in labels[:3]] == ["30.5", "31.5", "32.5"]
    # A restart sends nothing, asks nothing and tells nothing again.
    before = len(server.seen)
    with sidecar(server.url, spool, tmp_path / "s") as running:
        time.sleep(0.3)
    assert len(server.seen) == before
    assert running == Running()


def test_other_files_are_sent_when_they_have_settled(server: Scripted, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "notes.txt").write_text("no trace")
    (spool / ".hidden.json").write_text("{}")
    (spool / "empty.json").write_text("")
    (spool / "link.json").symlink_to(small(tmp_path, "elsewhere.json"))
    growing = spool / "growing.json"
    text = small(tmp_path, "whole.json").read_text()
    with sidecar(server.url, spool, tmp_path / "s", settled_s=1.0):
        for end in range(20, len(text), 20):
            growing.write_text(text[:end])
            time.sleep(0.1)
        assert server.seen == []
        growing.write_text(text)
        until(lambda: len(server.stored) == 1)
        time.sleep(0.2)
    assert len(server.puts) == 1


def test_a_server_that_is_away_for_long_is_waited_for(tmp_path: Path) -> None:
    port, spool = free_port(), tmp_path / "spool"
    collected(spool, range(4))
    with sidecar(f"http://127.0.0.1:{port}", spool, tmp_path / "s") as running:
        until(lambda: running.said)
        time.sleep(1.0)
        collected(spool, range(4, 6))
        assert len(running.said) == 1
        with serving(port) as server:
            until(lambda: len(server.stored) == 6)
            assert len(server.puts) == 6
            until(lambda: len(running.said) == 2)
        assert "takes traces again" in running.said[1]
        # And away once more.
        collected(spool, range(6, 7))
        until(lambda: len(running.said) == 3)
        with serving(port) as server:
            until(lambda: len(server.stored) == 1)
    assert len(running.told) == 7


def test_pauses_grow_and_are_jittered(server: Scripted, tmp_path: Path) -> None:
    collected(tmp_path / "spool", range(1))
    server.always = lambda seen: Answer(503)
    with sidecar(server.url, tmp_path / "spool", tmp_path / "s"):
        until(lambda: len(server.seen) >= 6)
    at = [seen.at for seen in server.seen[:6]]
    pauses = [later - earlier for earlier, later in itertools.pairwise(at)]
    # 0.05, 0.1, 0.2, 0.4, 0.8 seconds, each shortened by up to two fifths.
    assert all(pause >= 0.6 * 0.05 * 2**number for number, pause in enumerate(pauses))


def test_the_server_says_how_long(server: Scripted, tmp_path: Path) -> None:
    collected(tmp_path / "spool", range(2))
    server.script.append(Answer(429, {"Retry-After": "2"}))
    with sidecar(server.url, tmp_path / "spool", tmp_path / "s") as running:
        until(lambda: len(server.stored) == 2)
    first, second = server.seen[1], server.seen[2]
    assert second.at - first.at >= 2.0
    assert len(running.said) == 2


def test_a_wrong_token_is_said_once_and_tried_slowly(server: Scripted, tmp_path: Path) -> None:
    server.token = TOKEN
    collected(tmp_path / "spool", range(3))
    with sidecar(server.url, tmp_path / "spool", tmp_path / "s", token=TOKEN[:-1] + "x") as running:
        until(lambda: len(server.seen) >= 3)
        server.token = None
        until(lambda: len(server.stored) == 3)
    assert "does not accept the token" in running.said[0]
    assert len(running.said) == 2
    first, second = server.seen[0], server.seen[1]
    assert second.at - first.at >= 10 * 0.6 * 0.05


def test_refused_for_good_is_said_once_and_never_again(server: Scripted, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    folder = collected(spool, range(1))
    (folder / window(1)).write_bytes(b"\x80\x04 no trace")
    with sidecar(server.url, spool, tmp_path / "s") as running:
        until(lambda: len(server.stored) == 1 and running.said)
        server.script.append(Answer(413))
        collected(spool, range(2, 4))
        until(lambda: len(server.stored) == 2)
        time.sleep(0.3)
    assert len(running.said) == 2
    assert window(1) in running.said[0]
    assert "too large" in running.said[1]
    with sidecar(server.url, spool, tmp_path / "s") as running:
        time.sleep(0.3)
    assert running == Running()
    assert len(server.puts) == 3


def test_one_trace_that_the_server_cannot_take_does_not_hold_up_the_others(server: Scripted, tmp_path: Path) -> None:
    collected(tmp_path / "spool", range(6))
    bad: list[str] = []

    def always(seen: object) -> Answer | None:
        assert hasattr(seen, "sha256")
        if getattr(seen, "method", "") != "PUT":
            return None
        if not bad:
            bad.append(seen.sha256)
        return Answer(500) if seen.sha256 == bad[0] else None

    server.always = always  # type: ignore[assignment]
    with sidecar(server.url, tmp_path / "spool", tmp_path / "s"):
        until(lambda: len(server.stored) == 5)
    assert bad[0] not in server.stored


def test_files_that_disappear_are_nobody_s_trouble(server: Scripted, tmp_path: Path) -> None:
    folder = collected(tmp_path / "spool", range(8))
    server.always = lambda seen: Answer(is_right=True, pause_s=0.1) if seen.method == "PUT" else None
    with sidecar(server.url, tmp_path / "spool", tmp_path / "s") as running:
        until(lambda: len(server.stored) == 2)
        for number in range(4, 8):
            (folder / window(number)).unlink()
        until(lambda: len(server.stored) >= 4)
        time.sleep(0.3)
    assert 4 <= len(server.stored) <= 5
    assert running.said == []


def test_a_manifest_leads_nowhere_else(server: Scripted, tmp_path: Path) -> None:
    folder = collected(tmp_path / "spool", range(1))
    outside = small(tmp_path, "outside.json", "outside")
    (folder / "inside.json").symlink_to(outside)
    names = ["../../outside.json", str(outside), "inside.json", "recording.json", "a\0b.json", "", 7, None]
    manifest = json.loads((folder / "recording.json").read_text())
    manifest["windows"] += [{"files": [{"name": name} for name in names], "weight_s": "x"}, 7, {"files": 7}]
    (folder / "recording.json").write_text(json.dumps(manifest))
    with sidecar(server.url, tmp_path / "spool", tmp_path / "s"):
        until(lambda: len(server.stored) == 1)
        time.sleep(0.3)
    assert len(server.stored) == 1
    (folder / "recording.json").write_text('{"kind": "traceanalyzer-recording", "windows": ' + "[" * 100_000)
    collected(tmp_path / "spool", range(1, 2))
    with sidecar(server.url, tmp_path / "spool", tmp_path / "s"):
        until(lambda: len(server.stored) == 2)


def test_a_recording_that_cannot_be_read_does_not_hide_the_others(
    server: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = tmp_path / "spool"
    collected(spool, range(2))
    (spool / "a-locked-one").mkdir()
    real = os.scandir

    def scandir(path: object = ".") -> object:
        if isinstance(path, Path) and path.name == "a-locked-one":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)  # type: ignore[call-overload]

    (spool / "a-locked-one" / "recording.json").write_text('{"kind": "traceanalyzer-recording"}')
    monkeypatch.setattr(os, "scandir", scandir)
    with sidecar(server.url, spool, tmp_path / "s") as running:
        until(lambda: len(server.stored) == 2)
        time.sleep(0.3)
    assert running.said == ["the folder a-locked-one cannot be read: Permission denied"]


# What follows runs the command itself.


def start(*words: object, **environment: str) -> subprocess.Popen[str]:
    given = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    return subprocess.Popen(
        [sys.executable, "-m", "traceanalyzer", "upload", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**given, **environment},
    )  # fmt: skip


def ended(process: subprocess.Popen[str], seconds: float = 60.0) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, out, err


def outgoing(state: Path) -> list[str]:
    return [path.name for path in state.parent.iterdir() if path.name.startswith("outgoing-")]


def test_ctrl_c_lets_the_file_under_way_arrive(server: Scripted, tmp_path: Path) -> None:
    collected(tmp_path / "spool", range(3))
    state = tmp_path / "state" / "sent.sqlite3"
    server.always = lambda seen: Answer(is_right=True, pause_s=1.0) if seen.method == "PUT" else None
    process = start("--watch", tmp_path / "spool", "--to", server.url, "--state", state)
    until(lambda: server.puts, 60)
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert code == 0, err
    assert len(server.stored) == 1
    assert out == f"{server.url}/t/{server.puts[0].sha256}\n"
    assert outgoing(state) == []


def test_sigterm_lets_what_is_there_arrive(server: Scripted, tmp_path: Path) -> None:
    collected(tmp_path / "spool", range(3))
    state = tmp_path / "state" / "sent.sqlite3"
    server.always = lambda seen: Answer(is_right=True, pause_s=0.5) if seen.method == "PUT" else None
    process = start("--watch", tmp_path / "spool", "--to", server.url, "--state", state)
    until(lambda: server.puts, 60)
    collected(tmp_path / "spool", range(3, 5), is_listed=False)
    process.send_signal(signal.SIGTERM)
    code, out, err = ended(process)
    assert code == 0, err
    assert len(server.stored) == len(server.puts) == out.count("\n") == 5
    assert outgoing(state) == []


def test_sigterm_does_not_wait_for_a_server_that_is_away(tmp_path: Path) -> None:
    collected(tmp_path / "spool", range(3))
    state = tmp_path / "state" / "sent.sqlite3"
    process = start("--watch", tmp_path / "spool", "--to", f"http://127.0.0.1:{free_port()}", "--state", state)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("watching ")
    assert "cannot be reached" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    code, out, err = ended(process, 15)
    assert (code, out) == (0, "")
    assert "Traceback" not in err


def test_a_second_sigterm_ends_it_at_once(server: Scripted, tmp_path: Path) -> None:
    collected(tmp_path / "spool", range(1))
    state = tmp_path / "state" / "sent.sqlite3"
    server.always = lambda seen: Answer(is_right=True, pause_s=30.0) if seen.method == "PUT" else None
    process = start("--watch", tmp_path / "spool", "--to", server.url, "--state", state)
    until(lambda: server.puts, 60)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert ended(process, 10)[0] == 0
    assert outgoing(state) == []


def test_sigterm_of_a_single_upload_leaves_no_copy(server: Scripted, tmp_path: Path) -> None:
    state = tmp_path / "state" / "sent.sqlite3"
    server.always = lambda seen: Answer(is_right=True, pause_s=30.0) if seen.method == "PUT" else None
    process = start(small(tmp_path, "a.json"), "--to", server.url, "--state", state)
    until(lambda: server.puts, 60)
    assert len(outgoing(state)) == 1
    (folder,) = state.parent.glob("outgoing-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    process.send_signal(signal.SIGTERM)
    code, out, err = ended(process, 10)
    assert (code, out) == (143, "")
    assert "Traceback" not in err
    assert outgoing(state) == []


def test_killed_again_and_again_every_file_arrives_once(server: Scripted, tmp_path: Path) -> None:
    collected(tmp_path / "spool", range(20))
    state = tmp_path / "state" / "sent.sqlite3"
    server.always = lambda seen: Answer(is_right=True, pause_s=0.15) if seen.method == "PUT" else None
    for kills in range(1, 6):
        process = start("--watch", tmp_path / "spool", "--to", server.url, "--state", state)
        before = len(server.puts)
        until(lambda before=before: len(server.puts) > before + 1 or len(server.stored) == 20, 60)  # type: ignore[misc]
        time.sleep(0.04 * kills)
        process.send_signal(signal.SIGKILL)
        ended(process)
    process = start("--watch", tmp_path / "spool", "--to", server.url, "--state", state)
    until(lambda: len(server.stored) == 20, 60)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0
    time.sleep(0.3)
    arrived = [seen.sha256 for seen in server.whole_puts]
    assert sorted(arrived) == sorted(set(arrived))
    assert len(arrived) == 20
    assert outgoing(state) == []  # also those of the killed


def test_two_at_once_send_each_file_once(server: Scripted, tmp_path: Path) -> None:
    folder = collected(tmp_path / "spool", range(10))
    state = tmp_path / "state" / "sent.sqlite3"
    server.always = lambda seen: Answer(is_right=True, pause_s=0.1) if seen.method == "PUT" else None
    both = [start(folder, "--to", server.url, "--state", state) for _ in range(3)]
    results = [ended(process) for process in both]
    assert [code for code, _, _ in results] == [0, 0, 0], results
    assert len(server.puts) == 10
    assert len(server.stored) == 10
    pages = {line for _, out, _ in results for line in out.split()}
    assert len(pages) == 10
    assert all(out.count("\n") == 10 for _, out, _ in results)


@pytest.mark.parametrize("rate", [100_000, 400_000])
def test_the_line_is_not_filled_beyond_the_limit(server: Scripted, tmp_path: Path, rate: int) -> None:
    noise = random.Random(1)
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "dur": 5}
    events = [{**event, "ts": number, "args": {"x": f"{noise.getrandbits(1600):x}"}} for number in range(1500)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}))
    state = tmp_path / "state" / "sent.sqlite3"
    code, _, err = ended(start(path, "--to", server.url, "--state", state, "--redact", "none", "--limit", f"{rate}B/s"))
    assert code == 0, err
    (seen,) = server.puts
    size = len(seen.body)
    assert size > rate / 2
    # What the line's buffers hold comes at once: no more than the first piece does here.
    assert seen.seconds >= 0.8 * size / rate - 0.3
    assert seen.seconds <= 3 * size / rate + 5


def test_the_help_answers_without_what_sending_needs() -> None:
    code = (
        "import sys; from traceanalyzer.__main__ import main; code = main(['upload', '--help']); "
        "heavy = ('httpx2', 'stamina', 'pandas', 'sqlite3', 'ssl', 'msgspec'); "
        "print([name for name in heavy if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")
    assert re.search(r"--to\s+URL", done.stdout)
