"""Holistic Trace Analysis through the adapter, on traces whose answers are worked out by hand."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.analysis.recorded import GPU, Recording
from traceanalyzer.analysis import hta
from traceanalyzer.analysis.pipeline import analyze
from traceanalyzer.analysis.timeline import Timeline
from traceanalyzer.trace.tables import MEMCPY, DeviceProperties

ROOT = Path(__file__).resolve().parents[2]
SECOND = DeviceProperties(1, "NVIDIA H100 80GB HBM3", 85_000_000_000, 9, 0, 132, 32)


def lines(recording: Recording) -> list[Timeline]:
    return [device.timeline for device in analyze([recording.trace()]).devices]


def asked(recording: Recording) -> hta.Figures:
    found, notes = hta.ask(lines(recording))
    assert found is not None
    assert not notes
    return found


def launched(recording: Recording, name: str, called: int, start: int, duration: int, **more: object) -> None:
    """A kernel and its launch call, which takes 1 ns."""
    number = 100 + len(recording.rows["kernels"])
    call = "cudaMemcpyAsync" if more.get("kind") == MEMCPY else "cudaLaunchKernel"
    recording.launch(call, called, number)
    recording.kernel(name, start, duration, number, **more)


def planted() -> Recording:
    """Stream 7: 10 us late launch, 5 us and 40 us gaps with the work queued; one copy at the end."""
    run = Recording()
    launched(run, "gemm", 0, 1_000, 9_000)  # to 10,000
    launched(run, "gemm", 15_000, 20_000, 5_000)  # host: 10,000; to 25,000
    launched(run, "norm", 16_000, 30_000, 10_000)  # queued: 5,000; to 40,000
    launched(run, "Memcpy DtoH (Device -> Pageable)", 17_000, 80_000, 2_000, kind=MEMCPY)  # queued, but 40,000
    return run


def test_the_breakdowns_are_what_was_planted() -> None:
    (device,) = asked(planted()).devices
    assert device.whole.temporal == hta.Temporal(
        kernel_ns=81_000, idle_ns=55_000, compute_ns=24_000, non_compute_ns=2_000
    )
    assert device.whole.idle_ns == {7: {"host_wait": 10_000, "kernel_wait": 5_000, "other": 40_000}}
    assert device.whole.types_ns == {"COMPUTATION": 24_000, "MEMORY": 2_000}
    assert device.whole.overlap_share is None


def test_launches_and_queue_are_what_was_planted() -> None:
    """Delays from the call's return to the start: 999, 4,999, 13,999 and 62,999 ns. At most three wait at once."""
    (device,) = asked(planted()).devices
    assert device.launches is not None
    assert (device.launches.count, device.launches.coverage, device.launches.cpu_ns_mean) == (4, 1.0, 1.0)
    assert device.launches.gpu_ns_mean == 6_500
    assert device.launches.delay_ns_mean == pytest.approx((999 + 4_999 + 13_999 + 62_999) / 4)
    (queue,) = device.queues
    assert (queue.stream, queue.coverage, queue.longest) == (7, 1.0, 3.0)
    assert queue.mean == pytest.approx((1 + 0 + 1 + 2 + 3 + 2 + 1 + 0) / 8)


def test_a_kernel_launched_before_the_window_lowers_the_coverage() -> None:
    run = planted()
    run.kernel("gemm", 90_000, 1_000, 999)
    (device,) = asked(run).devices
    assert device.launches is not None
    assert (device.launches.count, device.launches.coverage) == (4, 0.8)
    assert device.queues[0].coverage == 0.8


def test_communication_during_which_computation_runs() -> None:
    """Of 20 us of communication, 5 run beside a computation."""
    run = Recording()
    launched(run, "ncclDevKernel_AllReduce", 0, 10_000, 20_000, stream=13)
    launched(run, "gemm", 1, 25_000, 30_000)
    (device,) = asked(run).devices
    assert device.whole.overlap_share == 0.25
    assert device.whole.types_ns == {
        "COMMUNICATION": 15_000, "COMPUTATION": 25_000, "COMPUTATION overlapping COMMUNICATION": 5_000,
    }  # fmt: skip


def test_two_devices_with_the_same_stream_are_two() -> None:
    """Together they would never be idle; each is for half of its time."""
    run = Recording(devices=(GPU, SECOND))
    for turn in range(10):
        launched(run, "gemm", 0, turn * 20_000, 10_000, device=turn % 2)
    found = asked(run).devices
    assert [device.timeline.device.device for device in found] == [0, 1]
    assert [device.whole.temporal.kernel_ns for device in found] == [170_000, 170_000]
    assert [device.whole.temporal.idle_ns for device in found] == [120_000, 120_000]


def test_the_pieces_of_the_phases_and_the_gaps_between_them_are_the_whole(traces: Path) -> None:
    from traceanalyzer import read_trace

    found, _ = hta.ask([d.timeline for d in analyze([read_trace(traces / "h100-hf-qwen1.5-forward.json.gz")]).devices])
    assert found is not None
    (device,) = found.devices
    assert [(scope.phase, scope.pieces) for scope in device.phases] == [("prefill", 1), ("other", 1)]
    table = device.timeline.table
    (cut,) = [i for i in range(1, len(table)) if table["phase"].iloc[i] != table["phase"].iloc[i - 1]]
    between = int(table["start_ns"].iloc[cut] - (table["start_ns"] + table["duration_ns"]).iloc[:cut].max())
    assert between > 0
    for name in ("idle_ns", "kernel_ns"):
        parts = sum(getattr(scope.temporal, name) for scope in device.phases)
        assert getattr(device.whole.temporal, name) == parts + between
    for name in ("compute_ns", "non_compute_ns"):
        assert getattr(device.whole.temporal, name) == sum(getattr(scope.temporal, name) for scope in device.phases)


def test_a_phase_in_many_pieces_is_added_up_and_too_many_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = lines(planted())
    line.table["phase"] = ["decode", "prefill", "decode", "decode"]
    found, _ = hta.ask([line])
    assert found is not None
    prefill, decode = found.devices[0].phases
    assert (prefill.phase, prefill.pieces, prefill.temporal) == ("prefill", 1, hta.Temporal(5_000, 0, 5_000, 0))
    assert (decode.phase, decode.pieces) == ("decode", 2)
    assert decode.temporal == hta.Temporal(9_000 + 52_000, 40_000, 19_000, 2_000)
    assert decode.idle_ns == {7: {"other": 40_000}}
    monkeypatch.setattr(hta, "MOST_PIECES", 2)
    found, _ = hta.ask([line])
    assert found is not None
    assert (found.devices[0].phases, found.devices[0].pieces_omitted) == ((), 3)
    assert found.devices[0].whole.temporal.kernel_ns == 81_000


def test_a_graph_has_no_launch_statistics() -> None:
    run = planted()
    run.launch("cudaGraphLaunch", 85_000, 500)
    for turn in range(3):
        run.kernel("gemm", 90_000 + 2_000 * turn, 1_000, 500)
    (device,) = asked(run).devices
    assert device.launches is None
    assert device.queues == ()
    assert device.whole.temporal.kernel_ns == 94_000


@pytest.mark.parametrize(
    "error",
    [AssertionError, AttributeError, IndexError, KeyError, MemoryError, TypeError, ValueError, ZeroDivisionError],
)
def test_a_failure_is_a_note_and_no_figure(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    def fail(*_: object, **__: object) -> None:
        raise error("of HTA")

    monkeypatch.setattr(BreakdownAnalysis, "get_idle_time_breakdown", fail)
    found, notes = hta.ask(lines(planted()))
    assert found is None
    assert [(note.code, note.severity, note.detail) for note in notes] == [("hta_failed", "info", error.__name__)]


def test_without_the_package_there_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hta.common.trace", None)
    found, notes = hta.ask(lines(planted()))
    assert found is None
    assert [(note.code, note.detail) for note in notes] == [("hta_failed", "ModuleNotFoundError")]


def test_a_large_trace_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hta, "MOST_ROWS", 3)
    found, notes = hta.ask(lines(planted()))
    assert found is None
    assert [(note.code, note.detail) for note in notes] == [("hta_left_out", "4 activities on 1 stream")]


def test_more_streams_than_it_can_loop_over_are_left_out() -> None:
    run = Recording()
    for stream in range(hta.MOST_STREAMS + 1):
        launched(run, "gemm", 0, 1_000, 100, stream=stream)
    found, notes = hta.ask(lines(run))
    assert found is None
    assert [note.code for note in notes] == ["hta_left_out"]


def test_nothing_is_printed_logged_or_warned_and_nothing_stays_changed(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    log, filters = logging.getLogger("hta"), list(warnings.filters)
    before = log.level
    with caplog.at_level(logging.DEBUG, logger="hta"), warnings.catch_warnings(record=True) as warned:
        assert asked(planted()).source.split()[0] in ("HolisticTraceAnalysis", "traceinsight")
    assert (capfd.readouterr(), caplog.records, warned) == (("", ""), [], [])
    assert log.level == before
    assert list(warnings.filters) == filters


def test_ids_that_repeat_a_thousand_times_multiply_nothing() -> None:
    """Joined as they are, two thousand calls and two thousand kernels of one id would be four million rows."""
    run = Recording()
    for turn in range(2_000):
        run.launch("cudaLaunchKernel", turn, 5)
        run.kernel("gemm", 10_000 + 10 * turn, 5, 5)
    (device,) = asked(run).devices
    assert device.whole.temporal == hta.Temporal(19_995, 9_995, 10_000, 0)


def test_ids_that_are_none_link_nothing() -> None:
    run = Recording()
    for turn in range(3):
        run.launch("cudaLaunchKernel", 0, 0)
        run.kernel("gemm", 10_000 + 10_000 * turn, 5_000, 0)
    (device,) = asked(run).devices
    assert device.whole.idle_ns == {7: {"kernel_wait": 10_000, "other": 0}}
    assert device.launches is None


def test_a_cpu_run_asks_nothing(samples: Callable[[str], Timeline]) -> None:
    assert hta.ask([samples("tiny-llama-cpu")]) == (None, ())


@pytest.fixture
def samples() -> Callable[[str], Timeline]:
    from traceanalyzer import read_trace

    return lambda name: analyze([read_trace(ROOT / "samples" / f"{name}.json.gz")]).main.timeline


def test_one_module_imports_it() -> None:
    importers = set()
    for path in sorted((ROOT / "traceanalyzer").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            if any(name.split(".")[0] == "hta" for name in names):
                importers.add(path.relative_to(ROOT).as_posix())
    assert importers == {"traceanalyzer/analysis/hta.py"}


@pytest.mark.parametrize(
    "code",
    [
        "from traceanalyzer.__main__ import main; main(['--help'])",
        "from traceanalyzer.__main__ import main; main(['gpus'])",
        "from traceanalyzer.__main__ import main; main(['collect', '--help'])",
        "from traceanalyzer.__main__ import main; main(['upload', '--help'])",
        "import traceanalyzer.analysis.pipeline, traceanalyzer.report.build",
        "import traceanalyzer as t; t.analyze([t.read_trace('samples/tiny-llama-cpu.json.gz')])",
    ],
)
def test_only_a_report_on_a_gpu_pays_for_it(code: str) -> None:
    told = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\n"
    told += "print([name for name in ('hta', 'plotly', 'networkx') if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (done.returncode, done.stderr.strip()) == (0, "[]"), done.stderr
