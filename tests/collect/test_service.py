"""An engine's own metrics: pages as vLLM, SGLang and TGI write them, from a server on loopback."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from tests.collect.running import TIMEOUT_S
from tests.collect.wheels import ENGINES
from tests.conftest import require
from traceanalyzer.collect import service
from traceanalyzer.collect.service import Service, between, engine_of, metrics_url, read

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama {3.1} \\"8B\\""} 7.0
vllm:num_requests_running{engine="1",model_name="meta-llama/Llama {3.1} \\"8B\\""} 5.0
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.75
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
vllm:num_preemptions_total{engine="0",model_name="m"} 10.0
vllm:num_preemptions_total{engine="1",model_name="m"} 2.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7e9
vllm:generation_tokens_total{engine="0",model_name="m"} 1000.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 400.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 4.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 4.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 2.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 100.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 3.0
"""
SGLANG = """\
sglang:num_running_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 9.0
sglang:num_running_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="1"} 9.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 2.0
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.5
sglang:num_retracted_requests_total{engine_type="unified",model_name="m",tp_rank="0"} 3.0
"""


class Pages(BaseHTTPRequestHandler):
    """Answers from `pages`: path -> (status, bytes, seconds between two parts; then each has `PART` bytes)."""

    PART = 10

    pages: ClassVar[dict[str, tuple[int, bytes, float]]] = {}

    def do_GET(self) -> None:
        status, body, pause = self.pages.get(self.path, (404, b"", 0.0))
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        try:
            size = self.PART if pause else max(1, len(body))
            for at in range(0, len(body), size):
                self.wfile.write(body[at : at + size])
                self.wfile.flush()
                time.sleep(pause)
        except OSError:
            pass

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is not about the time: a loaded machine may need more than half a second for a page."""
    monkeypatch.setattr(service.fetch, "__defaults__", (TIMEOUT_S,))


@pytest.fixture
def port() -> Iterator[int]:
    Pages.pages = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_vllm_engines_are_summed_and_their_caches_averaged() -> None:
    found = read(VLLM)
    assert found is not None
    assert (found["source"], found["running"], found["waiting"], found["kv_used_share"]) == ("vllm", 12, 3, 0.5)
    assert (found["preemptions"], found["generated_tokens"], found["prefilled_tokens"]) == (12, 1000, 400)
    assert (found["first_token_sum"], found["first_token_count"]) == (2, 4)


def test_older_vllm_has_other_names() -> None:
    page = VLLM.replace("kv_cache_usage_perc", "gpu_cache_usage_perc").replace(
        "inter_token_latency", "time_per_output_token"
    )
    found = read(page)
    assert found is not None and found["kv_used_share"] == 0.5 and found["inter_token_count"] == 100


def test_sglang_ranks_of_one_group_count_once_and_replicas_add_up() -> None:
    found = read(SGLANG)
    assert found is not None
    assert (found["source"], found["running"], found["waiting"], found["kv_used_share"]) == ("sglang", 9, 2, 0.5)
    assert found["preemptions"] == 3
    replicas = "".join(
        f'sglang:num_running_reqs{{dp_rank="{n}",model_name="m",tp_rank="{n}"}} {n + 1}\n' for n in range(4)
    )
    found = read(replicas)
    assert found is not None and found["running"] == 1 + 2 + 3 + 4


def test_tgi_has_no_share_of_the_cache() -> None:
    tgi = read("tgi_batch_current_size 4\ntgi_queue_size 1\n")
    assert tgi is not None
    assert (tgi["source"], tgi["running"], tgi["waiting"], tgi["kv_used_share"]) == ("tgi", 4, 1, None)


@pytest.mark.parametrize(
    "page", ["", "<html>", "python_gc_objects_collected_total 5\n", "vllm:num_requests_running NaN\n"]
)
def test_other_pages_are_no_engine(page: str) -> None:
    assert read(page) is None


def test_what_is_missing_is_unknown() -> None:
    found = read("vllm:num_requests_running 0\n")
    assert found is not None
    assert found["running"] == 0 and found["waiting"] is None and found["preemptions"] is None
    section = between(found, found)
    assert section["running_close"] == 0 and section["waiting"] is None and section["preemptions_per_s"] is None


def test_a_window_is_what_changed_between_two_snapshots() -> None:
    opened = read(VLLM)
    later = VLLM.replace("} 10.0", "} 16.0").replace("} 1000.0", "} 1600.0").replace("} 0.75", "} 0.85")
    later = later.replace(
        'seconds_count{engine="0",model_name="m"} 4.0', 'seconds_count{engine="0",model_name="m"} 8.0'
    )
    later = later.replace("} 2.0\nvllm:inter", "} 5.0\nvllm:inter").replace("} 7.0", "} 1.0")
    closed = read(later)
    assert opened is not None and closed is not None
    closed["time_ns"] = opened["time_ns"] + 2_000_000_000
    assert between(opened, closed) == {
        "source": "vllm", "running": 12, "running_close": 6, "waiting": 3, "waiting_close": 3,
        "kv_used_share": 0.5, "kv_used_share_close": pytest.approx(0.55),
        "preemptions_per_s": 3.0, "generated_tokens_per_s": 300.0, "prefilled_tokens_per_s": 0.0,
        "first_token_s": 0.75, "first_token_count": 4, "inter_token_s": None, "inter_token_count": 0, "seconds": 2.0,
    }  # fmt: skip


def test_an_engine_that_started_anew_has_no_rate() -> None:
    opened, closed = (
        read(VLLM),
        read(VLLM.replace("} 10.0", "} 0.0").replace('_total{engine="1",model_name="m"} 2.0', "_total 0")),
    )
    assert opened is not None and closed is not None
    closed["time_ns"] += 10**9
    assert between(opened, closed)["preemptions_per_s"] is None


def test_one_snapshot_is_better_than_none() -> None:
    snapshot = read(VLLM)
    assert between(None, None) == {}
    only_close = between(None, snapshot)
    assert (only_close["running"], only_close["running_close"], only_close["preemptions_per_s"]) == (None, 12, None)
    assert between(snapshot, None)["running_close"] is None


def test_the_reader_keeps_the_section() -> None:
    from traceanalyzer.trace.collector import read_block

    section = between(read(VLLM), read(VLLM))
    block, sound = read_block({"schema": 1, "service": section})
    assert sound and block is not None and block["service"] == section


@pytest.mark.usefixtures("patient")
def test_it_asks_a_server(port: int) -> None:
    Pages.pages = {"/metrics": (200, VLLM.encode(), 0.0), "/other": (200, SGLANG.encode(), 0.0)}
    asked = Service(f"http://127.0.0.1:{port}").snapshot()
    assert asked is not None and asked["running"] == 12 and abs(asked["time_ns"] - time.time_ns()) < 60e9
    service_ = Service(f"http://localhost:{port}/other")
    future = service_.ask()
    answer = future.result(TIMEOUT_S)
    assert answer is not None and answer["source"] == "sglang"
    service_.close()
    assert not [thread for thread in threading.enumerate() if "service" in thread.name]


@pytest.mark.usefixtures("patient")
def test_a_proxy_of_the_environment_is_not_used(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    Pages.pages = {"/metrics": (200, VLLM.encode(), 0.0)}
    assert Service(f"http://127.0.0.1:{port}/").snapshot() is not None


@pytest.mark.usefixtures("patient")
def test_no_answer_is_said_once(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = Service(f"http://127.0.0.1:{port}")
    assert found.snapshot() is None and found.snapshot() is None
    assert capsys.readouterr().err == (
        f"traceanalyzer: no engine metrics from http://127.0.0.1:{port}/metrics: status 404\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = Service(f"http://127.0.0.1:{free.getsockname()[1]}")
        assert closed.snapshot() is None
    assert "refused" in capsys.readouterr().err


def test_a_server_that_drips_is_given_up(port: int) -> None:
    Pages.pages = {"/metrics": (200, VLLM.encode() * 10, 0.1)}
    began = time.monotonic()
    assert Service(f"http://127.0.0.1:{port}").snapshot() is None
    assert time.monotonic() - began < 60, "the whole page would take minutes"


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        assert Service(f"http://127.0.0.1:{silent.getsockname()[1]}").snapshot() is None
        assert time.monotonic() - began < 60


@pytest.mark.usefixtures("patient")
def test_a_page_without_end_is_given_up(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_BYTES", 1000)
    Pages.pages = {"/metrics": (200, VLLM.encode(), 0.0)}
    assert Service(f"http://127.0.0.1:{port}").snapshot() is None


@pytest.mark.parametrize(
    ("command", "url"),
    [
        ("vllm serve m", "http://127.0.0.1:8000/metrics"),
        ("/opt/venv/bin/vllm serve m --port 8123 --host 0.0.0.0", "http://127.0.0.1:8123/metrics"),
        ("vllm serve m --port=9 --host ::", "http://[::1]:9/metrics"),
        ("python3 -m vllm.entrypoints.openai.api_server --model m --port 81 --port 82", "http://127.0.0.1:82/metrics"),
        ("python -m vllm.entrypoints.cli.main serve m --port 7", "http://127.0.0.1:7/metrics"),
        ("python -m sglang.launch_server --model m --enable-metrics", "http://127.0.0.1:30000/metrics"),
        ("sglang serve --enable-metrics --port 31000 --model m", "http://127.0.0.1:31000/metrics"),
        ("numactl -N 0 vllm serve m --port 5", "http://127.0.0.1:5/metrics"),
        ("python -m sglang.launch_server --model m", None),  # metrics are off
        ("vllm serve m --host 10.1.2.3", None),
        ("vllm serve m --uds /run/v.sock", None),
        ("vllm serve m --ssl-keyfile=k", None),
        ("vllm serve --config c.yaml", None),
        ("vllm serve --config c.yaml --port 4", "http://127.0.0.1:4/metrics"),
        ("vllm serve m --headless", None),
        ("vllm bench serve", None),
        ("vllm serve m --port $PORT", None),
        ("python generate.py --port 8000", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_url_is_found_from_the_command(command: str, url: str | None) -> None:
    assert metrics_url(command.split()) == url


def test_the_url_is_found_within_a_shell() -> None:
    assert metrics_url(["bash", "-c", "cd /x && exec vllm serve m --port 8123"]) == "http://127.0.0.1:8123/metrics"
    assert metrics_url(["sh", "-c", "vllm serve 'm"]) is None
    assert engine_of(["bash", "-lc", "sglang serve m"]) == "sglang"


@pytest.mark.parametrize(
    ("engine", "path"),
    [("vllm", "vllm/v1/metrics/loggers.py"), ("sglang", "sglang/srt/observability/metrics_collector.py")],
)
def test_the_names_stand_in_the_engines_sources(engine: str, path: str) -> None:
    require((ENGINES / path).is_file(), f"no unpacked {engine} wheel (`make test` fetches it)")
    source = (ENGINES / path).read_text(encoding="utf-8")
    (names,) = (one for one in service._ENGINES if one.name == engine)
    for known in names[1:]:
        assert any(re.search(rf'name="{name}(_total)?"', source) for name in known), known
