"""The recorder's block: what is known and nothing else, and nothing of it is lost to the reader."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.collect import raws
from traceanalyzer.collect import block as blocks
from traceanalyzer.collect.block import About, Sampling
from traceanalyzer.collect.counters import Counters
from traceanalyzer.collect.facts import RawWindow, Window
from traceanalyzer.collect.scan import Scan, scan
from traceanalyzer.collect.service import between
from traceanalyzer.collect.steplog import Step, StepLog
from traceanalyzer.trace.collector import read_block

NOW = 1_796_016_000_000_000_000
MODEL = {
    "name": "tiny", "architecture": "LlamaForCausalLM", "fingerprint": "0f" * 8, "layers": 2, "hidden": 64, "heads": 4,
    "kv_heads": 2, "head_dim": 16, "ffn": 128, "vocab": 1000, "parameters": 200_000, "weight_bytes": 400_000,
    "dtype": "bfloat16", "kv_dtype": "bfloat16", "tied_embeddings": False, "attention": "sdpa",
    "kv_bytes_per_token": 256, "kv_reserved_bytes": 1 << 20,
}  # fmt: skip


def scanned(trace: dict[str, Any]) -> Scan:
    return scan(io.BytesIO(json.dumps(trace).encode()))


def built(
    about: About, window: Window | None = None, trace: dict[str, Any] | None = None, **raw: Any
) -> dict[str, Any]:
    given = {"opened_ns": NOW, "closed_ns": NOW + 10**9, **raw}
    return blocks.build(
        window or Window(3, "every", NOW - 10**9, stable=True, weight_s=300.0),
        RawWindow(Path("7-3.json"), 7, "python", **given),
        about, Sampling("sample", 300.0, 4, 1, 0.003), scanned(trace or raws.usual()), [1, None],
    )  # fmt: skip


def full_about() -> About:
    log = StepLog()
    log.add(
        Step(NOW + i * 10**7, 10**6, 100, 100, i, 4, 4, 0, 0, 2, 0, 3 if i > 20 else 0, 9) for i in range(60)
    )  # fmt: skip
    snapshot = {
        "source": "vllm", "time_ns": NOW, "running": 3, "waiting": 0, "kv_used_share": 0.25, "preemptions": 1.0,
        "generated_tokens": 10.0, "prefilled_tokens": 20.0, "first_token_sum": 1.0, "first_token_count": 2.0,
        "inter_token_sum": 1.0, "inter_token_count": 2.0,
    }  # fmt: skip
    later = {name: value + 10 if isinstance(value, float) else value for name, value in snapshot.items()}
    gpu = {
        "name": "NVIDIA H200", "count": 1, "driver": "580.1", "util_gpu": 0.99, "throttle_reasons": ["sw_power_cap"],
        "throttle_shares": [0.25], "power_w": 612.5, "tensor_active": None, "other_processes": 0, "samples": 9,
        "seconds": 1.0,
    }  # fmt: skip
    process = {
        "pid": 7, "rank": 0, "world_size": 2, "torch": "2.13.0",
        "model": {**MODEL, "secret_sauce": "x", "path": "/home/x"},
        "engines": {"transformers": "5.24.0", "vllm": "0.33.0"}, "gpu": {"name": "H200", "memory_bytes": 150 << 30},
    }  # fmt: skip
    return About(
        process=process, steplog=log.summary(NOW + 10**9), overhead=log.overhead(NOW + 2 * 10**8, NOW + 10**9), gpu=gpu,
        service=between(snapshot, {**later, "time_ns": NOW + 10**9}), context_sum=1000,
    )  # fmt: skip


def test_the_reader_loses_nothing() -> None:
    about = full_about()
    assert about.steplog["steps"] == 60 and about.overhead["profiled_steps"] > 0
    block = built(about, open_ms=1.5, stop_ms=20.0, save_ms=30.0)
    read, sound = read_block(json.loads(json.dumps(block, allow_nan=False)))
    assert sound
    assert read == block
    assert set(block) == {"schema", "model", "gpu", "window", "sampling", "overhead", "service", "steplog"}


def test_every_section_says_what_was_given() -> None:
    block = built(full_about(), open_ms=1.5)
    assert block["model"] == {**MODEL, "kv_used_bytes": 256_000}
    assert block["gpu"]["name"] == "NVIDIA H200"  # what was measured goes before what the process says
    assert block["gpu"]["memory_bytes"] == 150 << 30
    assert "tensor_active" not in block["gpu"]
    assert block["window"] == {
        "number": 3, "recorder": "python", "reason": "every", "closed_by": "steps", "complete": True, "steps": 3,
        "unfinished_steps": 0, "requested_ns": NOW - 10**9, "opened_ns": NOW, "closed_ns": NOW + 10**9,
        "first_step_ns": raws.BASE_NS, "last_step_ns": raws.BASE_NS + 250_000, "stable_batch": True,
        "cold_start": False, "engine": "vllm", "engine_version": "0.33.0", "torch": "2.13.0", "rank": 0,
        "world_size": 2, "ranks_missing": [1, None], "pid_hash": blocks.process_hash(7),
    }  # fmt: skip
    assert block["sampling"] == {
        "mode": "sample", "trigger": "every", "every_s": 300.0, "weight_s": 300.0, "windows_taken": 4,
        "windows_dropped": 1, "duty_share": 0.003,
    }  # fmt: skip
    assert block["overhead"]["open_ms"] == 1.5 and "stop_ms" not in block["overhead"]


def test_what_is_unknown_is_not_there() -> None:
    block = built(About(), Window(1, "full", NOW), opened_ns=None, closed_ns=None)
    assert set(block) == {"schema", "window", "sampling"}
    assert not {"rank", "world_size", "stable_batch", "engine", "torch"} & set(block["window"])
    assert block["window"]["opened_ns"] == raws.BASE_NS - 10_000  # the trace's own span
    assert "kv_used_bytes" not in built(About(process={"model": {"name": "x"}}, context_sum=10))["model"]
    assert built(About(process={"model": {"kv_used_bytes": 5, "kv_bytes_per_token": 2}}, context_sum=10))["model"] == {
        "kv_used_bytes": 5, "kv_bytes_per_token": 2,
    }  # fmt: skip


def test_what_a_process_reports_cannot_do_harm() -> None:
    for process in (
        {"model": "x", "gpu": [1], "engines": 3, "rank": "0", "world_size": -2},
        {"model": {"name": ["a"] * 1000, "layers": 1 << 80, "dtype": {"a": 1}, "hidden": float("nan")}, "rank": True},
        {"model": {"name": "/home/someone/model", "architecture": "~/x", "quantization": "x" * 900}, "rank": 1 << 40},
        {"model": {"name": "\ud800"}, "engines": {"vllm": "/home/someone"}},
    ):
        block = built(About(process=process))
        text = json.dumps(block, allow_nan=False)
        assert "someone" not in text and len(text) < 3000
        assert "rank" not in block["window"]
        read, sound = read_block(json.loads(text))
        assert sound and read == block


def test_a_rank_that_only_torch_knows() -> None:
    trace = raws.facts(raws.ops(1), distributedInfo={"rank": 3, "world_size": 8})
    window = built(About(), trace=trace)["window"]
    assert (window["rank"], window["world_size"]) == (3, 8)


def test_cold_start_is_a_lone_first_prefill() -> None:
    def cold(*events: dict[str, Any]) -> bool | None:
        return blocks.cold_start(scanned(raws.facts([*events, *raws.ops(1)])))

    assert cold(raws.step("prefill", 0, 0.0)) is True
    assert cold(raws.step("prefill", 1, 0.0)) is False
    assert cold(raws.step("prefill", 0, 0.0), raws.step("decode", 1, 100.0)) is False
    assert cold(raws.step("decode", 0, 0.0)) is False
    assert cold(raws.step("prefill", 0, 0.0), raws.step("decode", 1, 100.0, args={"finished": False})) is False
    assert cold() is None


def test_processes_without_a_rank_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(pid: int, host: str) -> str:
        monkeypatch.setattr("socket.gethostname", lambda: host)
        block = blocks.build(
            Window(1, "full", NOW), RawWindow(Path("x"), pid, "python"), About(), Sampling(), scanned(raws.usual()), []
        )
        return str(block["window"]["pid_hash"])

    hashes = [of(pid, host) for host in ("node-1", "node-2") for pid in (7, 8)]
    assert len(set(hashes)) == 4 and all(re.fullmatch("[0-9a-f]{12}", one) for one in hashes)
    assert of(8, "node-1") == hashes[1], "the same in all windows"


def test_a_window_is_complete_when_nothing_cut_it() -> None:
    cut = raws.facts([raws.step("decode", 1, 0.0, args={"finished": False}), raws.step("decode", 0, 0.0)])
    assert built(About())["window"]["complete"] is True
    assert built(About(), closed_by="time")["window"]["complete"] is True
    assert built(About(), closed_by="flush")["window"]["complete"] is False
    assert built(About(), trace=cut)["window"]["complete"] is False


def test_the_manifest_keeps_what_is_known_of_a_process() -> None:
    facts = {
        "pid": 7, "ppid": 1, "python": "3.11.7", "forked": False, "torch": "2.13.0", "cuda": None, "rank": 1,
        "engines": {"vllm": "0.33.0"}, "hooks": ["vllm"], "model": MODEL, "environment": {"A": "b"}, "argv": ["x"],
        "failures": [{"where": "step", "count": 2, "error": "KeyError at steps.py:12"}],
    }  # fmt: skip
    kept = blocks.process_facts(facts)
    assert kept == {key: value for key, value in facts.items() if key not in ("environment", "argv", "cuda")}


def test_counters_without_a_gpu_leave_the_section_out(tmp_path: Path) -> None:
    counters = Counters(0.1, tmp_path / "counters.csv.gz")
    now = time.time_ns()
    assert "gpu" not in built(About(gpu=counters.between(now - 10**9, now)))
