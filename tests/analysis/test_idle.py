"""Causes of idle time on hand-made gaps and on real traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.analysis.lines import line
from traceanalyzer import read_trace
from traceanalyzer.analysis import idle, pipeline
from traceanalyzer.analysis.idle.host import LONG_PYTHON_NS
from traceanalyzer.analysis.launches import launch_stats
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.trace.tables import MISSING

US = 1_000
STEPS = [{"phase": "decode", "start": 0, "end": 200 * US}, {"phase": "decode", "start": 900 * US, "end": 910 * US}]


def with_host(
    built: Timeline,
    calls: list[tuple[str, int, int]] = (),  # type: ignore[assignment]
    ops: list[tuple[str, int, int]] = (),  # type: ignore[assignment]
    frames: list[tuple[str, int, int]] = (),  # type: ignore[assignment]
) -> Timeline:
    """The same with what the one host thread did: more calls, ops and frames as (name, start, duration)."""
    trace = built.trace
    strings = [*trace.strings, *(name for name, _, _ in (*calls, *ops, *frames))]
    code = {name: len(strings) - 1 - strings[::-1].index(name) for name in strings}

    def rows(events: list[tuple[str, int, int]], columns: pd.DataFrame) -> pd.DataFrame:
        given = {"name": [code[name] for name, _, _ in events], "thread": 0, "start_ns": [at for _, at, _ in events],
                 "duration_ns": [ns for _, _, ns in events]}  # fmt: skip
        made = pd.DataFrame(given).reindex(columns=columns.columns, fill_value=MISSING)
        return made.astype(columns.dtypes.to_dict())

    launches = pd.concat([trace.launches, rows(list(calls), trace.launches)], ignore_index=True)
    changed = replace(trace, strings=tuple(strings), launches=launches, ops=rows(list(ops), trace.ops),
                      frames=rows(list(frames), trace.frames))  # fmt: skip
    return replace(built, trace=changed)


def gap_of(us: int, between_steps: bool = False, returned_us: int = 2) -> Timeline:
    """Two kernels with a gap of so many us; the second one's call began 5 us before it started."""
    start = 100 * US + us * US
    rows = [
        {"start": 0, "duration": 100 * US, "step": 0},
        {"start": start, "duration": 10 * US, "step": 1 if between_steps else 0, "launch": 0},
    ]
    return line(rows, steps=STEPS, launches=[(start - 5 * US, returned_us * US)])


def causes(built: Timeline) -> dict[str, int]:
    table = idle.divide(built).table()
    assert table["ns"].sum() == built.span_ns - built.busy.length
    return {str(cause): int(ns) for cause, ns in table.groupby("cause")["ns"].sum().items()}


def test_a_collective_of_the_host_is_waiting_for_another_rank() -> None:
    built = with_host(gap_of(500, between_steps=True), ops=[("gloo:all_reduce", 150 * US, 300 * US)])
    assert causes(built) == {"wait_rank": 300 * US, "host": 195 * US, "launch": 5 * US}


def test_a_wait_an_allocation_and_silence_share_a_gap_between_two_steps() -> None:
    calls = [("cudaStreamSynchronize", 90 * US, 20 * US), ("cudaMalloc", 200 * US, 50 * US)]
    built = with_host(gap_of(300, between_steps=True), calls=calls)
    assert causes(built) == {"sync": 10 * US, "alloc": 50 * US, "host": 235 * US, "launch": 5 * US}


def test_python_between_two_ops_is_launching_until_it_is_long() -> None:
    short, long = LONG_PYTHON_NS // US, LONG_PYTHON_NS // US + 100
    before = [("aten::mul", 90 * US, 10 * US)]
    assert causes(with_host(gap_of(short), ops=before)) == {"launch": short * US}
    found = causes(with_host(gap_of(long), ops=before))
    assert found == {"host_in_step": (long - 5) * US, "launch": 5 * US}


def test_a_queue_that_is_waited_on_between_steps_is_no_work() -> None:
    frames = [("queue.py(154): get", 150 * US, 200 * US), ("engine.py(9): loop", 0, 700 * US)]
    built = with_host(gap_of(500, between_steps=True), frames=frames)
    assert causes(built) == {"wait_input": 200 * US, "host": 295 * US, "launch": 5 * US}
    rows = idle.culprits(built, idle.divide(built)).set_index("cause")
    assert rows.loc["host", "frame"] == "engine.py(9): loop"


def test_the_profiler_s_own_work_is_no_idleness() -> None:
    """Before the call and inside it; and no longer than the gap."""
    built = gap_of(500, returned_us=200)
    call = 100 * US + 495 * US
    frames = [("Buffer Flush", 50 * US, 150 * US), ("Activity Buffer Request", call + 1 * US, 190 * US)]
    assert causes(with_host(built, frames=frames)) == {"artefact": 104 * US, "host_in_step": 395 * US, "launch": US}
    own = [("Lazy Function Loading", 50 * US, 150 * US)]
    assert causes(with_host(built, frames=own)) == {"launch": 500 * US}


def test_culprits_beyond_the_first_five_are_one_row() -> None:
    rows: list[dict[str, Any]] = [{"start": 0, "duration": 10 * US, "step": 0}]
    launches, ops = [], []
    for number in range(8):
        start = 10 * US + (number + 1) * 500 * US
        launches.append((start - 5 * US, 2 * US))
        ops.append((f"aten::op{number}", rows[-1]["start"] + 20 * US, 1 * US))
        rows.append({"start": start, "duration": 10 * US, "step": number + 1, "launch": number})
    steps = [{"phase": "decode", "start": row["start"], "end": row["start"] + 10 * US} for row in rows]
    built = with_host(line(rows, steps=steps, launches=launches), ops=ops)
    found = idle.culprits(built, idle.divide(built))
    host = found[found["cause"] == "host"]
    assert sorted(host["others"]) == [0] * 5 + [3]
    assert found["ns"].sum() == built.span_ns - built.busy.length


def test_kernels_before_their_launch_are_told() -> None:
    rows = [{"start": 0, "duration": 10}, {"start": 50 * US, "duration": 10, "launch": 0}]
    built = line(rows, launches=[(60 * US, 2 * US)])
    (note,) = idle.notes([(built, idle.divide(built))])
    assert (note.code, note.count, note.detail) == ("kernels_before_launch", 1, "10")


def test_launch_statistics_of_a_step() -> None:
    starts = (0, 20 * US, 30 * US, 60 * US)
    rows = [
        {"start": at, "duration": 4 * US if number else 10 * US, "step": 0, "launch": number}
        for number, at in enumerate(starts)
    ]
    calls = [(-8 * US, 2 * US), (-4 * US, 2 * US), (0, 2 * US), (50 * US, 4 * US)]
    steps = [{"phase": "decode", "start": 0, "end": 64 * US}]
    built = with_host(line(rows, steps=steps, launches=calls), ops=[("aten::item", 40 * US, 3 * US)])
    stats = launch_stats(built, "decode")
    assert stats is not None
    assert (stats.kernels, stats.calls, stats.graph_calls, stats.known_share) == (4.0, 4.0, 0.0, 1.0)
    assert stats.call_ns == 2.5 * US
    assert stats.cost_ns == pytest.approx(58 * US / 3)
    assert (stats.queue_median, stats.queue_empty_share) == (0.5, 0.5)  # one, one, none, none
    assert (stats.short_share, stats.short_time_share) == (0.75, pytest.approx(12 / 22))
    assert [(read.op, read.per_step, read.ns_per_step) for read in stats.reads] == [("aten::item", 1.0, 3 * US)]


@pytest.fixture(scope="module")
def analysed(traces: Path) -> dict[str, pipeline.Analysis]:
    names = ("b200-vllm-eager-prefill", "mi300x-vllm-decode-full-graph", "mi300x-sglang-qwen3-8b-prefill",
             "h100-hf-qwen1.5-forward")  # fmt: skip
    return {name: pipeline.analyze([read_trace(traces / f"{name}.json.gz")]) for name in names}


def test_no_gap_of_a_real_trace_is_negative_or_counted_twice(analysed: dict[str, pipeline.Analysis]) -> None:
    for analysis in analysed.values():
        line_of, divided = analysis.main.timeline, analysis.main.ledger.idle
        assert (divided.length > 0).all()
        assert all((ns >= 0).all() for ns in divided.parts.values())
        assert sum(int(ns.sum()) for ns in divided.parts.values()) == line_of.span_ns - line_of.busy.length
        assert idle.culprits(line_of, divided)["ns"].sum() == line_of.span_ns - line_of.busy.length


def test_what_real_traces_are_known_to_hold(analysed: dict[str, pipeline.Analysis]) -> None:
    graph = analysed["mi300x-vllm-decode-full-graph"].main
    assert graph.ledger.group_ns("idle") / graph.timeline.span_ns == pytest.approx(0.0024, abs=5e-5)
    hole = analysed["mi300x-sglang-qwen3-8b-prefill"].main.ledger.idle.parts["artefact"]
    assert sorted(hole)[-1] == pytest.approx(493_280_000, abs=10_000)
    codes = {note.code for note in analysed["h100-hf-qwen1.5-forward"].quality}
    assert {"gaps_without_launch", "kernels_without_launch"} <= codes
    h100 = analysed["h100-hf-qwen1.5-forward"].main
    rows = idle.culprits(h100.timeline, h100.ledger.idle)
    waited = rows[rows["cause"] == "sync_restart"].iloc[0]
    assert (waited["op"], waited["call"]) == ("aten::is_nonzero", "cudaStreamSynchronize")
    assert waited["frame"] == "modeling_attn_mask_utils.py(243): _ignore_causal_mask_sdpa"
