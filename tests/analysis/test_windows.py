"""Several windows of one run as one trace: counts stay the same, and nothing reaches over the time between."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.trace import windowed
from traceanalyzer import analyze, read_trace, read_traces
from traceanalyzer.analysis.pipeline import Analysis
from traceanalyzer.analysis.pipeline import analyze as analysis_of
from traceanalyzer.errors import InputError
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.write import simulate

SCENARIO = Scenario(output=9, model="qwen2.5-0.5b")
CUTS = (3, 6)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (written,) = simulate(SCENARIO, tmp_path_factory.mktemp("whole") / "whole.json", passes)
    return Path(written.trace)


@pytest.fixture(scope="module")
def folder(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    windows = windowed.cut(json.loads(whole.read_text(encoding="utf-8")), CUTS)
    return windowed.recording(tmp_path_factory.mktemp("cut") / "recording", windows)


@pytest.fixture(scope="module")
def joined(folder: Path) -> Analysis:
    return analysis_of(read_traces([folder]))


@pytest.fixture(scope="module")
def alone(whole: Path) -> Analysis:
    return analysis_of([read_trace(whole)])


def kinds(analysis: Analysis) -> pd.Series:
    """Name, grid and duration of every kernel, however often each."""
    trace = analysis.traces[0]
    kernels = trace.kernels.assign(text=[trace.text(code) for code in trace.kernels["name"]])
    return kernels.groupby(["text", "grid_x", "duration_ns"]).size()


def test_nothing_is_lost_and_nothing_counts_twice(joined: Analysis, alone: Analysis) -> None:
    pd.testing.assert_series_equal(kinds(joined), kinds(alone))
    assert len(joined.traces[0].ops) == len(alone.traces[0].ops)
    assert joined.main.timeline.busy.length == alone.main.timeline.busy.length


def test_every_kernel_finds_the_launch_and_the_op_of_its_own_window(joined: Analysis, alone: Analysis) -> None:
    for analysis in (joined, alone):
        table, trace = analysis.main.timeline.table, analysis.traces[0]
        delay = table["start_ns"] - trace.launches["start_ns"].to_numpy()[table["launch"]]
        assert (table["launch"] >= 0).all()
        assert delay.between(0, 5_000_000).all()
    owned = [a.main.timeline.table.assign(has=a.main.timeline.table["op"] >= 0) for a in (joined, alone)]
    one, other = (table.groupby("category")["has"].sum() for table in owned)
    pd.testing.assert_series_equal(one, other)
    assert joined.decode_floor is not None and alone.decode_floor is not None
    assert joined.decode_floor.weight_bytes == alone.decode_floor.weight_bytes


def test_tables_are_in_the_order_that_readers_rely_on(joined: Analysis) -> None:
    trace = joined.traces[0]
    assert list(trace.strings) == sorted(trace.strings)
    for table in (trace.kernels, trace.launches, trace.annotations):
        assert table["start_ns"].is_monotonic_increasing
    for _, own in trace.ops.groupby("thread"):
        assert own["start_ns"].is_monotonic_increasing
    nested = trace.ops[trace.ops["parent"] >= 0]
    above = trace.ops.iloc[nested["parent"]]
    assert (above["thread"].to_numpy() == nested["thread"].to_numpy()).all()
    assert (above["start_ns"].to_numpy() <= nested["start_ns"].to_numpy()).all()


def test_the_time_between_windows_is_an_artefact_and_nobodys(joined: Analysis, alone: Analysis) -> None:
    line, ledger = joined.main.timeline, joined.main.ledger
    artefact = ledger.table[ledger.table["bucket"] == "idle_artefact"]
    assert artefact["phase"].tolist() == ["other"]
    assert artefact["ns"].sum() == line.unrecorded.length >= len(CUTS) * windowed.GAP_NS
    assert ledger.table["ns"].sum() == line.span_ns
    shares = {phase.phase: phase.time_share for phase in joined.main.phases}
    assert shares["prefill"] + shares["decode"] == pytest.approx(1.0, abs=0.001)
    for bucket in ("idle_launch", "idle_sync", "idle_host", "idle_latency"):
        assert ledger.total_ns(bucket) <= alone.main.ledger.total_ns(bucket)


def test_no_period_spans_two_windows(joined: Analysis, alone: Analysis) -> None:
    periods, usual = joined.main.timeline.steps["period_ns"], alone.main.timeline.steps["period_ns"]
    ends = [cut - 1 for cut in CUTS] + [len(periods) - 1]
    assert periods[ends].isna().all()
    rest = periods.drop(ends)
    assert rest.tolist() == usual[rest.index].tolist()


def test_figures_of_a_step_and_a_token_are_those_of_the_run(joined: Analysis, alone: Analysis) -> None:
    assert joined.request is not None and alone.request is not None
    assert joined.request == alone.request
    assert (joined.request.requests, joined.request.output_tokens) == (1, SCENARIO.output)
    rates = [{phase.phase: phase.tokens_per_s for phase in a.main.phases} for a in (joined, alone)]
    for phase in ("prefill", "decode"):
        assert rates[0][phase] == pytest.approx(rates[1][phase], rel=0.03)
    decodes = [next(phase for phase in a.main.phases if phase.phase == "decode") for a in (joined, alone)]
    assert decodes[0].steps == decodes[1].steps == SCENARIO.output - 1
    assert decodes[0].step_ns == decodes[1].step_ns
    assert decodes[0].bound.name == decodes[1].bound.name


def test_a_missed_step_leaves_the_length_of_the_request_open(whole: Path, tmp_path: Path) -> None:
    windows = windowed.cut(json.loads(whole.read_text(encoding="utf-8")), (3, 4, 6))
    found = analysis_of(read_traces([windowed.recording(tmp_path / "r", [windows[0], windows[2], windows[3]])]))
    assert found.request is not None
    assert (found.request.input_tokens, found.request.output_tokens) == (None, None)
    assert found.request.requests == 1
    decode = next(phase for phase in found.main.phases if phase.phase == "decode")
    assert decode.steps == SCENARIO.output - 2


def test_the_collectors_labels_are_named_first_and_are_sure(folder: Path) -> None:
    report = analyze(read_traces([folder]))
    assert all(step.evidence[:2] == ["collector", f"annotation ta.step[{step.phase}]"] for step in report.steps)
    assert {step.confidence for step in report.steps} == {0.99}


def test_labels_that_no_recorder_wrote_are_not_the_collectors(whole: Path) -> None:
    report = analyze([read_trace(whole)])
    assert not any("collector" in step.evidence for step in report.steps)


def numbered(whole: Path, numbers: list[int], **window: Any) -> list[Any]:
    trace = read_trace(whole)
    return [
        replace(trace, metadata=replace(trace.metadata, base_time_ns=index * 10**12, collector=block))
        for index, number in enumerate(numbers)
        if (block := windowed.block(number, window=window))
    ]


def test_windows_given_one_by_one_are_joined(whole: Path, alone: Analysis) -> None:
    found = analysis_of(numbered(whole, [4, 2]))
    assert len(found.traces) == 1
    assert len(found.traces[0].windows) == 2
    assert len(found.traces[0].kernels) == 2 * len(alone.traces[0].kernels)


@pytest.mark.parametrize("numbers", [[1, 1], [None, None]])
def test_traces_that_are_no_windows_of_one_rank_are_refused_as_before(whole: Path, numbers: list[Any]) -> None:
    with pytest.raises(InputError, match="which rank"):
        analysis_of(numbered(whole, numbers))


def test_windows_of_other_processes_are_not_joined(whole: Path) -> None:
    one, other = numbered(whole, [1, 2])
    other.metadata.collector["window"]["pid_hash"] = "ab"
    with pytest.raises(InputError, match="which rank"):
        analysis_of([one, other])


def test_what_the_step_log_of_a_copied_window_lacks_is_noted(whole: Path) -> None:
    log = {"steps": 90, "steps_overwritten": 26, "steps_beyond_log": 0}
    traces = [replace(trace, metadata=replace(trace.metadata, collector={**trace.metadata.collector, "steplog": log}))
              for trace in numbered(whole, [1, 2])]  # fmt: skip
    for given in (traces, traces[:1]):
        found = {note.code: note.count for note in analysis_of(given).quality}
        assert found["recording_steps_lost"] == 26, "once, as the last window's says it of the whole log"
        assert "recording_steplog_short" not in found


def test_a_window_inside_another_one_is_left_out(whole: Path, alone: Analysis) -> None:
    one, other = numbered(whole, [1, 2])
    found = analysis_of([one, replace(other, metadata=replace(other.metadata, base_time_ns=1_000_000))])
    assert len(found.traces[0].kernels) == len(alone.traces[0].kernels)
    assert [note.count for note in found.quality if note.code == "windows_overlap"] == [1]


def test_two_generates_are_two_requests(whole: Path) -> None:
    found = analysis_of(numbered(whole, [1, 2]))
    assert found.request is not None
    assert (found.request.requests, found.request.output_tokens) == (2, None)
    steps = {phase.phase: phase.steps for phase in found.main.phases}
    assert (steps["prefill"], steps["decode"]) == (2, 2 * (SCENARIO.output - 1))


def test_windows_of_two_ranks_are_joined_per_rank(tmp_path: Path) -> None:
    scenario = replace(SCENARIO, ranks=2, output=5)
    folder = tmp_path / "ranks"
    folder.mkdir()
    files = []
    alone = []
    for rank, written in enumerate(simulate(scenario, tmp_path / "tp.json", passes)):
        alone.append(read_trace(written.trace))
        document = json.loads(Path(written.trace).read_text(encoding="utf-8"))
        for number, window in enumerate(windowed.cut(document, (2,)), start=1):
            path = windowed.write(
                folder, windowed.with_small_ids(window), windowed.block(number, rank), rank, 11 + rank
            )
            files.append((path, number, rank, 11 + rank))
    windowed.manifest(folder, files, mode="sample")
    found, whole = analysis_of(read_traces([folder])), analysis_of(alone)
    assert [trace.metadata.rank for trace in found.traces] == [0, 1]
    assert [len(trace.windows) for trace in found.traces] == [2, 2]
    for joined, one in zip(found.devices, whole.devices, strict=True):
        assert joined.timeline.busy.length == one.timeline.busy.length
        assert [phase.steps for phase in joined.phases if phase.steps] == [1, 4]
    assert not {note.code for note in found.quality} & {"ranks_not_given", "windows_without_ranks"}
