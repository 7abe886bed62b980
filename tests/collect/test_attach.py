"""`--attach` against servers that answer as vLLM's and SGLang's profiling endpoints do."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.collect.running import TIMEOUT_S, until
from traceanalyzer.collect import attach, check, service
from traceanalyzer.collect.options import parse
from traceanalyzer.collect.version import tool_version

METRICS = "vllm:num_requests_running {}\nvllm:num_requests_waiting 0\n"


def trace(pid: int, steps: int, rank: int | None = None) -> bytes:
    """What torch's profiler writes, as small as it gets."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}]
    for step in range(steps):
        ts = 1000.0 + step * 100
        events.append(
            {"ph": "X", "cat": "user_annotation", "name": "execute_context_0(0)_generation_8(8)", "pid": pid,
             "tid": pid, "ts": ts, "dur": 90.0}
        )  # fmt: skip
        events.append(
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": pid, "tid": pid, "ts": ts + 5, "dur": 50.0}
        )
    found: dict[str, Any] = {"schemaVersion": 1, "baseTimeNanoseconds": 1_700_000_000 * 10**9, "traceEvents": events}
    if rank is not None:
        found["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
    return json.dumps(found).encode()


class Engine(ThreadingHTTPServer):
    """A server with profiling endpoints. `calls` lists what was asked: (path, body)."""

    daemon_threads = True

    def __init__(self, engine: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.engine, self.folder = engine, folder
        self.calls: list[tuple[str, Any]] = []
        self.gets: list[str] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.body: dict[str, Any] = {}
        self.takes_names = True
        self.writes_by_itself = False
        self.ranks = 1
        self.running = 3

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def write(self) -> None:
        for rank in range(self.ranks):
            if self.engine == "vllm":
                prefix = self.body.get("profile_prefix", "") + "_" if self.takes_names else ""
                name = f"{prefix}dp0_pp0_tp{rank}_dcp0_ep0_rank{rank}.{time.time_ns()}.pt.trace.json.gz"
                (self.folder / "x_async_llm.1.pt.trace.json.gz").write_bytes(gzip.compress(trace(1, 0)))
            else:
                name = f"{self.body['profile_id']}-TP-{rank}.trace.json.gz"
            data = gzip.compress(trace(4000 + rank, 5, rank if self.engine == "sglang" else None))
            (self.folder / name).write_bytes(data)


class Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        self.server.gets.append(self.path)
        vllm = self.server.engine == "vllm"
        pages = {
            "/version": (200, b'{"version": "0.33.0"}') if vllm else (404, b""),
            "/server_info": (404, b"") if vllm else (200, b'{"version": "0.5.23", "model_path": "/m"}'),
            "/start_profile": (405, b""),
            "/metrics": (200, METRICS.format(self.server.running).encode()),
        }
        self._answer(*self.server.answers.get(self.path, pages.get(self.path, (404, b""))))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server = self.server
        server.calls.append((self.path, json.loads(body) if body else None))
        status, text = server.answers.get(self.path, (200, b""))
        if status == 200 and self.path == "/start_profile":
            server.body = json.loads(body)
            if server.writes_by_itself:
                server.write()
        if status == 200 and self.path == "/stop_profile":
            server.running = 7
            if server.writes_by_itself and server.engine == "sglang":
                status, text = 500, b"Internal Server Error"
            elif not server.writes_by_itself:
                server.write()
        self._answer(status, text)

    def _answer(self, status: int, text: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _a_slow_machine_answers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the engine says of itself is waited for half a second; a loaded machine needs longer for a page."""
    monkeypatch.setattr(service.fetch, "__defaults__", (TIMEOUT_S,))


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    folder = tmp_path / "server"
    folder.mkdir()
    server = Engine(getattr(request, "param", "vllm"), folder)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def run(engine: Engine, tmp_path: Path, *words: str) -> int:
    folder = ["--traces", str(engine.folder)] if "--traces" not in words else []
    options = ["--attach", engine.url, "-o", str(tmp_path / "out"), "--window", "200ms", *folder, *words]
    return attach.run(parse(options, "1"))


def recording(tmp_path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    (folder,) = (path.parent for path in (tmp_path / "out").glob("*/recording.json"))
    manifest = json.loads((folder / "recording.json").read_text())
    files = [file for window in manifest["windows"] for file in window["files"]]
    return manifest, [json.loads(gzip.decompress((folder / file["name"]).read_bytes())) for file in files]


def test_a_window_of_vllm_becomes_a_recording(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.ranks = 2
    assert run(engine, tmp_path, "--steps", "12", "--no-shapes") == 0
    (start, body), (stop, nothing) = engine.calls
    assert (start, stop, nothing) == ("/start_profile", "/stop_profile", None)
    assert body["max_iterations"] == 12
    assert body["profiler_kwargs"] == {"record_shapes": False, "with_stack": False}
    assert 1 <= len(body["profile_prefix"]) <= 128 and body["profile_prefix"].replace("-", "").isalnum()
    manifest, traces = recording(tmp_path)
    assert manifest["tool_version"] == tool_version() and manifest["finished_at"]
    assert [file["rank"] for file in manifest["windows"][0]["files"]] == [0, 1]
    assert [file["pid"] for file in manifest["windows"][0]["files"]] == [4000, 4001]
    assert manifest["windows"][0]["reason"] == "attach"
    block = traces[0]["traceanalyzer"]
    assert (block["window"]["engine"], block["window"]["engine_version"]) == ("vllm", "0.33.0")
    assert (block["service"]["running"], block["service"]["running_close"]) == (3, 7)
    assert len([event for event in traces[0]["traceEvents"] if event.get("cat") == "user_annotation"]) == 5
    said = capsys.readouterr()
    assert said.out == ""
    first = said.err.splitlines()[0]
    assert "12 steps" in first and "0.5 to 1 s per 100 000" in first, "what it costs is said before"
    assert not list((tmp_path / "out").glob("*/.raw/*"))


@pytest.mark.parametrize("engine", ["sglang"], indirect=True)
def test_a_window_of_sglang_ends_by_itself(engine: Engine, tmp_path: Path) -> None:
    engine.ranks, engine.writes_by_itself = 2, True
    began = time.monotonic()
    assert run(engine, tmp_path, "--steps", "9", "--with-stack", "--window", "10m") == 0
    assert time.monotonic() - began < 300, "it ends with the files, not with the time"
    (_, body), (stop, _) = engine.calls
    assert stop == "/stop_profile", "and is told to stop all the same"
    assert body == {
        "num_steps": 9, "activities": ["CPU", "GPU"], "record_shapes": True, "with_stack": True,
        "profile_id": body["profile_id"], "output_dir": str(engine.folder),
    }  # fmt: skip
    manifest, traces = recording(tmp_path)
    assert [file["rank"] for file in manifest["windows"][0]["files"]] == [0, 1]
    assert traces[1]["traceanalyzer"]["window"]["engine_version"] == "0.5.23"


@pytest.mark.parametrize("engine", ["sglang"], indirect=True)
def test_sglang_without_a_folder_writes_where_it_always_does(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_TORCH_PROFILER_DIR", str(engine.folder))
    options = parse(["--attach", engine.url, "-o", str(tmp_path / "out"), "--window", "100ms"], "1")
    assert attach.run(options) == 0
    assert "output_dir" not in engine.calls[0][1], "a folder that it cannot write would stop the server"
    assert recording(tmp_path)[1]


def test_an_older_vllm_takes_no_name_and_old_files_are_left_alone(engine: Engine, tmp_path: Path) -> None:
    engine.takes_names = False
    old = engine.folder / "dp0_pp0_tp0_rank0.1.pt.trace.json.gz"
    old.write_bytes(gzip.compress(trace(1, 1)))
    os.utime(old, (1, 1))
    assert run(engine, tmp_path) == 0
    manifest, _ = recording(tmp_path)
    assert [file["pid"] for file in manifest["windows"][0]["files"]] == [4000]


def test_files_that_cannot_be_seen_are_told_of(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attach.run(parse(["--attach", engine.url, "-o", str(tmp_path / "out"), "--window", "10ms"], "1")) == 0
    assert "torch_profiler_dir" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run(engine, tmp_path, "--traces", str(empty)) == 0
    assert f"no trace of this window is in {empty}" in capsys.readouterr().err


def test_a_server_without_a_profiler_says_how_to_get_one(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.answers["/start_profile"] = (404, b'{"detail":"Not Found"}')
    assert run(engine, tmp_path) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "--profiler-config" in last and "torch_profiler_dir" in last
    assert [path for path, _ in engine.calls] == ["/start_profile"], "what was not started is not stopped"


@pytest.mark.parametrize(
    ("status", "text", "told"),
    [
        (401, b"", "asks for a key"),
        (409, b'{"error": {"message": "already active"}}', "status 409, already active"),
        (500, b"Internal Server Error", "status 500"),
    ],
)
def test_a_refusal_is_told(
    status: int, text: bytes, told: str, engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.answers["/start_profile"] = (status, text)
    assert run(engine, tmp_path) == 2
    assert told in capsys.readouterr().err
    assert len(engine.calls) == 1


def test_a_stop_that_fails_is_told(engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine.answers["/stop_profile"] = (500, b"")
    assert run(engine, tmp_path) == 2
    assert "does not stop its profiler" in capsys.readouterr().err


def test_other_servers_are_refused(engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine.answers["/version"] = (404, b"")
    assert run(engine, tmp_path) == 2
    assert "neither vLLM nor SGLang" in capsys.readouterr().err
    assert engine.calls == []
    assert attach.run(parse(["--attach", "http://user:pass-word@127.0.0.1:1"], "1")) == 2
    said = capsys.readouterr().err
    assert "does not answer" in said and "pass-word" not in said


def test_a_damaged_file_is_told_and_the_others_are_kept(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.ranks = 2
    written = engine.write

    def damage() -> None:
        written()
        path = next(engine.folder.glob("*rank0*"))
        path.write_bytes(path.read_bytes()[:60])

    monkeypatch.setattr(engine, "write", damage)
    assert run(engine, tmp_path) == 0
    manifest, _ = recording(tmp_path)
    assert [file["rank"] for file in manifest["windows"][0]["files"]] == [1]
    assert "rank0" in capsys.readouterr().err


def test_what_inflates_without_end_is_not_kept(engine: Engine, tmp_path: Path) -> None:
    assert run(engine, tmp_path, "--disk", "20B") == 2


def test_an_output_that_cannot_be_written_is_told(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    options = ["--attach", engine.url, "-o", str(tmp_path / "file" / "x"), "--window", "10ms"]
    assert attach.run(parse([*options, "--traces", str(engine.folder)], "1")) == 2
    assert str(engine.folder) in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_servers_profiler(number: signal.Signals, engine: Engine, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom traceanalyzer.collect import attach, options\n"
        "sys.exit(attach.run(options.parse(sys.argv[1:], '1')))"
    )
    words = ["--attach", engine.url, "-o", str(tmp_path / "out"), "--window", "10m"]
    process = subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: engine.calls)
        time.sleep(0.2)  # mostly it waits for the files by then; while it asks, it ends in the same way
        process.send_signal(number)
        _, said = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130 and "Traceback" not in said
    assert [path for path, _ in engine.calls] == ["/start_profile", "/stop_profile"]


@pytest.mark.parametrize("engine", ["vllm", "sglang"], indirect=True)
def test_a_check_asks_the_server_and_starts_nothing(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = parse(["--check", "--attach", engine.url, "-o", str(tmp_path), "--disk", "1MB"], "1")
    assert check.run(options) == 0
    assert engine.url in capsys.readouterr().out and engine.calls == []
    if engine.engine == "sglang":
        assert "/start_profile" not in engine.gets, "there even GET would start a window"
        return
    engine.answers["/start_profile"] = (404, b"")
    assert check.run(options) == 1
    assert "--profiler-config" in capsys.readouterr().out
    engine.answers["/version"] = (404, b"")
    assert check.run(options) == 1
    assert "neither vLLM nor SGLang" in capsys.readouterr().out
