"""Asks a serving engine's own metrics (Prometheus text on loopback) what it is doing: requests, cache, preemptions.

Names as in vLLM 0.33 and releases back to 0.6, SGLang 0.5 and TGI 3. What could be wrong: engines update their gauges
once per step or less often, so a value is as old as the engine's last update; counters are shared by all that goes on,
so a rate over a short window of a slow server is coarse. Labels that repeat one value for each rank of a
tensor-parallel group are recognised by their usual names; others would be summed.
"""

from __future__ import annotations

import http.client
import math
import re
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import PurePath
from typing import Any, Callable, Iterable, NamedTuple, Sequence
from urllib.parse import urlsplit

from .interpreter import unwrapped
from .say import say

TIMEOUT_S = 0.5
"""For the whole answer."""
MOST_BYTES = 4 << 20

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?[ \t]+(\S+)")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_SAME_REQUESTS = frozenset(("tp_rank", "pp_rank", "moe_ep_rank", "pid"))
"""Labels over which one request would be counted more than once."""


class _Engine(NamedTuple):
    """Metric names, the first that is there counts. Counters and histograms without their suffix."""

    name: str
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    kv_used_share: tuple[str, ...] = ()
    preemptions: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()
    prefilled: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    """Histogram of seconds to the first token."""
    each: tuple[str, ...] = ()
    """Histogram of seconds from one token to the next."""


_ENGINES = (
    _Engine(
        "vllm", ("vllm:num_requests_running",), ("vllm:num_requests_waiting",),
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), ("vllm:num_preemptions",),
        ("vllm:generation_tokens",), ("vllm:prompt_tokens",), ("vllm:time_to_first_token_seconds",),
        ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    ),
    _Engine(
        "sglang", ("sglang:num_running_reqs",), ("sglang:num_queue_reqs",), ("sglang:token_usage",),
        ("sglang:num_retracted_requests",), ("sglang:generation_tokens",), ("sglang:prompt_tokens",),
        ("sglang:time_to_first_token_seconds",),
        ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    ),
    _Engine("tgi", ("tgi_batch_current_size",), ("tgi_queue_size",)),
)  # fmt: skip


class Service:
    """One engine's metrics.

    Args:
        url: http on loopback; without a path, /metrics is asked.
    """

    def __init__(self, url: str) -> None:
        """Nothing is asked yet."""
        parts = urlsplit(url)
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or 80
        self._path = parts.path if parts.path not in ("", "/") else "/metrics"
        self._threads: ThreadPoolExecutor | None = None
        self._said = False

    def snapshot(self) -> dict[str, Any] | None:
        """What the engine says now; waits at most `TIMEOUT_S`. None, said once, where it does not answer.

        Keys: source, time_ns, running, waiting, kv_used_share, and the sums of counters that `between` compares.
        """
        try:
            text = fetch(self._host, self._port, self._path)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._say_once(str(error) or type(error).__name__)
            return None
        found = read(text)
        if found is None:
            self._say_once("no engine that is known")
        return found

    def ask(self) -> Future[dict[str, Any] | None]:
        """`snapshot`, without waiting."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "traceanalyzer-service")
        return self._threads.submit(self.snapshot)

    def close(self) -> None:
        """End the thread; waits at most `TIMEOUT_S`."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def _say_once(self, why: str) -> None:
        if not self._said:
            self._said = True
            say(f"no engine metrics from http://{self._host}:{self._port}{self._path}: {why}")


def between(opened: dict[str, Any] | None, closed: dict[str, Any] | None) -> dict[str, Any]:
    """The block's section `service` from a snapshot at a window's open and one at its close.

    Empty without either; what only one of them has is None for the other. Rates are per second, times seconds per
    request or token; None where the counter is unknown, or fell because the engine started anew.
    """
    either = opened or closed
    if either is None:
        return {}
    first, last = opened or {}, closed or {}
    found: dict[str, Any] = {"source": either["source"]}
    for name in ("running", "waiting", "kv_used_share"):
        found[name] = first.get(name)
        found[name + "_close"] = last.get(name)
    seconds = (last["time_ns"] - first["time_ns"]) / 1e9 if opened and closed else 0.0

    def grown(name: str) -> float | None:
        before, after = first.get(name), last.get(name)
        return after - before if before is not None and after is not None and after >= before else None

    for name in ("preemptions", "generated_tokens", "prefilled_tokens"):
        count = grown(name)
        found[name + "_per_s"] = count / seconds if count is not None and seconds > 0 else None
    for name in ("first_token", "inter_token"):
        total, number = grown(name + "_sum"), grown(name + "_count")
        found[name + "_s"] = total / number if total is not None and number else None
        found[name + "_count"] = number
    found["seconds"] = seconds or None
    return found


def read(text: str) -> dict[str, Any] | None:
    """What a page of metrics says of the engine, None where no known engine wrote it. See `Service.snapshot`."""
    wanted = {name for engine in _ENGINES for names in engine[1:] for name in names}
    samples = _samples(text, wanted)
    for engine in _ENGINES:
        if any(name in samples for name in (*engine.running, *engine.waiting)):
            break
    else:
        return None

    def value(names: Sequence[str], suffix: str = "", over: Callable[[Iterable[float]], float] = sum) -> float | None:
        for name in names:
            groups = samples.get(name + suffix) or samples.get(name)
            if groups:
                return over(groups.values())
        return None

    found: dict[str, Any] = {
        "source": engine.name,
        "time_ns": time.time_ns(),
        "running": _whole(value(engine.running)),
        "waiting": _whole(value(engine.waiting)),
        "kv_used_share": value(engine.kv_used_share, over=_mean),
        "preemptions": value(engine.preemptions, "_total"),
        "generated_tokens": value(engine.generated, "_total"),
        "prefilled_tokens": value(engine.prefilled, "_total"),
    }
    for key, names in (("first_token", engine.first), ("inter_token", engine.each)):
        for suffix in ("_sum", "_count"):
            found[key + suffix] = value(names, suffix)
    return found


def _samples(text: str, wanted: set[str]) -> dict[str, dict[str, float]]:
    """Name -> engine (its labels, those of `_SAME_REQUESTS` left out) -> value; the largest where ranks repeat it."""
    names = {name + suffix for name in wanted for suffix in ("", "_total", "_sum", "_count")}
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None or match.group(1) not in names:
            continue
        try:
            value = float(match.group(3))
        except ValueError:
            continue
        if not math.isfinite(value):
            continue
        labels = sorted(pair for pair in _LABEL.findall(match.group(2) or "") if pair[0] not in _SAME_REQUESTS)
        groups = found.setdefault(match.group(1), {})
        group = repr(labels)
        groups[group] = max(value, groups.get(group, value))
    return found


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None else None


def fetch(host: str, port: int, path: str, timeout_s: float = TIMEOUT_S) -> str:
    """One page by http, without proxies and redirects. Raises `OSError`, `HTTPException`, `ValueError`."""
    deadline = time.monotonic() + timeout_s
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", path, headers={"Accept": "text/plain", "Connection": "close"})
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"status {response.status}")
        parts: list[bytes] = []
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            if connection.sock is not None:  # None once the answer is read
                connection.sock.settimeout(left)
            part = response.read1(1 << 16)
            if not part:
                return b"".join(parts).decode("utf-8", "replace")
            parts.append(part)
            if sum(map(len, parts)) > MOST_BYTES:
                raise ValueError(f"more than {MOST_BYTES >> 20} MiB")
    finally:
        connection.close()


def metrics_url(command: Sequence[str]) -> str | None:
    """Where the engine that a command starts will show its metrics; None where that is not certain.

    Known are `vllm serve`, `sglang serve` and the modules behind them, also within `bash -c`. A host that is not
    loopback, TLS, a unix socket, or a port that a file or a variable names give None.
    """
    words = unwrapped(command)
    engine, start = _engine_of(words)
    if engine is None:
        return None
    words = words[start:]
    if any(_given(words, name) for name in ("--uds", "--ssl-keyfile", "--ssl-certfile", "--headless")):
        return None
    if engine == "sglang" and not _given(words, "--enable-metrics"):
        return None
    port = _option(words, "--port")
    if port is None:
        if _given(words, "--config"):
            return None
        port = "8000" if engine == "vllm" else "30000"
    host = {None: "127.0.0.1", "0.0.0.0": "127.0.0.1", "localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1",  # noqa: S104
            "::": "[::1]", "::1": "[::1]"}.get(_option(words, "--host"))  # fmt: skip
    return f"http://{host}:{port}/metrics" if host and re.fullmatch(r"[1-9]\d{0,4}", port) else None


def engine_of(command: Sequence[str]) -> str | None:
    """Which engine a command starts: vllm, sglang or None."""
    return _engine_of(unwrapped(command))[0]


def _engine_of(words: Sequence[str]) -> tuple[str | None, int]:
    """The engine and where its own options begin."""
    for at, word in enumerate(words):
        name = PurePath(word).name
        after = words[at + 1] if at + 1 < len(words) else ""
        if name in ("vllm", "sglang") and after == "serve":
            return name, at + 2
        if word == "-m" and after in ("vllm.entrypoints.openai.api_server", "sglang.launch_server"):
            return after.partition(".")[0], at + 2
        if (
            word == "-m"
            and after in ("vllm", "vllm.entrypoints.cli.main")
            and list(words[at + 2 : at + 3]) == ["serve"]
        ):
            return "vllm", at + 3
    return None, 0


def _given(words: Sequence[str], name: str) -> bool:
    return any(word == name or word.startswith(name + "=") for word in words)


def _option(words: Sequence[str], name: str) -> str | None:
    """The value of the last `name VALUE` or `name=VALUE`."""
    found = None
    for at, word in enumerate(words):
        if word == name and at + 1 < len(words):
            found = words[at + 1]
        elif word.startswith(name + "="):
            found = word[len(name) + 1 :]
    return found
