"""`traceanalyzer serve` as operators meet it: a real process, its signals, its refusals, its log."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.server.serving import Serving, command, make_token, serving, sha256, trace_gz, until
from traceanalyzer.__main__ import main
from traceanalyzer.network import is_loopback


@contextlib.contextmanager
def slow_upload(server: Serving, body: bytes, before: int) -> Iterator[socket.socket]:
    """A PUT of which `before` bytes have been sent and have arrived."""
    head = (
        f"PUT /api/v1/traces/{sha256(body)} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head.encode() + body[:before])
        until(lambda: any((server.folder / "incoming").iterdir()), 30)
        yield connection


def answer(connection: socket.socket) -> str:
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(65536)
        if not piece:
            break
        received += piece
    return received.partition(b"\r\n")[0].decode()


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("traceanalyzer: ") and done.stderr.count("\n") == 1
    return done.stderr


def test_it_starts_serves_and_ends(tmp_path: Path) -> None:
    with serving(tmp_path / "new" / "server") as server:
        assert server.ask("GET", "/api/v1/health").status_code == 200
        assert server.ask("GET", "/api/v1/version").status_code == 200
        assert server.folder.stat().st_mode & 0o777 == 0o700
        body = trace_gz(1)
        assert server.put(body, model="m").status_code == 201
        assert server.put(body).status_code == 200
        until(lambda: server.state(sha256(body)) == "analysed")
        assert server.ask("GET", f"/api/v1/traces/{sha256(body)}").content == body
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert server.end() == 0
        assert not [child for child in children if child.is_running()]
        assert not list((server.folder / "incoming").iterdir())
        loose = [path for path in server.folder.rglob("*") if path.stat().st_mode & 0o077]
        assert not loose
        events = [line.get("event") for line in server.lines()]
        assert events.count("listening") == 1 and events[-2:] == ["stopping", "stopped"]


def test_a_running_upload_is_finished_after_sigterm(tmp_path: Path) -> None:
    body = trace_gz(2, 2000)
    with serving(tmp_path / "server", "--workers", "1") as server:
        with slow_upload(server, body, len(body) // 2) as connection:
            server.process.send_signal(signal.SIGTERM)
            until(lambda: '"stopping"' in server.log(), 30)
            with pytest.raises(OSError):
                socket.create_connection(("127.0.0.1", server.port), timeout=5).close()
            connection.sendall(body[len(body) // 2 :])
            assert answer(connection) == "HTTP/1.1 201 Created"
        assert server.process.wait(60) == 0
    with serving(tmp_path / "server") as again:
        assert again.ask("GET", f"/api/v1/traces/{sha256(body)}").content == body
        until(lambda: again.state(sha256(body)) == "analysed")


def test_an_upload_that_stands_still_is_given_up_after_the_grace(tmp_path: Path) -> None:
    body = trace_gz(3, 2000)
    with serving(tmp_path / "server", "--grace", "1") as server, slow_upload(server, body, 5000):
        assert server.end(30) == 0
        assert not list((server.folder / "incoming").iterdir())
    with serving(tmp_path / "server") as again:
        assert again.ask("HEAD", f"/api/v1/traces/{sha256(body)}").status_code == 404


def test_a_second_signal_waits_no_longer(tmp_path: Path) -> None:
    body = trace_gz(4, 2000)
    with serving(tmp_path / "server", "--grace", "300") as server, slow_upload(server, body, 5000):
        server.process.send_signal(signal.SIGTERM)
        until(lambda: '"stopping"' in server.log(), 30)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 1


def test_an_analysis_that_does_not_finish_in_time_runs_again(tmp_path: Path) -> None:
    body = trace_gz(5, 3_000)
    with serving(tmp_path / "server", "--grace", "1") as server:
        assert server.put(body).status_code == 201
        until(lambda: server.state(sha256(body)) == "running")
        assert server.end(40) == 0
    with serving(tmp_path / "server") as again:
        until(lambda: again.state(sha256(body)) == "analysed")
        assert again.ask("GET", f"/api/v1/traces/{sha256(body)}/report?format=md").status_code == 200


def test_a_taken_port_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert "in use" in one_line(command("serve", "--folder", str(tmp_path / "s"), "--port", port))
    assert not (tmp_path / "s" / "server.sqlite3").exists()


def test_a_second_server_on_a_folder_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "server") as server:
        refused = command("serve", "--folder", str(server.folder), "--port", "0")
        assert "another server uses the folder" in one_line(refused)
        assert server.put(trace_gz(6)).status_code == 201
        server.kill()
    with serving(tmp_path / "server") as again:  # the kernel has dropped the lock of the killed one
        assert again.state(sha256(trace_gz(6)))


@pytest.mark.parametrize("below", ["file", "proc"])
def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    place = {"file": tmp_path / "file" / "server", "proc": Path("/proc/nothing-here")}[below]
    assert "cannot be written to" in one_line(command("serve", "--folder", str(place), "--port", "0"))


@pytest.mark.parametrize(
    ("option", "value"),
    [("--host", "0.0.0.0"), ("--host", "::"), ("--public-url", "https://traces.example.org")],
)
def test_nobody_else_gets_in_while_no_token_exists(tmp_path: Path, option: str, value: str) -> None:
    refused = one_line(command("serve", "--folder", str(tmp_path / "s"), "--port", "0", option, value))
    assert "no token exists yet" in refused and "traceanalyzer token create" in refused


def test_with_a_token_it_listens_everywhere_and_asks_for_it(tmp_path: Path) -> None:
    token = make_token(tmp_path / "server", "upload", "read")
    with serving(tmp_path / "server", "--host", "0.0.0.0") as server:
        server.close_client()
        with httpx2.Client(base_url=f"http://127.0.0.1:{server.port}", trust_env=False, timeout=60) as client:
            assert client.get("/api/v1/health").status_code == 200
            assert client.get("/api/v1/traces").status_code == 401
            assert client.get("/api/v1/traces", headers={"Authorization": f"Bearer {token}"}).status_code == 200


def test_what_a_client_says_of_its_address_is_not_believed(tmp_path: Path) -> None:
    """Or whoever tries tokens from this machine would be somebody new for every try."""
    folder = tmp_path / "server"
    with serving(folder, "--workers", "0") as server:
        make_token(folder, "read")
        for number in range(70):
            address = {"X-Forwarded-For": f"203.0.113.{number}", "X-Forwarded-Proto": "https"}
            answer = server.ask("GET", "/api/v1/traces", headers=address)
        assert answer.status_code == 429
        assert server.ask("GET", "/api/v1/traces").status_code == 429


def test_ipv6(tmp_path: Path) -> None:
    with serving(tmp_path / "server", "--host", "::1") as server:
        assert server.url.startswith("http://[::1]:")
        assert server.ask("GET", "/api/v1/health").status_code == 200


def test_loopback_names() -> None:
    inside = ("localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "a.localhost")
    outside = ("0.0.0.0", "::", "192.168.0.1", "localhost.example.org", "example.org", "127.0.0.1.nip.io", "")
    assert [name for name in inside if not is_loopback(name)] == [name for name in outside if is_loopback(name)] == []


def test_systemd_is_told(tmp_path: Path) -> None:
    place = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(place))
        channel.settimeout(60)
        with serving(tmp_path / "server", environment={"NOTIFY_SOCKET": str(place)}) as server:
            assert channel.recv(100) == b"READY=1"
            assert server.ask("GET", "/api/v1/health").status_code == 200
            assert server.end() == 0
        assert channel.recv(100) == b"STOPPING=1"


def test_the_log_is_json_and_holds_no_secret(tmp_path: Path) -> None:
    token = make_token(tmp_path / "server", "admin")
    wrong = f"ta_{'0' * 12}_{'W' * 43}"
    with serving(tmp_path / "server", token=token) as server:
        body = trace_gz(7)
        assert server.put(body, name="private-name.json.gz", host="private-host").status_code == 201
        until(lambda: server.state(sha256(body)) == "analysed")
        made = server.ask("POST", f"/api/v1/traces/{sha256(body)}/links", json={})
        assert made.status_code == 201
        shared = made.json()["url"].rpartition("/")[2]
        assert server.ask("GET", f"/s/{shared}", headers={"Authorization": ""}).status_code == 200
        assert server.ask("GET", "/api/v1/traces", headers={"Authorization": f"Bearer {wrong}"}).status_code == 401
        assert server.ask("GET", f"/api/v1/traces?token={token}").status_code == 400
        assert server.ask("GET", f"/nowhere/{token}").status_code >= 400
        assert server.end() == 0
        lines = server.lines()
        log = server.log()
    assert len([line for line in lines if line["message"] == "request"]) >= 7
    for secret in (token, token[16:], wrong[16:], shared, "private-name", "private-host"):
        assert secret not in log


@pytest.mark.parametrize(
    "words",
    [
        ("--public-url", "ftp://x"), ("--public-url", "https://x/path"), ("--public-url", "https://a@x"),
        ("--public-url", "https://x:99999"), ("--keep-days-for", "staging"), ("--keep-days-for", "x=-1"),
        ("--keep-days-for", "x=nan"), ("--max-body-mb", "nan"), ("--max-body-mb", "0"), ("--quota-gb", "inf"),
        ("--port", "70000"), ("--workers", "-1"), ("--host", "no such name"), ("--folder", ""),
    ],
)  # fmt: skip
def test_wrong_options_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TRACEANALYZER_FOLDER", str(tmp_path / "s"))
    monkeypatch.setattr(os, "umask", lambda _mask: 0)
    assert main(["serve", *words]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("traceanalyzer: ") and shown.count("\n") == 1


@pytest.mark.parametrize("name", ["serve", "backup", "restore", "token"])
def test_missing_libraries_are_told_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)  # what Python holds for a module that cannot be imported
    monkeypatch.setenv("TRACEANALYZER_FOLDER", str(tmp_path / "s"))
    words = {"serve": [], "backup": ["b.tar"], "restore": ["b.tar"], "token": ["create", "ci"]}[name]
    assert main([name, *words]) == 2
    shown = capsys.readouterr().err
    assert "fastapi" in shown and "pip install 'traceanalyzer-llm[server]'" in shown and shown.count("\n") == 1


def test_a_backup_while_uploads_go_on(tmp_path: Path) -> None:
    """Everything acknowledged before the backup began is in it, and nothing in it is half there."""
    sent: list[bytes] = []
    over = threading.Event()

    with serving(tmp_path / "server", "--workers", "0") as server:

        def send() -> None:
            seed = 1000
            with httpx2.Client(base_url=server.url, trust_env=False, timeout=60) as client:
                while not over.is_set():
                    body = trace_gz(seed, 50)
                    answered = client.put(f"/api/v1/traces/{sha256(body)}", content=body)
                    if answered.status_code == 429:
                        time.sleep(0.5)
                        continue
                    assert answered.status_code == 201
                    sent.append(body)
                    seed += 1

        sender = threading.Thread(target=send)
        sender.start()
        try:
            until(lambda: len(sent) >= 20)
            before = list(sent)
            done = command("backup", str(tmp_path / "b.tar"), "--folder", str(server.folder))
            assert done.returncode == 0, done.stderr
            until(lambda: len(sent) > len(before))  # the server has gone on
        finally:
            over.set()
            sender.join(60)
        assert server.end() == 0
    restored = command("restore", str(tmp_path / "b.tar"), "--folder", str(tmp_path / "new"))
    assert restored.returncode == 0, restored.stderr
    with serving(tmp_path / "new", "--workers", "0") as again:
        for body in before:
            assert again.ask("GET", f"/api/v1/traces/{sha256(body)}").content == body
        listed = again.ask("GET", "/api/v1/traces?size=500").json()["traces"]
        assert {sha256(body) for body in before} <= {one["sha256"] for one in listed}


def test_an_interrupt_from_the_keyboard_ends_it_too(tmp_path: Path) -> None:
    with serving(tmp_path / "server") as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 0


def test_the_server_loads_no_tables_and_no_charts() -> None:
    """They are the children's: here they would cost 70 MB and a second of every start."""
    heavy = ("pandas", "pyarrow", "vl_convert", "torch", "hta")
    script = f"import sys, traceanalyzer.server.running; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
