"""What the page calls recorded, and what it takes savings off: the decode phase as measured, not a prediction."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.report import factory
from traceanalyzer.report import document as doc
from traceanalyzer.report.views import batching as view_module
from traceanalyzer.report.views.batching import batching_view
from traceanalyzer.report.views.what_if import changes_view

HALF = doc.Sensitivity(compute_2x=None, bandwidth_2x=0.5, launches_free=None, weights_half=None, kv_half=None)


def decode(**changes: Any) -> list[doc.Phase]:
    """The phases of the factory's run, with changes to its decode row."""
    return [row.model_copy(update=changes) if row.phase == "decode" else row for row in factory.gpu_generation().phases]


def rings(monkeypatch: pytest.MonkeyPatch, report: doc.Report) -> tuple[list[dict[str, float]], list[Any]]:
    """Where the chart rings the recorded batch, and the domains of its axes."""
    charts: list[dict[str, Any]] = []
    original = view_module.svg_of

    def kept(spec: dict[str, Any], said: str) -> str:
        charts.append(json.loads(json.dumps(spec)))
        return original(spec, said)

    monkeypatch.setattr(view_module, "svg_of", kept)
    assert batching_view(report) is not None
    (chart,) = charts
    found = [layer["data"]["values"][0] for layer in chart["layer"] if layer["mark"].get("size") == 190]
    return found, [chart["encoding"][axis]["scale"]["domain"] for axis in "xy"]


def test_the_recorded_batch_is_the_measured_one_between_two_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """2.67 sequences at 119 tokens/s were measured; three at another rate are a prediction."""
    report = factory.gpu_generation(phases=decode(sequences_mean=8 / 3, tokens_per_s=119.0))
    view = batching_view(report)
    assert view is not None
    assert view.marked
    assert view.lead.startswith("Recorded: 119 tokens/s with 2.67 sequences in the batch. Predicted: ")
    assert [point[0] for point in view.points] == ["1", "2", "4", "8", "16", "32", "64", "128", "153"]
    assert ET.fromstring(view.svg).tag.endswith("svg")
    found, _ = rings(monkeypatch, report)
    assert found == [{"x": 8 / 3, "y": 119.0}]


def test_the_ring_lies_within_the_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch larger than any point, slower than any of them."""
    report = factory.gpu_generation(phases=decode(sequences_mean=300.5, tokens_per_s=5.0))
    (ring,), (x, y) = rings(monkeypatch, report)
    assert x[0] < ring["x"] < x[1]
    assert y[0] < ring["y"] < y[1]


@pytest.mark.parametrize("unknown", ["sequences_mean", "tokens_per_s"])
def test_what_was_not_measured_is_not_called_recorded(unknown: str) -> None:
    view = batching_view(factory.gpu_generation(phases=decode(**{unknown: None})))
    assert view is not None
    assert not view.marked
    assert view.lead.startswith("Predicted: ")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"period_us_mean": 30_000.0}, "saves 50 %, then 15.0 ms a step"),  # whatever the median of the floor is
        ({"period_us_mean": None}, "saves 50 %"),  # 127 steps without a mean
        ({"period_us_mean": None, "steps": 1}, "saves 50 %, then 10.2 ms a step"),  # the one step: 20.36 ms
    ],
)
def test_a_change_is_taken_off_the_mean_step(changes: dict[str, Any], said: str) -> None:
    (change,) = changes_view(factory.gpu_generation(phases=decode(**changes), sensitivity=HALF))
    assert change.saves == said


def test_without_a_decode_phase_a_change_has_no_step() -> None:
    phases = [row for row in factory.gpu_generation().phases if row.phase != "decode"]
    (change,) = changes_view(factory.gpu_generation(phases=phases, sensitivity=HALF))
    assert change.saves == "saves 50 %"
