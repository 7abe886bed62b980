"""The way to the server: certificates of an own authority, proxies of the command line and of the environment."""

from __future__ import annotations

import base64
import select
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import require
from tests.share.serving import Scripted, serving
from tests.share.test_upload import TOKEN, _alone, one_error, small, upload
from traceanalyzer.__main__ import main

__all__ = ["_alone"]  # the fixture


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """authority.pem signs server.pem (127.0.0.1, traces.test); other.pem is somebody else's authority."""
    require(shutil.which("openssl") is not None, "no openssl to make certificates with")
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    for name in ("authority", "other"):
        openssl("req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}",
                "-addext", "keyUsage=critical,keyCertSign")  # fmt: skip
    openssl("req", "-x509", *key, "-keyout", "server.key", "-out", "server.pem", "-subj", "/CN=server",
            "-CA", "authority.pem", "-CAkey", "authority.key", "-addext", "basicConstraints=critical,CA:FALSE",
            "-addext", "subjectAltName=IP:127.0.0.1,DNS:traces.test")  # fmt: skip
    return folder


@pytest.fixture
def secure(certificates: Path) -> Iterator[Scripted]:
    with serving(certificate=(certificates / "server.pem", certificates / "server.key")) as running:
        yield running


class Proxy:
    """Passes lines on to one server, whatever host is asked for. asked: the heads of the requests, as they came."""

    def __init__(self, target: int, wants: str | None) -> None:
        self.asked: list[str] = []
        self._target, self._wants = target, wants
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line, socket.create_connection(("127.0.0.1", self._target)) as onward:
            try:
                head = b""
                while b"\r\n\r\n" not in head and (piece := line.recv(1)):
                    head += piece
                self.asked.append(head.decode())
                if self._wants is not None and f"proxy-authorization: {self._wants}" not in head.decode().lower():
                    line.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                    return
                if head.startswith(b"CONNECT "):
                    line.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                else:
                    onward.sendall(head)
                _joined(line, onward)
            except OSError:
                return


def _joined(first: socket.socket, second: socket.socket) -> None:
    other = {first: second, second: first}
    while True:
        ready, _, _ = select.select([first, second], [], [], 10)
        for end in ready:
            data = end.recv(1 << 16)
            if not data:
                return
            other[end].sendall(data)
        if not ready:
            return


@contextmanager
def proxying(server: Scripted, wants: str | None = None) -> Iterator[Proxy]:
    proxy = Proxy(server.server_address[1], wants)
    try:
        yield proxy
    finally:
        proxy.close()


def test_an_own_authority_is_trusted_when_it_is_named(
    secure: Scripted, certificates: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = small(tmp_path, "a.json")
    assert upload(secure, trace) == 2
    assert "--ca-file" in one_error(capsys)
    assert upload(secure, trace, "--ca-file", certificates / "other.pem") == 2
    assert "not trusted" in one_error(capsys)
    assert secure.seen == []
    assert upload(secure, trace, "-q", "--ca-file", certificates / "authority.pem") == 0
    assert len(secure.stored) == 1
    assert capsys.readouterr().out.startswith("https://127.0.0.1:")


def test_a_certificate_for_another_host_is_not_enough(
    secure: Scripted, certificates: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = secure.url.replace("127.0.0.1", "localhost")
    words = ["upload", str(small(tmp_path, "a.json")), "--to", place, "--ca-file", str(certificates / "authority.pem")]
    assert main(words) == 2
    assert "not trusted" in one_error(capsys)
    assert secure.seen == []


def test_a_key_instead_of_a_certificate_is_said(
    secure: Scripted, certificates: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert upload(secure, small(tmp_path, "a.json"), "--ca-file", certificates / "server.key") == 2
    assert "--ca-file" in one_error(capsys)


def test_through_a_proxy_that_sees_no_token(
    secure: Scripted, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEANALYZER_TOKEN", TOKEN)
    secure.token = TOKEN
    words = ["-q", "--to", "https://traces.test", "--ca-file", str(certificates / "authority.pem")]
    with proxying(secure) as proxy:
        assert main(["upload", str(small(tmp_path, "a.json")), *words, "--proxy", f"http://{proxy.address}"]) == 0
        # The environment's proxy serves as well.
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        assert main(["upload", str(small(tmp_path, "b.json", "b")), *words]) == 0
        assert len(secure.stored) == 2
        assert len(proxy.asked) == 2
        for head in proxy.asked:
            assert head.startswith("CONNECT traces.test:443 ")
            assert TOKEN not in head


def test_plain_http_through_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server, proxying(server) as proxy:
        assert upload(server, small(tmp_path, "a.json"), "-q", "--proxy", f"http://{proxy.address}") == 0
        assert len(proxy.asked) == 1
        assert len(server.stored) == 1
        # Proxies of the environment are not for this machine.
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.address}")
        assert upload(server, small(tmp_path, "b.json", "b"), "-q") == 0
        assert len(proxy.asked) == 1
        assert len(server.stored) == 2


def test_a_proxy_with_a_password_takes_it_from_the_environment(
    secure: Scripted,
    certificates: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = "basic " + base64.b64encode(b"me:word").decode().lower()
    words = ["--to", "https://traces.test", "--ca-file", str(certificates / "authority.pem")]
    with proxying(secure, wants=known) as proxy:
        trace = str(small(tmp_path, "a.json"))
        assert main(["upload", trace, *words, "--proxy", f"http://{proxy.address}"]) == 2
        assert "HTTPS_PROXY" in one_error(capsys)
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:word@{proxy.address}")
        assert main(["upload", trace, *words]) == 0
    shown = capsys.readouterr()
    assert "word" not in shown.out + shown.err
    assert len(secure.stored) == 1


def test_a_proxy_that_is_away_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("http://me:word@127.0.0.1:1", "nonsense://me:word@host", "http://me:word@[::1"):
        monkeypatch.setenv("HTTPS_PROXY", place)
        assert main(["upload", str(small(tmp_path, "a.json")), "-q", "--to", "https://traces.test"]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "word" not in shown.err
        assert shown.err.splitlines()[-1].startswith("traceanalyzer: ")
