"""A service under `collect` in mode sample, recorded on demand by Kineto's own thread; one run for all tests."""

from __future__ import annotations

import gzip
import http.client
import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.collect import generation, running
from tests.collect.running import SCRIPT, Recorded


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=running.TIMEOUT_S + 30)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _ask(path: Path, token: str, method: str, target: str) -> tuple[int, bytes]:
    connection = _Unix(path)
    try:
        connection.request(method, target, headers={"Authorization": f"Bearer {token}", "Content-Length": "0"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@dataclass(frozen=True)
class Served:
    """What the run did: the trace that the request brought, what was refused, and what was left."""

    brought: dict[str, Any]
    too_soon: int
    recorded: Recorded
    code: int
    told: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    output = tmp_path_factory.mktemp("sampled") / "out"
    address = output.parent / "socket"
    assert len(str(address)) <= 107
    options = ("--listen", f"unix:{address}", "--min-gap", "2s", "--steps", "8", "-v")
    with running.started([sys.executable, str(SCRIPT), "busy"], output, *options) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == f"generated {generation.NEW}\n"
        said: list[str] = []
        readers = [
            threading.Thread(target=into.extend, args=(stream,), daemon=True)
            for into, stream in (([], process.stdout), (said, process.stderr))
        ]
        for reader in readers:
            reader.start()
        token = (output / "token").read_text().strip()
        end = time.monotonic() + running.TIMEOUT_S
        while True:  # Kineto's thread asks for work seconds after torch was imported
            status, body = _ask(address, token, "POST", f"/windows?wait={running.TIMEOUT_S:.0f}&steps=5")
            if status != 503 or time.monotonic() > end:
                break
            time.sleep(0.5)
        assert status == 200, (body, said)
        brought = json.loads(gzip.decompress(body))
        process.send_signal(signal.SIGUSR2)
        _until(lambda: any("window 2 is asked for (signal)" in line for line in said), said)
        too_soon, _ = _ask(address, token, "POST", "/windows")
        _until(lambda: len(json.loads(_ask(address, token, "GET", "/windows")[1])["windows"]) == 2, said)
        process.send_signal(signal.SIGTERM)
        code = process.wait(running.TIMEOUT_S)
        for reader in readers:
            reader.join()
    (output / "token").unlink()
    yield Served(brought, too_soon, running.read(output), code, "".join(said))


def _until(holds: Callable[[], bool], said: list[str]) -> None:
    end = time.monotonic() + running.TIMEOUT_S
    try:
        while not holds():
            assert time.monotonic() < end, said
            time.sleep(0.1)
    except OSError as error:  # it has ended: why is in what it said
        time.sleep(1.0)
        raise AssertionError(said) from error


def test_the_service_ends_by_the_signal_it_was_sent(served: Served) -> None:
    assert served.code == -signal.SIGTERM, served.told
    assert served.recorded.manifest["signal"] == signal.SIGTERM


def test_a_request_brings_its_window_and_a_second_one_at_once_is_refused(served: Served) -> None:
    first = served.recorded.traces[0]
    assert served.brought == first.content
    assert served.too_soon in (409, 429)
    assert sum(served.recorded.manifest["refused"].values()) >= 1


def test_every_trigger_led_to_one_window_with_its_reason(served: Served) -> None:
    windows = served.recorded.manifest["windows"]
    assert [window["reason"] for window in windows] == ["http", "signal"]
    assert [len(window["files"]) for window in windows] == [1, 1]
    assert windows[1]["weight_s"] > 0


def test_kineto_s_own_thread_recorded_labelled_steps(served: Served) -> None:
    for trace in served.recorded.traces:
        assert trace.entry["recorder"] == "ondemand"
        block = trace.content["traceanalyzer"]
        assert block["window"]["recorder"] == "ondemand"
        assert block["model"]["layers"] == 2
        assert block["steplog"]["steps"] > 0
        labels = trace.labels()
        assert labels
        for phase, numbers in labels:
            per_sequence = generation.PROMPT if phase == "prefill" else 1
            assert numbers["tokens"] == generation.BATCH * per_sequence
