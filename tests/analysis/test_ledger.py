"""The ledger against hand-made timelines and against an accountant that looks at every nanosecond."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.lines import BYTES_PER_NS, FLOPS_PER_NS, device, line
from traceanalyzer.analysis import idle, ledger
from traceanalyzer.analysis.timeline import UNRECORDED_AFTER_NS
from traceanalyzer.trace.tables import MEMCPY


def tensor(
    start: int, duration: int, flops_ns: float | None, bytes_ns: float | None = None, **more: Any
) -> dict[str, Any]:
    """A tensor-core kernel whose math takes `flops_ns` at the peak and whose traffic `bytes_ns` at full bandwidth."""
    return {
        "start": start, "duration": duration, "tensor_core": 1, "dtype": "bf16", "category": "gemm",
        "flops": np.nan if flops_ns is None else flops_ns * FLOPS_PER_NS,
        "bytes": np.nan if bytes_ns is None else bytes_ns * BYTES_PER_NS,
    } | more  # fmt: skip


def totals(book: ledger.Ledger) -> dict[str, int]:
    return {bucket: int(ns) for bucket, ns in book.table.groupby("bucket")["ns"].sum().items()}


def test_a_tensor_core_kernel_is_useful_then_memory_then_other() -> None:
    book = ledger.account(line([tensor(0, 100, 30, 70)]))
    assert totals(book) == {"tensor_core_useful": 30, "tensor_core_memory": 40, "tensor_core_other": 30}


def test_memory_time_is_capped_by_the_duration_and_useful_time_by_the_peak() -> None:
    book = ledger.account(line([tensor(0, 100, 130, 500)]))
    assert totals(book) == {"tensor_core_useful": 100}
    assert book.beats_peak == 1


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (tensor(0, 100, None, 70), {"tensor_core_unknown": 100}),
        (tensor(0, 100, 30, None), {"tensor_core_useful": 30, "tensor_core_unknown": 70}),
        (tensor(0, 100, 30, 70, tensor_core=-1), {"tensor_core_unknown": 100}),
        (tensor(0, 100, 30, 70, dtype=None), {"tensor_core_unknown": 100}),
    ],
)
def test_unknown_work_is_neither_useful_nor_idle(row: dict[str, Any], expected: dict[str, int]) -> None:
    assert totals(ledger.account(line([row]))) == expected


def test_overlapping_tensor_core_kernels_share_the_time() -> None:
    book = ledger.account(line([tensor(0, 100, 100, 0), tensor(0, 100, 20, 0)]))
    assert totals(book) == {"tensor_core_useful": 60, "tensor_core_other": 40}


def test_precedence_tensor_core_then_kernel_then_communication_then_copy() -> None:
    rows = [
        {"start": 0, "duration": 100, "kind": MEMCPY, "category": "memcpy"},
        {"start": 10, "duration": 80, "category": "comm"},
        {"start": 20, "duration": 60},
        tensor(30, 40, 40, 0),
    ]
    assert totals(ledger.account(line(rows))) == {
        "memcpy": 20, "communication": 20, "no_tensor_core": 20, "tensor_core_useful": 40,
    }  # fmt: skip


def test_idle_is_the_launch_when_the_call_had_not_returned() -> None:
    rows = [{"start": 0, "duration": 10}, {"start": 50, "duration": 10, "launch": 0}]
    assert totals(ledger.account(line(rows, launches=[(5, 20)])))["idle_launch"] == 40


def test_between_queued_kernels_it_is_latency_and_unknown_where_the_launch_was_not_recorded() -> None:
    queued = [{"start": 0, "duration": 10}, {"start": 15, "duration": 10, "launch": 0}]
    assert totals(ledger.account(line(queued, launches=[(2, 3)])))["idle_latency"] == 5
    later = [queued[0], queued[1] | {"start": 10 + 3 * idle.LAUNCH_LATENCY_NS}]
    found = totals(ledger.account(line(later, launches=[(2, 3)])))
    assert found["idle_latency"] == idle.LAUNCH_LATENCY_NS
    assert found["idle_unknown"] == 2 * idle.LAUNCH_LATENCY_NS
    lost = [{"start": 0, "duration": 10}, {"start": 15, "duration": 10}]
    assert totals(ledger.account(line(lost)))["idle_unknown"] == 5


def test_a_queued_kernel_that_starts_long_after_is_a_cut_recording() -> None:
    later = 10 + 2 * UNRECORDED_AFTER_NS
    rows = [{"start": 0, "duration": 10}, {"start": later, "duration": 10, "launch": 0}]
    assert totals(ledger.account(line(rows, launches=[(12, 3)])))["idle_artefact"] == later - 10


def test_a_wait_after_the_launch_is_not_the_launch_and_not_a_cut_recording() -> None:
    gap = 39_900_000
    called, returned = 37_000_000, 37_600_000
    rows = [{"start": 0, "duration": 10}, {"start": 10 + gap, "duration": 10, "launch": 0}]
    found = totals(ledger.account(line(rows, launches=[(10 + called, returned - called)])))
    launch = returned + idle.LAUNCH_LATENCY_NS
    assert found["idle_launch"] == launch
    assert found["idle_unknown"] == gap - launch
    assert "idle_artefact" not in found


def test_a_kernel_whose_launch_call_is_still_running_waits_for_it_but_a_copy_does_not() -> None:
    rows = [{"start": 0, "duration": 10}, {"start": 50, "duration": 10, "launch": 0}]
    assert totals(ledger.account(line(rows, launches=[(5, 40)])))["idle_launch"] == 40
    copy = [rows[0], rows[1] | {"kind": MEMCPY, "category": "memcpy"}]
    assert totals(ledger.account(line(copy, launches=[(5, 40)])))["idle_latency"] == 40


def test_the_period_of_a_step_skips_the_passes_inside_it() -> None:
    rows = [{"start": at, "duration": 5, "step": i} for i, at in enumerate((0, 8, 100))]
    steps = [
        {"phase": "decode", "start": 0, "end": 50},
        {"phase": "draft", "start": 8, "end": 13, "parent_step": 0},
        {"phase": "decode", "start": 100, "end": 105},
    ]
    period = line(rows, steps=steps).steps["period_ns"]
    assert period.tolist()[0] == 100
    assert period.isna().tolist() == [False, True, True]


def test_idle_takes_the_phase_it_lies_in_or_before() -> None:
    rows = [
        {"start": 0, "duration": 10},
        {"start": 20, "duration": 10, "step": 0},
        {"start": 40, "duration": 10, "step": 0},
        {"start": 60, "duration": 10, "step": 1},
        {"start": 80, "duration": 10},
    ]
    steps = [
        {"phase": "prefill", "start": 20, "end": 50},
        {"phase": "decode", "start": 60, "end": 70},
    ]
    book = ledger.account(line(rows, steps=steps))
    idle = book.table[book.table["bucket"] == "idle_unknown"].set_index("phase")["ns"].to_dict()
    assert idle == {"other": 20, "prefill": 10, "decode": 10}


def test_kernels_of_a_cut_step_are_other_beside_a_complete_one_and_keep_their_phase_alone() -> None:
    cut = {"phase": "decode", "start": 0, "end": 10, "complete": False}
    rows = [{"start": 0, "duration": 10, "step": 0}, {"start": 10, "duration": 10, "step": 1}]
    whole = ledger.account(line(rows, steps=[cut, {"phase": "decode", "start": 10, "end": 20}]))
    assert whole.table.set_index("phase")["ns"].to_dict() == {"decode": 10, "other": 10}
    alone = ledger.account(line(rows[:1], steps=[cut]))
    assert alone.table.set_index("phase")["ns"].to_dict() == {"decode": 10}


def test_a_gap_on_the_cpu_is_the_host() -> None:
    rows = [{"start": 0, "duration": 10}, {"start": 30, "duration": 10}]
    assert totals(ledger.account(line(rows, info=device("cpu")))) == {"no_tensor_core": 20, "idle_host": 20}


@st.composite
def timelines(draw: st.DrawFn) -> list[dict[str, Any]]:
    rows = []
    for _ in range(draw(st.integers(1, 10))):
        start, duration = draw(st.integers(0, 50)), draw(st.integers(1, 20))
        kind = draw(st.sampled_from(["tensor", "plain", "comm", "copy"]))
        flops = draw(st.one_of(st.none(), st.floats(0, 30)))
        size = draw(st.one_of(st.none(), st.floats(0, 30)))
        row: dict[str, Any] = {"start": start, "duration": duration}
        if kind == "tensor":
            row = tensor(start, duration, flops, size)
        elif kind == "comm":
            row["category"] = "comm"
        elif kind == "copy":
            row |= {"kind": MEMCPY, "category": "memcpy"}
        rows.append(row)
    return sorted(rows, key=lambda row: row["start"])


def accountant(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Look at every nanosecond: the same rules, written without interval arithmetic."""

    def rank(row: dict[str, Any]) -> int:
        if row.get("kind") == MEMCPY:
            return 3
        return {"gemm": 0, "comm": 2}.get(row.get("category", ""), 1)

    out: dict[str, float] = {}
    begin, end = rows[0]["start"], max(row["start"] + row["duration"] for row in rows)
    for t in range(begin, end):
        running = [row for row in rows if row["start"] <= t < row["start"] + row["duration"]]
        if not running:
            out["idle"] = out.get("idle", 0) + 1
            continue
        best = min(rank(row) for row in running)
        winners = [row for row in running if rank(row) == best]
        if best:
            name = ["", "no_tensor_core", "communication", "memcpy"][best]
            out[name] = out.get(name, 0) + 1
            continue
        for row in winners:
            part = 1 / len(winners) / row["duration"]
            useful, memory = row["flops"] / FLOPS_PER_NS, row["bytes"] / BYTES_PER_NS
            if np.isnan(useful):
                split = {"tensor_core_unknown": row["duration"]}
            else:
                useful = min(useful, row["duration"])
                waits = np.nan if np.isnan(memory) else max(min(memory, row["duration"]) - useful, 0)
                rest = row["duration"] - useful
                split = {"tensor_core_useful": useful}
                if np.isnan(waits):
                    split["tensor_core_unknown"] = rest
                else:
                    split |= {"tensor_core_memory": waits, "tensor_core_other": rest - waits}
            for name, value in split.items():
                out[name] = out.get(name, 0) + part * value
    return out


@settings(deadline=None)
@given(timelines())
def test_every_nanosecond_is_in_exactly_one_bucket(rows: list[dict[str, Any]]) -> None:
    timeline = line(rows)
    book = ledger.account(timeline)
    found = totals(book)
    assert sum(found.values()) == timeline.span_ns
    found["idle"] = found.pop("idle_unknown", 0)
    expected = accountant(rows)
    for bucket in set(found) | set(expected):
        assert found.get(bucket, 0) == pytest.approx(expected.get(bucket, 0), abs=1.0), bucket


def test_the_busy_time_of_a_step_is_a_union() -> None:
    rows = [
        {"start": 0, "duration": 10, "step": 0, "stream": 1},
        {"start": 5, "duration": 10, "step": 0, "stream": 2},
        {"start": 20, "duration": 10, "step": 1},
    ]
    steps = [{"phase": "decode", "start": 0, "end": 15}, {"phase": "decode", "start": 20, "end": 30}]
    assert line(rows, steps=steps).steps["busy_ns"].tolist() == [15, 10]
