"""zstd bodies with the largest window that is allowed: many of them at once do not take the server's memory."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
import zstandard

from tests.server.asking import NOTHING, Wire, client, kept, opened, path_of
from tests.server.serving import serving
from traceanalyzer.server.app import create_app

WINDOW = 8 << 20
UPLOADS = 16
MIB = 1 << 20


@pytest.fixture(scope="module")
def body() -> bytes:
    """A trace whose text is larger than its window, in a frame that does not say how large it is."""
    draw = random.Random(5)
    events = [{"ph": "X", "name": "aten::add", "ts": at, "dur": draw.randint(1, 99)} for at in range(200_000)]
    text = json.dumps({"traceEvents": events}).encode()
    assert len(text) > WINDOW
    asked = zstandard.ZstdCompressionParameters(
        window_log=23, hash_log=16, chain_log=16, strategy=zstandard.STRATEGY_FAST, write_content_size=False
    )
    made = zstandard.ZstdCompressor(compression_params=asked).compress(text)
    assert zstandard.get_frame_parameters(made).window_size == WINDOW
    return made


@contextmanager
def most_memory(process: psutil.Process) -> Iterator[list[int]]:
    """The most bytes that the process held, looked at every few milliseconds."""
    found = [process.memory_info().rss]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            found[0] = max(found[0], process.memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def test_many_uploads_at_once_take_the_memory_of_a_few(tmp_path: Path, body: bytes) -> None:
    bodies = [body + b"\0" * (1 + number) for number in range(UPLOADS)]  # padding: each has a name of its own
    with serving(tmp_path / "server", "--workers", "0") as running, ExitStack() as open_wires:
        assert running.put(bodies[0]).status_code == 201  # what the first one alone brings in
        process = psutil.Process(running.process.pid)
        before = process.memory_info().rss
        with most_memory(process) as most:
            wires = []
            for data in bodies[1:]:
                wire = open_wires.enter_context(Wire(running.port))
                wire.head("PUT", path_of(data), Content_Length=str(len(data)))
                wire.send(data[:-1])
                wires.append(wire)
            for wire in wires:
                wire.send(b"\0")
            assert [wire.status() for wire in wires] == [201] * len(wires)
        assert most[0] - before < (UPLOADS // 2) * WINDOW


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"{" * 70 + b" " * 1000, 422),
        (b"no JSON at all" * 100, 415),
        (b'{"traceEvents":[' + b" " * (64 * MIB), 413),
    ],
    ids=["nested", "no JSON", "bomb"],
)
def test_what_is_checked_late_is_refused_all_the_same(tmp_path: Path, text: bytes, status: int) -> None:
    data = zstandard.ZstdCompressor().compress(text)
    with opened(tmp_path / "server") as services:
        api = client(create_app(services))
        assert api.put(path_of(data), content=data).status_code == status
        assert kept(services) == NOTHING


def test_the_largest_body_is_as_large_in_zstd(tmp_path: Path, body: bytes) -> None:
    with opened(tmp_path / "server", limits={"max_body_bytes": len(body) - 1}) as services:
        api = client(create_app(services))
        pieces = (body[begin : begin + 65536] for begin in range(0, len(body), 65536))  # no length is told
        assert api.put(path_of(body), content=pieces).status_code == 413
        assert kept(services) == NOTHING


def test_bytes_that_were_changed_are_not_unpacked(tmp_path: Path, body: bytes) -> None:
    """What is wrong with them says nothing about the file: the answer is not one for good."""
    with opened(tmp_path / "server") as services:
        api = client(create_app(services))
        changed = zstandard.ZstdCompressor().compress(b"no JSON at all")
        answer = api.put(path_of(body), content=changed)
        assert answer.status_code == 400
        assert kept(services) == NOTHING
