"""Which Python frames are kept, and what of their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from traceanalyzer import read_trace
from traceanalyzer.trace import frames
from traceanalyzer.trace.tables import Trace
from traceanalyzer.trace.windows import joined


def frame(name: str, dur: object, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "python_function", "name": name, "pid": 1, "tid": 2, "ts": 10, "dur": dur,
            "args": {"Python id": 1}, **more}  # fmt: skip


def read(folder: Path, *events: dict[str, Any], name: str = "t.json") -> Trace:
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 0, "dur": 5, "args": {}}
    (folder / name).write_text(json.dumps({"schemaVersion": 1, "traceEvents": [kernel, *events]}))
    return read_trace(folder / name)


def names(trace: Trace) -> list[str]:
    return [trace.text(int(code)) for code in trace.frames["name"]]


@pytest.mark.parametrize(
    ("dur", "kept"),
    [
        (100, 1),
        (99.999, 0),
        (100.0, 1),
        (1e3, 1),
        ("250.5", 1),
        ("99", 0),
        (None, 0),
        (-500, 0),
        ([100], 0),
        (12345.678, 1),
    ],
)
def test_frames_of_a_hundred_microseconds_are_kept(tmp_path: Path, dur: object, kept: int) -> None:
    assert len(read(tmp_path, frame("f", dur)).frames) == kept


def test_of_a_file_only_the_base_name_is_kept(tmp_path: Path) -> None:
    recorded = [
        "/home/planted-user/run/gen.py(12): step", "C:\\Users\\planted-user\\gen.py(3): step",
        "planted-user/secret/gen.py(7): <lambda>", "torch/nn/modules/module.py(1779): _call_impl",
        "<built-in method item of Tensor object at 0x7f00aa12>", "nn.Module: LlamaMLP_3",
        "<built-in function open of /home/planted-user/x>",
    ]  # fmt: skip
    trace = read(tmp_path, *(frame(name, 500 + at) for at, name in enumerate(recorded)))
    assert sorted(names(trace)) == [
        "<built-in function open of x>", "<built-in method item of Tensor object>",
        "gen.py(12): step", "gen.py(3): step", "gen.py(7): <lambda>",
        "nn.Module: LlamaMLP_3", "torch/module.py(1779): _call_impl",
    ]  # fmt: skip
    assert "planted-user" not in "".join(trace.strings)


def test_frames_are_in_order_of_thread_and_nesting(tmp_path: Path) -> None:
    inner, outer, other = frame("in", 200, ts=20), frame("out", 400), frame("other", 300, tid=1, ts=50)
    table = read(tmp_path, inner, outer, other).frames
    assert table["thread"].is_monotonic_increasing
    assert table["duration_ns"].tolist() == [300_000, 400_000, 200_000]


def test_a_file_of_endless_frames_is_kept_in_part_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MOST", 3)
    trace = read(tmp_path, *(frame("f", 500, ts=at) for at in range(10)))
    assert len(trace.frames) == 3
    assert [(note.code, note.count) for note in trace.quality if note.code == "frames_left_out"] == [
        ("frames_left_out", 7)
    ]


def test_frames_of_an_odd_kind_hurt_nobody(tmp_path: Path) -> None:
    odd = [frame("b", 500, ph="B"), frame("n", 500, ts=None), frame("p", 500, pid=[1]), frame(7, 500)]  # type: ignore[arg-type]
    trace = read(tmp_path, *odd)
    assert len(trace.kernels) == 1
    assert sorted(names(trace)) == ["", "p"]


def test_windows_keep_their_frames(tmp_path: Path) -> None:
    one = read(tmp_path, frame("a", 500))
    two = read(tmp_path, frame("b", 700, ts=5_000), name="u.json")
    moved = two.kernels.assign(start_ns=4_000_000)
    assert names(joined([one, type(two)(**{**vars(two), "kernels": moved})])) == ["a", "b"]
