"""What was launched once operations were taken no more is left out; what was queued before is kept, however late."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from traceanalyzer import read_trace
from traceanalyzer.trace.tables import Trace

BASE = 1_796_000_000_000_000_000
QUIET_US = 1000


def launch(at: float, correlation: int) -> dict[str, Any]:
    return {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at, "dur": 2,
            "args": {"correlation": correlation}}  # fmt: skip


def kernel(at: float, correlation: int | None = None, name: str = "k") -> dict[str, Any]:
    args = {"device": 0, "stream": 7} | ({} if correlation is None else {"correlation": correlation})
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at, "dur": 5, "args": args}


def read(folder: Path, *events: dict[str, Any], window: object = None, base: int | None = BASE) -> Trace:
    block = {"schema": 1, "window": {"quiet_ns": BASE + QUIET_US * 1000} if window is None else window}
    head = {"schemaVersion": 1, "traceanalyzer": block, **({} if base is None else {"baseTimeNanoseconds": base})}
    (folder / "t.json").write_text(json.dumps({**head, "traceEvents": list(events)}))
    return read_trace(folder / "t.json")


def left_out(trace: Trace) -> int:
    return sum(note.count for note in trace.quality if note.code == "after_window")


def starts(trace: Trace) -> list[int]:
    return [round(start / 1000) for start in trace.kernels["start_ns"]]


def test_the_launch_decides_not_when_the_kernel_ran(tmp_path: Path) -> None:
    trace = read(
        tmp_path, launch(900, 1), kernel(950, 1), launch(990, 2), kernel(5000, 2), launch(1010, 3), kernel(1020, 3)
    )
    assert starts(trace) == [950, 5000]
    assert [round(start / 1000) for start in trace.launches["start_ns"]] == [900, 990]
    assert left_out(trace) == 1


def test_a_graph_s_kernels_go_with_its_launch(tmp_path: Path) -> None:
    kernels = [kernel(1100 + 10 * at, 4) for at in range(5)]
    trace = read(tmp_path, launch(100, 1), kernel(110, 1), launch(1050, 4), *kernels)
    assert starts(trace) == [110] and left_out(trace) == 5


def test_a_kernel_without_a_launch_goes_by_its_own_time(tmp_path: Path) -> None:
    trace = read(tmp_path, kernel(10), kernel(999, 88), kernel(1500, 89), kernel(1600))
    assert starts(trace) == [10, 999] and left_out(trace) == 2


@pytest.mark.parametrize(
    "block",
    [
        {},
        {"quiet_ns": None},
        {"quiet_ns": "soon"},
        {"quiet_ns": True},
        {"quiet_ns": 5},
        {"quiet_ns": -1},
        {"closed_ns": BASE + QUIET_US * 1000},
    ],
)
def test_without_a_time_that_can_be_true_all_is_kept(tmp_path: Path, block: dict[str, Any]) -> None:
    trace = read(tmp_path, launch(900, 1), kernel(950, 1), launch(1010, 3), kernel(1020, 3), window=block)
    assert starts(trace) == [950, 1020] and len(trace.launches) == 2 and not left_out(trace)


def test_times_of_no_known_clock_are_left_alone(tmp_path: Path) -> None:
    trace = read(tmp_path, launch(900, 1), kernel(950, 1), launch(1010, 3), kernel(1020, 3), base=None)
    assert starts(trace) == [950, 1020] and not left_out(trace)


def test_a_run_on_the_cpu_keeps_its_operations(tmp_path: Path) -> None:
    operation = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1500, "dur": 5, "args": {}}
    assert len(read(tmp_path, operation).ops) == 1
