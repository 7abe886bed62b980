"""HTA through the adapter against HTA through its own loader, rounding off, on recorded traces; and reference values.

What could be wrong: where launches and kernels start in the same microsecond, HTA sorts them as they happen to lie, and
its queue lengths move by the last digits.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis import hta_loader as loader
from tests.conftest import SHARED
from traceanalyzer import read_trace
from traceanalyzer.analysis import hta
from traceanalyzer.analysis.pipeline import analyze

TOLERANCE_US = 0.02
"""HTA's times are floats of microseconds."""
UNREADABLE = {
    "broken-control-and-non-utf8.json": "JSONDecodeError",
    "broken-inf-nan.json": "JSONDecodeError",
    "mi300x-inductor-layer.json.gz": "TypeError",
    "odd-bom-crlf.json": "UnicodeError|JSONDecodeError",
    "odd-top-level-list.json": "AttributeError",
    "rtx4080-nanovllm-decode-60.json.zst": "ValueError",
}
"""Traces that the adapter answers for and HTA's loader dies on."""
NOTHING_LEFT = ("amd-tall-skinny-gemm-no-correlation.json.gz",)
"""Without correlation ids HTA's loader finds no GPU work."""
COARSE = ("v100-nanosecond-unit.pt.trace.json.gz",)
"""Times since the epoch in microseconds: a float of them holds quarters of a microsecond."""
NOT_ASKED = frozenset((*UNREADABLE, *NOTHING_LEFT, *COARSE))


def files() -> list[str]:
    """Every trace of the collection with GPU work that can be analysed."""
    folder = SHARED / "traces"
    if not folder.is_dir():
        return []
    listed = json.loads((folder / "expected.json").read_text())
    reference = json.loads((SHARED / "oracle" / "busy-idle.json").read_text())
    return sorted(name for name in listed if name in reference or name in NOT_ASKED)


@functools.cache
def adapter(path: Path) -> hta.DeviceFigures:
    found, notes = hta.ask([device.timeline for device in analyze([read_trace(path)]).devices])
    assert found is not None
    assert not notes
    (device,) = found.devices
    return device


@functools.cache
def loaded(path: Path) -> Any:
    return loader.load(path)


def test_the_collection_is_compared(traces: Path) -> None:
    assert len([name for name in files() if name not in NOT_ASKED]) >= 20


@pytest.mark.parametrize("name", [name for name in files() if name not in NOT_ASKED])
def test_figures_are_those_of_the_loader(traces: Path, name: str) -> None:
    ours, theirs = adapter(traces / name), loaded(traces / name)
    exact = loader.in_nanoseconds(theirs)
    times = ours.whole.temporal
    divided = [times.kernel_ns, times.idle_ns, times.compute_ns, times.non_compute_ns]
    assert [ns / 1e3 for ns in divided] == pytest.approx(loader.temporal(theirs), abs=TOLERANCE_US)
    causes = {(stream, name): ns for stream, of in ours.whole.idle_ns.items() for name, ns in of.items()}
    assert causes == pytest.approx(loader.idle(exact, hta.KERNEL_DELAY_NS), abs=1000 * TOLERANCE_US)
    floats = loader.idle(theirs, hta.KERNEL_DELAY_NS / 1e3)
    for stream, of in ours.whole.idle_ns.items():
        total = sum(time for (where, _), time in floats.items() if where == stream)
        assert sum(of.values()) / 1e3 == pytest.approx(total, abs=TOLERANCE_US)
    types = {name: ns for name, ns in loader.types(exact).items() if ns > 1000 * TOLERANCE_US}
    assert ours.whole.types_ns == pytest.approx(types, abs=1000 * TOLERANCE_US)
    if ours.whole.overlap_share is None:
        assert np.isnan(loader.overlap_percent(exact))
    else:
        assert 100 * ours.whole.overlap_share == pytest.approx(loader.overlap_percent(exact), abs=0.005)


@pytest.mark.parametrize("name", [name for name in files() if name not in NOT_ASKED])
def test_launches_are_those_of_the_loader(traces: Path, name: str) -> None:
    ours, theirs = adapter(traces / name), loaded(traces / name)
    if ours.launches is None:
        assert not ours.queues or not len(loader.launches(theirs))
        return
    stats = loader.launches(theirs)
    told, delay = ours.launches, stats["launch_delay"]
    assert told.count == len(stats)
    for ns, us in (
        (told.cpu_ns_mean, stats["cpu_duration"].mean()),
        (told.gpu_ns_mean, stats["gpu_duration"].mean()),
        (told.delay_ns_mean, delay.mean()),
        (told.delay_ns_p50, delay.quantile(0.5)),
        (told.delay_ns_p99, delay.quantile(0.99)),
    ):
        assert ns / 1e3 == pytest.approx(us, abs=TOLERANCE_US)
    queues, rows = loader.queues(theirs), len(ours.timeline.table)
    assert {queue.stream for queue in ours.queues} == set(queues)
    for queue in ours.queues:
        changes, mean, longest = queues[queue.stream]
        assert queue.coverage == pytest.approx(changes / 2 / rows)
        assert (queue.mean, queue.longest) == (pytest.approx(mean, rel=1e-3), pytest.approx(longest, rel=1e-3))


@pytest.mark.parametrize("name", sorted(UNREADABLE))
def test_what_the_loader_dies_on_is_answered(traces: Path, name: str) -> None:
    assert adapter(traces / name).whole.temporal.kernel_ns > 0
    with pytest.raises(Exception) as raised:
        loader.load(traces / name)
    assert type(raised.value).__name__ in UNREADABLE[name]


@pytest.mark.parametrize("name", COARSE)
def test_where_floats_are_coarse_the_sums_agree_to_what_they_hold(traces: Path, name: str) -> None:
    """Which side of a tie a gap falls on is then HTA's rounding error; the times together are not."""
    ours, theirs = adapter(traces / name), loaded(traces / name)
    times = ours.whole.temporal
    divided = [times.kernel_ns / 1e3, times.idle_ns / 1e3, times.compute_ns / 1e3, times.non_compute_ns / 1e3]
    assert divided == pytest.approx(loader.temporal(theirs), abs=0.25)


def reference() -> list[tuple[str, str, dict[str, Any]]]:
    path = SHARED / "oracle" / "busy-idle.json"
    listed = json.loads(path.read_text()) if path.is_file() else {}
    return [(name, device, told) for name, devices in listed.items() for device, told in devices.items()]


@pytest.mark.parametrize(
    ("name", "device", "told"), reference(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_span_and_idle_time_are_the_reference_values(
    traces: Path, name: str, device: str, told: dict[str, Any]
) -> None:
    found = adapter(traces / name)
    assert str(found.timeline.device.device) == device
    times = found.whole.temporal
    assert (times.kernel_ns, times.idle_ns) == (round(told["span_us"] * 1000), round(told["idle_us"] * 1000))


def test_a_graph_step_is_hardly_idle(traces: Path) -> None:
    """With its loader's rounding HTA says 4.26 %."""
    times = adapter(traces / "mi300x-vllm-decode-full-graph.json.gz").whole.temporal
    assert 100 * times.idle_ns / times.kernel_ns == pytest.approx(0.24, abs=0.005)


def test_overlapping_kernels_of_one_stream_are_no_negative_idle_time_of_the_device(traces: Path) -> None:
    """By stream HTA adds negative gaps; its temporal breakdown, like ours, unites the kernels."""
    found = adapter(traces / "b200-vllm-eager-prefill.json.gz")
    by_stream = sum(ns for of in found.whole.idle_ns.values() for ns in of.values())
    assert by_stream < found.whole.temporal.idle_ns
