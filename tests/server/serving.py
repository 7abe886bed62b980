"""Real servers for tests: `python -m traceanalyzer serve` as a process of its own, and traces to send to it.

What could be wrong: everything waits with a deadline that a busy machine may need; none is a statement about speed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2

SLOW_S = 90.0
COMMAND = (sys.executable, "-m", "traceanalyzer")


def until(condition: Callable[[], Any], timeout: float = SLOW_S, every: float = 0.05) -> Any:
    """What `condition` gives once it is true."""
    end = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(every)
    return found


def trace_text(seed: int, events: int = 200) -> bytes:
    """A small valid trace, another one for every seed."""
    draw = random.Random(seed)
    made = []
    at = 1000.0
    for number in range(events):
        took = draw.randint(5, 60)
        kernel = f"void at::native::elementwise_kernel<{draw.randint(1, 4)}, {draw.randint(1, 9)}>(int)"
        shared = {"correlation": number + 1, "External id": number + 1}
        made += [
            {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": at, "dur": took + 4,
             "args": {"External id": number + 1, "Input Dims": [[draw.randint(1, 64), 128], [128]]}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at + 1, "dur": 2,
             "args": shared},
            {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": at + 6, "dur": took,
             "args": {**shared, "device": 0, "stream": 7, "grid": [1, 1, 1], "block": [128, 1, 1]}},
        ]  # fmt: skip
        at += took + 10
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85028765696}],
        "traceEvents": made,
    }
    return json.dumps(document).encode()


def trace_gz(seed: int, events: int = 200) -> bytes:
    """The same, compressed; the same bytes for the same seed."""
    return gzip.compress(trace_text(seed, events), mtime=0)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Serving:
    """One server process, its log, and requests to it."""

    def __init__(self, folder: Path, *options: str, environment: dict[str, str] | None = None, token: str = "") -> None:
        self.folder = folder
        self.token = token
        # Beside the folder's parent: the folder may stand alone on a small disk.
        self.log_path = folder.parent.with_name(f"{folder.parent.name}-{folder.name}.log")
        folder.parent.mkdir(parents=True, exist_ok=True)
        before = self.log_path.stat().st_size if self.log_path.exists() else 0
        words = [*COMMAND, "serve", "--folder", str(folder), "--port", "0", "--min-free-gb", "0", *options]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **(environment or {})}
            )
        self._from = before
        self.url = ""
        self._client: httpx2.Client | None = None

    def log(self) -> str:
        """What this process has written, both streams."""
        return self.log_path.read_bytes()[self._from :].decode()

    def lines(self) -> list[dict[str, Any]]:
        """The same, parsed; every line must be JSON."""
        return [json.loads(line) for line in self.log().splitlines()]

    def ready(self, timeout: float = SLOW_S) -> Serving:
        """Wait until it says where it listens."""

        def said() -> str:
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}: {self.log()}"
            whole = self.log().rpartition("\n")[0]
            found = [json.loads(line) for line in whole.splitlines() if '"listening"' in line]
            return str(found[0]["url"]) if found else ""

        self.url = until(said, timeout)
        self._client = httpx2.Client(base_url=self.url, timeout=SLOW_S, trust_env=False)
        return self

    @property
    def port(self) -> int:
        return int(self.url.rstrip("/").rpartition(":")[2])

    def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """One request; with the token where there is one."""
        assert self._client is not None
        headers = dict(options.pop("headers", {}))
        if self.token:
            headers.setdefault("Authorization", f"Bearer {self.token}")
        return self._client.request(method, path, headers=headers, **options)

    def put(self, body: bytes, **labels: str) -> httpx2.Response:
        """Upload a trace."""
        query = f"?{urlencode(labels)}" if labels else ""
        return self.ask("PUT", f"/api/v1/traces/{sha256(body)}{query}", content=body)

    def state(self, digest: str) -> str:
        """Where a trace's analysis is; empty where there is no such trace."""
        answer = self.ask("HEAD", f"/api/v1/traces/{digest}")
        return answer.headers.get("x-traceanalyzer-state", "") if answer.status_code == 200 else ""

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self.process.kill()
        self.process.wait(20)

    def end(self, timeout: float = 60) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def close_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def close(self) -> None:
        self.close_client()
        if self.process.poll() is None:
            self.kill()


@contextmanager
def serving(folder: Path, *options: str, **more: Any) -> Iterator[Serving]:
    """A server that answers; killed at the end where it still runs."""
    server = Serving(folder, *options, **more)
    try:
        yield server.ready()
    finally:
        server.close()


def command(*words: str, timeout: float = SLOW_S, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `traceanalyzer` with these words."""
    given: Sequence[str] = [*COMMAND, *words]
    return subprocess.run(given, capture_output=True, text=True, timeout=timeout, check=False, **options)


def make_token(folder: Path, *scopes: str, name: str = "test") -> str:
    """A token made by the command, as an operator makes one."""
    done = command("token", "create", name, "--folder", str(folder), "--scope", ",".join(scopes))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
