"""What many uploads at once and a full database cost the server: its memory, and the time of the list.

Uploads: 50 clients send 20 MB of compressed trace each at the same time, all of them different by a blank line at the
end. The server's resident memory is read every 20 ms; no analysis runs, as that happens in children with limits of
their own. Beside it, in the same run: the server when idle, one upload alone, and how long one core takes to unpack and
hash the same bytes, which is the least that any server has to do.

List: the first page, one further down, a filter and a search, on a database with 100 000 traces and on one with 100,
in turn, through HTTP, from the request to the last byte.

    python benchmarks/server.py [--uploads 50] [--megabytes 20] [--rows 100000] [--json FILE]

What could be wrong: clients and server share the machine's cores. Resident memory counts pages of shared libraries.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx2
import psutil
from isal import isal_zlib
from sqlalchemy import insert

from tests.server.serving import COMMAND, Serving, serving, sha256
from traceanalyzer.server.database.models import Trace
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import Settings

MEMORY_TARGET_MB = 300
LIST_TARGET_MS = 150
_PIECE = 1 << 16
_PATIENCE_S = 1800
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "deepseek-v3", "mixtral-8x7b")
BOUNDS = ("memory", "compute", "launch", "communication")


def trace_of(megabytes: float, folder: Path) -> bytes:
    """A simulated trace whose compressed size is about that."""
    path, size = folder / "trace.json.gz", megabytes * 15
    for _ in range(3):
        words = [*COMMAND, "simulate", "-o", str(path), "--size", f"{size:.2f}MB", "--force", "--quiet"]
        subprocess.run(words, check=True, timeout=_PATIENCE_S)
        got = path.stat().st_size / 1e6
        if abs(got - megabytes) < 0.1 * megabytes:
            break
        size *= megabytes / got
    return path.read_bytes()


class Memory:
    """The largest resident memory of a process while it is watched, in MB."""

    def __init__(self, process: psutil.Process) -> None:
        """It is watched within a `with` block."""
        self._process = process
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.peak = 0.0

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.peak = max(self.peak, self._process.memory_info().rss / 1e6)

    def __enter__(self) -> Memory:
        """Begin to watch."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._over.set()
        self._thread.join()


def _pieces(*parts: bytes) -> Iterator[bytes]:
    for part in parts:
        for begin in range(0, len(part), _PIECE):
            yield part[begin : begin + _PIECE]


def upload(url: str, trace: bytes, number: int) -> float:
    """Send one trace, told apart by its number; seconds."""
    tail = gzip.compress(bin(number)[2:].replace("0", " ").replace("1", "\n").encode(), mtime=0)
    digest = hashlib.sha256(trace)
    digest.update(tail)
    headers = {"Content-Length": str(len(trace) + len(tail))}
    begun = time.perf_counter()
    with httpx2.Client(base_url=url, trust_env=False, timeout=_PATIENCE_S) as client:
        path = f"/api/v1/traces/{digest.hexdigest()}"
        answer = client.put(path, content=_pieces(trace, tail), headers=headers)
    if answer.status_code != 201:
        raise RuntimeError(f"upload {number}: {answer.status_code} {answer.text}")
    return time.perf_counter() - begun


def unpacked(trace: bytes) -> tuple[float, int]:
    """How long one core takes to unpack and to hash a trace, seconds, and the bytes of its text."""
    begun, size = time.perf_counter(), 0
    hashlib.sha256(trace).digest()
    unpacker = isal_zlib.decompressobj(31)
    for piece in _pieces(trace):
        size += len(unpacker.decompress(piece))
    return time.perf_counter() - begun, size


def measure_uploads(count: int, megabytes: float, folder: Path) -> dict[str, Any]:
    """Memory and time of `count` uploads at once."""
    trace = trace_of(megabytes, folder)
    seconds, text = unpacked(trace)
    with serving(folder / "uploads", "--workers", "0") as server:
        process = psutil.Process(server.process.pid)
        time.sleep(2)
        idle = process.memory_info().rss / 1e6
        with Memory(process) as one:
            alone = upload(server.url, trace, 1)
        with Memory(process) as many, ThreadPoolExecutor(count) as pool:
            begun = time.perf_counter()
            each = list(pool.map(lambda number: upload(server.url, trace, number), range(2, count + 2)))
            wall = time.perf_counter() - begun
        after = process.memory_info().rss / 1e6
        assert not list((server.folder / "incoming").iterdir())
        server.end()
    return {
        "uploads": count, "mb": len(trace) / 1e6, "text_mb": text / 1e6, "idle_mb": idle, "one_mb": one.peak,
        "many_mb": many.peak, "after_mb": after, "alone_s": alone, "wall_s": wall, "slowest_s": max(each),
        "least_s": seconds, "per_upload_ratio": wall / count / alone, "memory_ratio": many.peak / one.peak,
        "work_ratio": wall / (count * seconds), "in_flight_share": many.peak / (count * len(trace) / 1e6),
    }  # fmt: skip


def fill(folder: Path, rows: int) -> None:
    """A database with that many traces, as the server would have written them; no blobs."""
    services, draw = Services.open(Settings(folder=folder)), random.Random(rows)
    now = time.time_ns() // 1_000_000

    def row(number: int) -> dict[str, Any]:
        model, bound = draw.choice(MODELS), draw.choice(BOUNDS)
        said = {
            "name": f"run-{number}.pt.trace.json.gz", "model": model, "engine": draw.choice(("vllm", "sglang")),
            "host": f"{draw.randrange(200):012x}", "environment": draw.choice(("production", "staging")),
            "recording": f"rec-{number // 8}", "gpu": draw.choice(("NVIDIA H100", "NVIDIA H200", "AMD MI300X")),
            "headline": f"Decode is {bound}-bound at {draw.randint(20, 90)} % of its roof; the GPU idles "
                        f"{draw.randint(1, 40)} % of each step", "workload": "generation",
        }  # fmt: skip
        digest = sha256(str(number).encode())
        return {
            **said, "sha256": digest, "bytes": draw.randint(10**5, 10**7), "text_bytes": 10**8,
            "uploaded_at": now - (rows - number) * 60_000, "state": "analysed", "bound": bound, "pinned": False,
            "span_us": 1e6, "decode_step_us": 9e3, "tokens_per_s": 110.0, "quality": "info", "report_bytes": 4 * 10**5,
            "report_id": digest[:16], "analyser": "0", "analysed_at": now,
            "words": "\n".join((digest, *said.values())).casefold(),
        }  # fmt: skip

    with services.database.session() as session:
        for begin in range(0, rows, 5000):
            session.execute(insert(Trace), [row(number) for number in range(begin, min(rows, begin + 5000))])
    services.close()


def requests(server: Serving) -> dict[str, str]:
    """What is asked for, by what it is called in the table."""
    page = server.ask("GET", "/api/v1/traces?size=50").json()
    return {
        f"page (target: below {LIST_TARGET_MS} ms)": "/", "the next page": f"/?after={page['next']}",
        "one model": "/?model=llama-3.1-8b",
        "two filters": "/?model=llama-3.1-8b&environment=staging", "a search": "/?text=mixtral",
        "a search without a match": "/?text=nothing-like-it", "as JSON": "/api/v1/traces",
    }  # fmt: skip


def timed(server: Serving, path: str) -> float:
    """Milliseconds from the request to the last byte."""
    begun = time.perf_counter()
    answer = server.ask("GET", path)
    took = (time.perf_counter() - begun) * 1e3
    if answer.status_code != 200:
        raise RuntimeError(f"{path}: {answer.status_code}")
    return took


def measure_list(rows: int, rounds: int, folder: Path) -> dict[str, dict[str, float]]:
    """Median times of the list with `rows` traces and with 100."""
    small, large = folder / "small", folder / "large"
    fill(small, 100)
    fill(large, rows)
    options = ("--workers", "0", "--keep-days", "0")
    measured: dict[str, dict[str, float]] = {}
    with serving(small, *options) as few, serving(large, *options) as many:
        paths = {"few": requests(few), "many": requests(many)}
        for name in paths["few"]:
            times: dict[str, list[float]] = {"few": [], "many": []}
            for _ in range(rounds + 1):  # in turn; the first of each is not counted
                times["few"].append(timed(few, paths["few"][name]))
                times["many"].append(timed(many, paths["many"][name]))
            few_ms, many_ms = (statistics.median(times[which][1:]) for which in ("few", "many"))
            worst = max(times["many"][1:])
            measured[name] = {"few_ms": few_ms, "many_ms": many_ms, "worst_ms": worst, "ratio": many_ms / few_ms}
        few.end()
        many.end()
    return measured


def table(uploads: dict[str, Any], lists: dict[str, dict[str, float]], rows: int) -> str:
    """The figures as Markdown."""
    u = uploads
    lines = [
        f"{u['uploads']} uploads at once of {u['mb']:.1f} MB each, {u['text_mb']:.0f} MB unpacked:",
        "",
        "| Server's resident memory, MB | |",
        "| --- | ---: |",
        f"| idle | {u['idle_mb']:.0f} |",
        f"| one upload | {u['one_mb']:.0f} |",
        f"| {u['uploads']} uploads (target: at most {MEMORY_TARGET_MB}) | {u['many_mb']:.0f} |",
        f"| {u['uploads']} uploads / one | {u['memory_ratio']:.2f} |",
        f"| {u['uploads']} uploads / the bytes under way | {u['in_flight_share']:.2f} |",
        "",
        "| Time, s | |",
        "| --- | ---: |",
        f"| one upload alone | {u['alone_s']:.2f} |",
        f"| {u['uploads']} at once | {u['wall_s']:.1f} |",
        f"| {u['uploads']} at once / ({u['uploads']} x one alone) | {u['per_upload_ratio']:.2f} |",
        f"| {u['uploads']} at once / (unpacking and hashing them on one core) | {u['work_ratio']:.2f} |",
        "",
        f"| List with {rows} traces | Median, ms | Slowest, ms | With 100 traces, ms | Ratio |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {name} | {one['many_ms']:.0f} | {one['worst_ms']:.0f} | {one['few_ms']:.0f} | {one['ratio']:.2f} |"
        for name, one in lists.items()
    ]
    return "\n".join(lines)


def main() -> int:
    """Measure both and print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--uploads", type=int, default=50)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "servers"
        folder.mkdir()
        uploads = measure_uploads(given.uploads, given.megabytes, folder)
        lists = measure_list(given.rows, given.rounds, folder)
    print(table(uploads, lists, given.rows))
    if given.json:
        given.json.write_text(json.dumps({"uploads": uploads, "lists": lists}, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
