"""Damaged and absurd traces through the whole command for minutes: a report or one line, never a traceback.

Every round starts from the CPU sample or a small GPU trace and breaks it, as bytes or event by event, from a seed that
the failure names. SOAK_SECONDS sets how long each test goes on.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from traceanalyzer.__main__ import main

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("SOAK_SECONDS", "120"))
SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "tiny-llama-cpu-batch4.json.gz"
HOSTILE: tuple[Any, ...] = (
    None, True, 0, -1, 2**31, 2**53 + 1, 2**63, -(2**63), 1e308, 5e-324, "", "0", "-1", "1e999", "nan",
    "</script>", "\0", "\u202e", "\ud800", "x" * 70_000,
    [], [[]], [[[1]]], {}, {"a": {}}, [1, "2", None], "[[4, 4], [4, 4]]", "cpu_op", "kernel",
)  # fmt: skip


def gpu_trace() -> dict[str, Any]:
    """A small GPU run: launches, kernels and a copy, joined by correlation."""
    events: list[dict[str, Any]] = []
    for step in range(6):
        for index in range(8):
            number, ts = step * 8 + index, 1000.0 + step * 500 + index * 50
            args = {"External id": number, "Input Dims": [[8, 64], [64, 64]], "Input type": ["c10::BFloat16"] * 2}
            events += [
                {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": ts, "dur": 30.5,
                 "args": args},
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": ts + 5,
                 "dur": 4, "args": {"correlation": number, "External id": number}},
                {"ph": "X", "cat": "kernel" if index else "gpu_memcpy", "name": f"nvjet_tst_{index}_gemm", "pid": 0,
                 "tid": 7, "ts": ts + 12, "dur": 20 + index,
                 "args": {"correlation": number, "device": 0, "stream": 7, "grid": [8, 1, 1], "block": [128, 1, 1]}},
            ]  # fmt: skip
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1,
                       "ts": 1000.0 + step * 500, "dur": 450})  # fmt: skip
    device = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000, "computeMajor": 9,
              "computeMinor": 0, "numSms": 132, "warpSize": 32}  # fmt: skip
    return {"schemaVersion": 1, "deviceProperties": [device], "traceEvents": events}


def rounds() -> Iterator[int]:
    end = time.monotonic() + SECONDS
    seed = 0
    while time.monotonic() < end:
        yield seed
        seed += 1


def check(arguments: list[str], capsys: pytest.CaptureFixture[str], seed: int) -> int:
    code = main(arguments)
    shown = capsys.readouterr()
    assert code in (0, 2), seed
    if code == 2:
        assert re.fullmatch(r"traceanalyzer: [^\n]+\n", shown.err), (seed, shown.err)
        assert shown.out == ""
    return code


def _flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 40)):
        data[rng.randrange(len(data))] = rng.randrange(256)


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _splice(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    piece = data[start : start + rng.randint(1, 5000)]
    where = rng.randrange(len(data))
    data[where:where] = piece


def _drop(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.randint(1, 5000)]


BREAKERS: tuple[Callable[[bytearray, random.Random], None], ...] = (_flip, _cut, _splice, _drop)


def test_broken_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = SAMPLE.read_bytes()
    sources = [packed, gzip.decompress(packed)[:400_000], json.dumps(gpu_trace()).encode()]
    codes = []
    for seed in rounds():
        rng = random.Random(seed)
        data = bytearray(rng.choice(sources))
        for _ in range(rng.randint(1, 3)):
            if data:
                rng.choice(BREAKERS)(data, rng)
        path = tmp_path / "trace.json"
        path.write_bytes(data)
        codes.append(check(["report", str(path), "--json", "-"], capsys, seed))
    assert {0, 2} <= set(codes)


def _absurd(trace: dict[str, Any], rng: random.Random) -> None:
    events = trace["traceEvents"]
    for _ in range(rng.randint(1, 30)):
        event = rng.choice(events)
        if not isinstance(event, dict):
            continue
        place = event["args"] if rng.random() < 0.5 and isinstance(event.get("args"), dict) else event
        if not place:
            continue
        key = rng.choice(sorted(place))
        match rng.randrange(4):
            case 0:
                del place[key]
            case 1:
                place[key] = rng.choice(HOSTILE)
            case 2:
                other = rng.choice(events)
                place[key] = other.get(key) if isinstance(other, dict) else other
            case 3:
                events.insert(rng.randrange(len(events)), rng.choice([event, *HOSTILE]))
    if rng.random() < 0.3:
        key = rng.choice(["deviceProperties", "baseTimeNanoseconds", "distributedInfo", "schemaVersion"])
        trace[key] = rng.choice(HOSTILE)
    if rng.random() < 0.2 and isinstance(trace.get("deviceProperties"), list) and trace["deviceProperties"]:
        properties = trace["deviceProperties"][0]
        properties[rng.choice(sorted(properties))] = rng.choice(HOSTILE)


def test_absurd_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cpu = json.loads(gzip.decompress(SAMPLE.read_bytes()))
    cpu["traceEvents"] = cpu["traceEvents"][:1500]
    sources = [json.dumps(cpu), json.dumps(gpu_trace())]
    outputs = [tmp_path / f"out.{kind}" for kind in ("html", "json", "md")]
    codes = []
    for seed in rounds():
        rng = random.Random(seed)
        trace = json.loads(rng.choice(sources))
        _absurd(trace, rng)
        path = tmp_path / "trace.json"
        path.write_text(json.dumps(trace))
        arguments = ["report", str(path)]
        if seed % 10 == 0:
            arguments += ["-o", str(outputs[0]), "--json", str(outputs[1]), "--markdown", str(outputs[2]), "--force"]
        else:
            arguments += ["--json", "-"]
        codes.append(check(arguments, capsys, seed))
    assert 0 in codes
