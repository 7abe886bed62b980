"""The endpoint over real sockets: each answer, who is refused, and clients that misbehave."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import json
import os
import socket
import stat
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.collect import raws
from traceanalyzer.collect import endpoint as endpoints
from traceanalyzer.collect import handler as handlers
from traceanalyzer.collect.endpoint import Endpoint, find_token
from traceanalyzer.collect.facts import RawWindow, Refused, Window
from traceanalyzer.collect.spool import Plan, Spool

TOKEN = "a-token-of-some-length"
Decide = Callable[[int | None], "Window | Refused | None"]


class Bench:
    """An endpoint, its spool, and a main loop that answers as the test says."""

    def __init__(self, folder: Path, address: str = "127.0.0.1:0") -> None:
        self.spool = Spool(folder, Plan("sample", "python", 10**10, 1e6))
        self.endpoint = Endpoint(address, TOKEN, self.spool)
        self.endpoint.start()
        self.decide: Decide = lambda steps: Window(1, "http", time.time_ns())
        self.asked: list[int | None] = []
        self._ends = threading.Event()
        self._loop = threading.Thread(target=self._run)
        self._loop.start()

    def _run(self) -> None:
        while not self._ends.wait(0.01):
            for ask in self.endpoint.asks():
                self.asked.append(ask.steps)
                answer = self.decide(ask.steps)
                if answer is not None:
                    ask.answer(answer)

    def close(self) -> None:
        self._ends.set()
        self._loop.join()
        self.endpoint.close()
        assert self.spool.close(0, None, 20)

    def window(self, number: int, pids: tuple[int, ...], events: int = 100) -> Window:
        found = Window(number, "http", time.time_ns())
        for pid in pids:
            path = raws.write(self.spool.raw / f"{pid}-{number}.json", raws.usual(events=events))
            found.raws.append(RawWindow(path, pid, "python", time.time_ns() + pid, time.time_ns() + 10**8))
        return found

    def connect(self) -> http.client.HTTPConnection:
        if self.endpoint.url.startswith("unix:"):
            connection = http.client.HTTPConnection("localhost", timeout=20)
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(20)
            connection.sock.connect(self.endpoint.url[5:])
            return connection
        host, _, port = self.endpoint.url[len("http://") :].rpartition(":")
        return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=20)

    def ask(
        self, method: str, path: str, token: str | None = TOKEN, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = self.connect()
        try:
            if token is not None:
                headers["Authorization"] = f"Bearer {token}"
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def error(self, *arguments: Any, **more: Any) -> tuple[int, str]:
        status, headers, body = self.ask(*arguments, **more)
        found = json.loads(body)
        assert set(found) <= {"error", "message", "window"} and headers["Content-Type"] == "application/json"
        assert TOKEN not in body.decode()
        return status, found["error"]

    def raw(self, data: bytes, timeout: float = 20.0) -> bytes:
        host, _, port = self.endpoint.url[len("http://") :].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=timeout) as connection:
            connection.sendall(data)
            got = b""
            while piece := connection.recv(1 << 16):
                got += piece
            return got


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    try:
        yield bench
    finally:
        bench.close()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_one_process_answers_with_its_trace(bench: Bench) -> None:
    def decide(steps: int | None) -> Window:
        threading.Timer(0.3, lambda: bench.spool.add(bench.window(4, (7,)), {})).start()
        return Window(4, "http", time.time_ns())

    bench.decide = decide
    status, headers, body = bench.ask("POST", "/windows?wait=20&steps=12")
    assert (status, bench.asked) == (200, [12])
    entry = bench.spool.wait(4, 1)
    assert entry is not None
    (file,) = entry["files"]
    assert hashlib.sha256(body).hexdigest() == file["sha256"]
    assert headers["Content-Disposition"] == f'attachment; filename="{file["name"]}"'
    assert headers["Content-Type"] == "application/gzip"
    assert headers["Content-Length"] == str(file["bytes"])


def test_several_processes_answer_with_a_tar_that_is_a_recording(bench: Bench, tmp_path: Path) -> None:
    bench.spool.add(bench.window(1, (7, 8, 9), events=3000), {})
    status, headers, body = bench.ask("POST", "/windows?wait=20")
    assert (status, bench.asked) == (200, [None])
    assert len(body) == int(headers["Content-Length"])
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        names = tar.getnames()
        found = {Path(name).name: tar.extractfile(name).read() for name in names}  # type: ignore[union-attr]
    assert len({Path(name).parent for name in names}) == 1
    manifest = json.loads(found.pop("recording.json"))
    (window,) = manifest["windows"]
    assert {file["name"]: file["sha256"] for file in window["files"]} == {
        name: hashlib.sha256(data).hexdigest() for name, data in found.items()
    }
    assert manifest["kind"] == "traceanalyzer-recording" and len(found) == 3


def test_without_waiting_it_says_the_number(bench: Bench) -> None:
    bench.decide = lambda steps: Window(17, "http", 1)
    for path in ("/windows", "/windows?wait=0", "/windows?steps=5"):
        status, _, body = bench.ask("POST", path, body=b"{}")
        assert (status, json.loads(body)) == (202, {"window": 17})
    assert bench.asked == [None, None, 5]


@pytest.mark.parametrize(
    ("code", "status"),
    [("busy", 409), ("min_gap", 429), ("per_day", 429), ("no_model", 503), ("stopped", 503), ("unsupported", 503)],
)
def test_refusals(bench: Bench, code: str, status: int) -> None:
    bench.decide = lambda steps: Refused(code, "because")
    assert bench.error("POST", "/windows?wait=5") == (status, code)


def test_what_is_not_finished_in_time_goes_on(bench: Bench) -> None:
    status, _, body = bench.ask("POST", "/windows?wait=1")
    assert status == 504
    assert json.loads(body)["window"] == 1 and "goes on" in json.loads(body)["message"]


def test_a_window_without_a_file(bench: Bench) -> None:
    message = "no process gave a file: the process ended"
    bench.spool.add(Window(1, "http", 1, failed=Refused("lost", message)), {})
    status, _, body = bench.ask("POST", "/windows?wait=5")
    assert (status, json.loads(body)["error"]) == (500, "lost")
    assert json.loads(body)["message"] == f"window 1 gave no file: {message}"
    _, _, body = bench.ask("GET", "/windows")
    assert [(one["number"], one["why"]) for one in json.loads(body)["failed"]] == [(1, message)]
    bench.spool.add(bench.window(2, (7,)), {})
    entry = bench.spool.wait(2, 10)
    assert entry is not None
    (bench.spool.folder / entry["files"][0]["name"]).unlink()  # to make room
    bench.decide = lambda steps: Window(2, "http", 1)
    assert bench.error("POST", "/windows?wait=5") == (500, "lost")


def test_a_main_loop_that_does_not_answer(bench: Bench) -> None:
    bench.decide = lambda steps: None
    with mock.patch.object(handlers, "_DECIDE_S", 0.2):
        assert bench.error("POST", "/windows") == (503, "silent")


def test_the_list(bench: Bench) -> None:
    bench.spool.add(bench.window(1, (7,)), {})
    entry = bench.spool.wait(1, 10)
    until(lambda: bool(bench.spool.manifest()["windows"]))
    status, _, body = bench.ask("GET", "/windows")
    assert (status, json.loads(body)) == (200, {"windows": [entry], "failed": [], "dropped": {}, "stopped": None})


def test_health_needs_no_token_and_tells_nothing(bench: Bench) -> None:
    status, headers, body = bench.ask("GET", "/healthz", token=None)
    assert (status, json.loads(body)) == (200, {"status": "ok"})
    assert headers["Server"].strip() == "traceanalyzer"


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", "é"])
def test_no_token_no_answer(bench: Bench, token: str | None) -> None:
    for method, path in (("POST", "/windows"), ("GET", "/windows"), ("GET", "/nowhere"), ("DELETE", "/windows")):
        assert bench.error(method, path, token=token) == (401, "token")
    assert bench.ask("POST", "/windows", token=None, Authorization=f"Basic {TOKEN}")[0] == 401
    assert not bench.asked


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "", "localhost@x"]
)
def test_only_requests_to_this_host(bench: Bench, host: str) -> None:
    assert bench.error("POST", "/windows", Host=host) == (403, "host")
    assert bench.error("GET", "/healthz", Host=host) == (403, "host")
    head = f"POST /windows HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nHost: localhost\r\nHost: {host}\r\n\r\n"
    assert bench.raw(head.encode()).startswith(b"HTTP/1.1 403")
    assert not bench.asked


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:80", "127.1.2.3"])
def test_requests_to_this_host_by_any_name(bench: Bench, host: str) -> None:
    assert bench.ask("GET", "/windows", Host=host)[0] == 200


def test_no_request_of_a_web_page(bench: Bench) -> None:
    assert bench.error("POST", "/windows", Origin="http://localhost") == (403, "origin")
    assert bench.error("POST", "/windows", Sec_Fetch_Site="cross-site") == (403, "origin")
    assert not bench.asked


def test_methods_and_paths(bench: Bench) -> None:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert bench.error(method, "/windows") == (405, "method")
    status, headers, body = bench.ask("HEAD", "/windows")
    assert (status, headers["Allow"], body) == (405, "GET, POST", b"")
    assert bench.error("POST", "/healthz") == (405, "method")
    assert bench.error("BREW", "/windows") == (501, "request")
    for path in ("/", "/windows/", "/windows/1", "/../etc/passwd", "/token"):
        assert bench.error("GET", path) == (404, "path")
        assert bench.error("POST", path) == (404, "path")


@pytest.mark.parametrize(
    "query",
    ["wait=x", "wait=-1", "wait=1.5", "wait=601", "wait=1&wait=2", "steps=0", "steps=100001", "other=1", "wait",
     "wait=", "steps=9999999", "a=1&b=2&c=3&d=4&e=5&f=6&g=7&h=8&i=9"],
)  # fmt: skip
def test_queries_that_mean_nothing(bench: Bench, query: str) -> None:
    assert bench.error("POST", f"/windows?{query}") == (400, "query")
    assert not bench.asked


def test_bodies(bench: Bench) -> None:
    assert bench.ask("POST", "/windows", body=b"x" * 4096)[0] == 202
    assert bench.error("POST", "/windows", body=b"x" * 5000) == (413, "body")
    assert bench.error("POST", "/windows", body=b"x" * 900_000) == (413, "body")
    head = f"POST /windows HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    for more in (
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Content-Length: -5\r\n\r\n",
        "Content-Length: x\r\n\r\n",
    ):
        assert bench.raw((head + more).encode()).startswith(b"HTTP/1.1 411")
    assert bench.asked == [None]


def test_nonsense_is_answered_or_cut(bench: Bench) -> None:
    pieces = (
        b"\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"GET / HTTP/9.9\r\n\r\n", b"A" * 70_000 + b"\r\n\r\n",
        b"GET /windows HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", b"GET\r\n\r\n",
    )  # fmt: skip
    for data in pieces:
        with contextlib.suppress(ConnectionError), mock.patch.object(handlers, "READ_S", 0.5):
            answer = bench.raw(data)
            assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5", b"{"))
    assert bench.ask("GET", "/healthz")[0] == 200


def test_slow_clients_are_cut_and_others_served(tmp_path: Path) -> None:
    with mock.patch.object(handlers, "READ_S", 1.0):
        bench = Bench(tmp_path)
        try:
            host, _, port = bench.endpoint.url[len("http://") :].rpartition(":")
            slow = [socket.create_connection((host, int(port)), timeout=20) for _ in range(endpoints.MOST_CONNECTIONS)]
            until(lambda: bench.endpoint._server.open_connections() == endpoints.MOST_CONNECTIONS)
            assert bench.raw(b"").startswith(b"HTTP/1.1 503")
            for _ in range(6):  # a byte now and then does not help
                for connection in slow:
                    with contextlib.suppress(OSError):
                        connection.send(b"G")
                time.sleep(0.3)
            until(lambda: bench.endpoint._server.open_connections() == 0)
            assert bench.ask("GET", "/healthz")[0] == 200
            for connection in slow:
                connection.close()
        finally:
            bench.close()


def test_a_client_that_goes_away_frees_its_place_and_the_window_goes_on(bench: Bench) -> None:
    connection = bench.connect()
    connection.request("POST", "/windows?wait=600", headers={"Authorization": f"Bearer {TOKEN}"})
    until(lambda: bool(bench.asked))
    connection.close()
    until(lambda: bench.endpoint._server.open_connections() == 0)
    bench.spool.add(bench.window(1, (7,)), {})
    entry = bench.spool.wait(1, 20)
    assert entry is not None and len(entry["files"]) == 1


def test_a_client_that_goes_away_while_it_is_answered(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.spool.add(bench.window(1, (7, 8)), {})
    entry = bench.spool.wait(1, 20)
    assert entry is not None
    for file in entry["files"]:  # more than socket buffers hold
        with (bench.spool.folder / file["name"]).open("r+b") as stream:
            stream.truncate(30_000_000)
    connection = bench.connect()
    connection.request("POST", "/windows?wait=20", headers={"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    assert answer.status == 200
    answer.read(100_000)
    connection.close()
    answer.close()
    until(lambda: bench.endpoint._server.open_connections() == 0)
    assert "Traceback" not in capsys.readouterr().err
    assert bench.ask("GET", "/healthz")[0] == 200


def test_many_at_once(bench: Bench) -> None:
    bench.spool.add(bench.window(1, (7,), events=2000), {})
    found: list[int] = []

    def one() -> None:
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            found.append(bench.ask("POST", "/windows?wait=20")[0])

    threads = [threading.Thread(target=one) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert set(found) <= {200, 503} and 200 in found
    assert bench.ask("POST", "/windows?wait=20")[0] == 200


def test_the_end_of_the_run_tells_who_waits(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    answers: list[tuple[int, str]] = []
    client = threading.Thread(target=lambda: answers.append(bench.error("POST", "/windows?wait=600")))
    client.start()
    until(lambda: bool(bench.asked))
    time.sleep(0.1)
    bench.close()
    client.join(20)
    assert answers == [(504, "wait")]


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    bench = Bench(tmp_path / "out", f"unix:{path}")
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert bench.ask("GET", "/windows", Host="anything")[0] == 200
        assert bench.error("GET", "/windows", token="wrong-token-of-length") == (401, "token")
        assert bench.error("POST", "/windows", Origin="null") == (403, "origin")
        with pytest.raises(OSError):  # in use
            Endpoint(f"unix:{path}", TOKEN, bench.spool)
        assert bench.ask("GET", "/healthz")[0] == 200
    finally:
        bench.close()
    assert not path.exists()


def test_a_socket_file_that_was_left_is_replaced_and_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    bench = Bench(tmp_path / "out", f"unix:{path}")
    bench.close()
    path.write_text("mine")
    spool = Spool(tmp_path / "out", Plan("sample", "python", 10**9, 1e6))
    with pytest.raises(OSError):
        Endpoint(f"unix:{path}", TOKEN, spool)
    with pytest.raises(OSError, match="107"):
        Endpoint("unix:/" + "x" * 200, TOKEN, spool)
    assert spool.close(0, None, 20)
    assert path.read_text() == "mine"


def test_a_port_that_is_taken(bench: Bench) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError):
            Endpoint(f"127.0.0.1:{other.getsockname()[1]}", TOKEN, bench.spool)


def test_the_token_of_the_environment(tmp_path: Path) -> None:
    assert find_token(tmp_path, {"TRACEANALYZER_TOKEN": TOKEN}) == TOKEN
    assert not list(tmp_path.iterdir())
    for bad in ("", "short", "with a space in it", "x" * 257, "ümläutümläutümläut", "line\nline-line-line-line"):
        with pytest.raises(ValueError, match="16 to 256") as error:
            find_token(tmp_path, {"TRACEANALYZER_TOKEN": bad})
        assert not bad or bad not in str(error.value)


def test_the_token_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = find_token(tmp_path, {})
    path = tmp_path / "token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.read_text() == token + "\n"
    assert len(token) >= 32
    assert find_token(tmp_path, {}) == token  # the next run's, and a second collector's
    said = capsys.readouterr().err
    assert str(path) in said and token not in said
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]


def test_a_token_that_others_may_know_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "token"
    first = find_token(tmp_path, {})
    path.chmod(0o644)
    second = find_token(tmp_path, {})
    assert second != first and stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("short\n")
    third = find_token(tmp_path, {})
    path.unlink()
    target = tmp_path / "elsewhere"
    target.write_text(third + "\n")
    target.chmod(0o600)
    path.symlink_to(target)
    assert find_token(tmp_path, {}) not in (second, third)
    assert not path.is_symlink() and target.read_text() == third + "\n"
    path.unlink()
    os.mkfifo(path)
    assert len(find_token(tmp_path, {})) >= 32


def test_the_token_is_never_told(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("/windows", "/nowhere", "/windows?wait=x", f"/windows?token={TOKEN}"):
        bench.ask("POST", path)
    bench.raw(f"GARBAGE {TOKEN}\r\n\r\n".encode())
    captured = capsys.readouterr()
    assert TOKEN not in captured.err + captured.out
    assert all(TOKEN not in path.read_text(errors="replace") for path in bench.spool.folder.glob("*.json"))


def test_another_users_token_file_is_left_to_them(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("somebody else's token\n")
    with mock.patch("os.getuid", return_value=path.stat().st_uid + 1):
        token = find_token(tmp_path, {})
    assert path.read_text() == "somebody else's token\n"
    assert (tmp_path / f"token-{path.stat().st_uid + 1}").read_text() == token + "\n"
