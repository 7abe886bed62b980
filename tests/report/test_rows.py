"""The flat rows and the first screen, against figures worked out by hand from the factory's numbers."""

from __future__ import annotations

import math

import pytest

from tests.report import factory
from traceanalyzer.report import document as doc
from traceanalyzer.report import rows
from traceanalyzer.report.views.pieces import share_figure
from traceanalyzer.report.views.summary import first_screen


def test_rows_have_the_keys_a_gate_names() -> None:
    flat = rows.flatten(factory.gpu_generation())
    assert flat["decode.step_us.p50"] == 20_360.0
    assert flat["prefill.tokens_per_s"] == 8476.8
    assert flat["span.gpu_util"] == 0.557
    assert flat["decode_floor.ratio"] == 2.752
    assert flat["request.tpot_us_p99"] == 29_400.0
    assert flat["cost.output_over_input"] == 173.0
    assert flat["ledger.decode.idle_launch_us"] == 1_150_000.0
    assert flat["ledger.idle_us"] == pytest.approx(1_900 + 1_150_000 + 4_000 + 19_300)
    assert all(isinstance(value, float) and math.isfinite(value) for value in flat.values())


def test_unknown_figures_have_no_row() -> None:
    flat = rows.flatten(factory.almost_empty())
    assert set(flat) == {"span.duration_us", "span.gpu_busy_us"}


def test_shares_of_the_span_stand_on_one_base() -> None:
    """26.5 + 7.5 ms useful and 37.2 ms unknown of 2672.4 ms."""
    flat = rows.flatten(factory.gpu_generation())
    assert flat["span.tensor_core_useful_share"] == pytest.approx(34_000 / 2_672_400)
    assert flat["span.tensor_core_unknown_share"] == pytest.approx(37_200 / 2_672_400)


def test_what_was_not_recorded_is_in_no_share() -> None:
    half = factory.ledger({"prefill": {"idle_artefact": 500.0, "no_tensor_core": 300.0, "tensor_core_useful": 200.0}})
    report = factory.report(
        devices=[factory.A100.model_copy(update={"span_us": 1000.0})],
        span=doc.Span(duration_us=1000.0, gpu_busy_us=500.0, gpu_util=1.0, tensor_core_useful_us=200.0,
                      tensor_core_idle_us_min=300.0, tensor_core_idle_us_max=300.0, sm_fill=None),
        ledger=half,
    )  # fmt: skip
    flat = rows.flatten(report)
    assert flat["span.tensor_core_useful_share"] == pytest.approx(0.4)


def test_figures_without_a_device_are_the_slowest_devices() -> None:
    slow = factory.A100.model_copy(update={"rank": 1, "span_us": 3_000_000.0})
    phases = [factory.phase("decode", steps=1), factory.phase("decode", rank=1, steps=7)]
    report = factory.report(devices=[factory.A100, slow], phases=phases)
    assert rows.flatten(report)["decode.steps"] == 7.0
    assert rows.slowest_device(report) == slow


def test_the_first_screen_leaves_out_what_is_not_known() -> None:
    first = first_screen(factory.almost_empty())
    left_out = (first.subject, first.service, first.speed, first.meters, first.phases, first.actions, first.cost)
    assert left_out == ((),) * 7
    assert (first.profiling, first.floor, first.does_not_help, first.confidence) == ("",) * 4
    assert first.quality == "Data: nothing lost, nothing repaired"


def test_the_three_meters() -> None:
    meters = {meter.label: meter for meter in first_screen(factory.graph_decode()).meters}
    assert [str(meter.figure) for meter in meters.values()] == ["99.8 %", "\u2265 7.5 %", "1.0 % \u2013 55 %"]
    tensor = meters["Tensor cores useful"]
    assert tensor.low == pytest.approx(54 / 5210)
    assert tensor.high == pytest.approx(54 / 5210 + 2801 / 5210)


def test_a_cpu_has_no_gpu_utilisation_and_no_tensor_cores() -> None:
    assert [meter.label for meter in first_screen(factory.cpu_sample()).meters] == ["Operators running"]


def test_a_figure_above_the_limit_is_marked_and_its_meter_is_full() -> None:
    assert not share_figure(1.004).above_limit
    assert share_figure(1.03).above_limit
    assert str(share_figure(1.03)) == "103 % \u26a0"
    span = factory.gpu_generation().span.model_copy(update={"bandwidth_share": 1.5, "bytes_known_share": 1.0})
    report = factory.gpu_generation(span=span)
    bandwidth = next(meter for meter in first_screen(report).meters if meter.anchor == "bandwidth-share")
    assert (bandwidth.low, bandwidth.figure.above_limit) == (1.0, True)


def test_actions_come_in_the_order_of_the_findings_and_at_most_three() -> None:
    findings = [
        doc.Finding(id=f"f{share}", title=f"saves {share}", status="found", phase="decode", saving_us_per_step=share,
                    saving_share=share / 100, confidence=None, evidence=[], action="do it")
        for share in (3.0, 40.0, 1.0, 20.0)
    ]  # fmt: skip
    titles = [action.title for action in first_screen(factory.report(findings=findings)).actions]
    assert titles == ["saves 3.0", "saves 40.0", "saves 1.0"]
