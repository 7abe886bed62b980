"""What the drawings show: bars that add up, a strip that shows gaps, a roofline whose roofs are the sheet's."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from tests.report import factory
from traceanalyzer.report import document as doc
from traceanalyzer.report.views.bars import floor_view, ledger_view, prefill_view
from traceanalyzer.report.views.charts import MAX_POINTS, roofline
from traceanalyzer.report.views.kernel_table import kernel_view
from traceanalyzer.report.views.phase_table import phase_view
from traceanalyzer.report.views.strip import MAX_MARKS, strip_view


def test_each_phase_is_one_bar_that_is_full() -> None:
    view = ledger_view(factory.gpu_generation())
    assert view is not None
    assert [bar.label for bar in view.bars] == ["Whole span", "Prefill", "Decode", "Other"]
    for bar in view.bars:
        assert sum(piece.width for piece in bar.segments) == pytest.approx(100.0)
        assert bar.segments[0].x == 0.0
    decode = view.bars[2]
    assert [piece.kind for piece in decode.segments] == [
        "idle", "idle", "moving", "busy_no_tensor_core", *["tensor_core_waiting"] * 3, "tensor_core_useful",
    ]  # fmt: skip
    assert decode.segments[0].width == pytest.approx(100 * 1_150_000 / 2_592_700)
    assert [group.share for group in decode.groups] == ["45 %", "0.3 %", "16 %", "39 %", "0.3 %"]
    assert view.sums == ("60,400.000", "2,592,700.000", "19,300.000", "2,672,400.000", "100 %")


def test_unrecorded_time_is_in_the_table_and_in_no_bar() -> None:
    rows = factory.ledger({"decode": {"idle_artefact": 750.0, "no_tensor_core": 250.0}})
    view = ledger_view(factory.report(devices=[factory.A100], ledger=rows))
    assert view is not None
    assert [[piece.width for piece in bar.segments] for bar in view.bars] == [[100.0]]
    assert [row.cells for row in view.table] == [("750.000", "750.000", "75 %"), ("250.000", "250.000", "25 %")]
    assert view.not_recorded.startswith("750 \u00b5s of the span")


def test_the_floor_bar_is_weights_then_kv_then_the_rest() -> None:
    """15.01 GB and 75.5 MB at 2039 GB/s are 7361.5 and 37.0 of 20360 microseconds."""
    view = floor_view(factory.gpu_generation())
    assert view is not None
    assert [piece.kind for piece in view.segments] == ["weights", "kv", "rest"]
    assert [piece.width for piece in view.segments] == pytest.approx([36.16, 0.182, 63.66], rel=2e-3)
    assert view.marker == pytest.approx(100 * 8874 / 20360)
    assert not view.above_limit


def test_a_step_faster_than_its_floor_is_marked() -> None:
    floor = factory.gpu_generation().decode_floor
    assert floor is not None
    fast = factory.gpu_generation(decode_floor=floor.model_copy(update={"measured_us": 5_000.0, "ratio": 0.68}))
    view = floor_view(fast)
    assert view is not None
    assert view.above_limit
    assert sum(piece.width for piece in view.segments) == pytest.approx(100.0)


def test_an_unknown_floor_draws_nothing_and_says_so() -> None:
    view = floor_view(factory.graph_decode())
    assert view is not None
    assert view.segments == ()
    assert view.lead == "A decode step takes 5.21 ms; the least it can take is not known."
    assert view.assumptions == ("Weight bytes are not known, so there is no floor.",)
    assert floor_view(factory.almost_empty()) is None
    assert prefill_view(factory.almost_empty()) is None


def test_the_strip_has_one_mark_per_step_and_a_lane_per_phase() -> None:
    view = strip_view(factory.gpu_generation())
    assert view is not None
    assert [(lane.phase, len(lane.marks)) for lane in view.lanes] == [("prefill", 1), ("decode", 127)]
    assert view.lanes[0].marks[0].x == "0%"
    assert [row.index for row in view.slowest[:4]] == [0, 41, 82, 123]


def test_a_large_strip_is_binned_and_its_gap_stays_visible() -> None:
    """3000 back-to-back steps of 10 us with a hole of a tenth of the time in the middle."""
    steps = [factory.step(i, "decode", 10.0 * i + (3_333.0 if i >= 1500 else 0.0), 10.0) for i in range(3000)]
    whole = factory.A100.model_copy(update={"span_us": 33_333.0})
    view = strip_view(factory.report(devices=[whole], steps=steps))
    assert view is not None
    (lane,) = view.lanes
    starts = [float(mark.x.rstrip("%")) for mark in lane.marks]
    assert len(lane.marks) <= MAX_MARKS
    assert len(lane.marks) == pytest.approx(900, abs=3)
    assert not [x for x in starts if 45.2 < x < 54.8]
    assert {mark.shade for mark in lane.marks} <= {"full-1", "full-2", "full-3", "full-4"}


def test_kernels_come_by_wasted_time_then_the_unknown_then_the_rest() -> None:
    view = kernel_view(factory.gpu_generation())
    assert view is not None
    wasted = [row.wasted for row in view.rows]
    assert wasted == ["97.4 ms", "95.0 ms", "58.2 ms", "56.4 ms", "18.2 ms", *["unknown"] * 3]
    assert [row.name for row in view.rows[-2:]] == ["all other kernels of this phase"] * 2
    gemm = view.rows[0]
    assert (gemm.compute.text, gemm.bandwidth.text) == ("0.6 %", "90 %")  # 2.02 of 312 TFLOP/s, 1828 of 2039 GB/s


def test_kernels_beyond_the_sheet_are_marked() -> None:
    fast = factory.worked("too_fast", "decode", 1, 100.0, 1e9, 1e9, tensor_core=True)
    view = kernel_view(factory.report(devices=[factory.A100], kernels=[fast]))
    assert view is not None
    assert (view.rows[0].bandwidth.text, view.rows[0].bandwidth.above_limit) == ("490 %", True)
    assert not view.rows[0].compute.above_limit


def test_a_kernel_is_measured_against_the_units_that_ran_it() -> None:
    """1 TFLOP in a second, against 312 on tensor cores, 78 on the vector units, 2 given for a CPU."""
    units = {"tensor cores": True, "vector units": False, "not known": None}
    ran = [factory.worked(name, "decode", 1, 1e6 - at, 1e12, 0.0, tensor_core=unit, wasted_us=None)
           for at, (name, unit) in enumerate(units.items())]  # fmt: skip
    gpu = factory.A100.model_copy(update={"vector_peaks_tflops": {"bf16": 78.0, "fp32": 19.5}})
    cpu = factory.A100.model_copy(update={"kind": "cpu", "has_tensor_cores": False, "peaks_tflops": {"bf16": 2.0}})
    for device, shares in ((gpu, ["0.3 %", "1.3 %", "unknown"]), (factory.A100, ["0.3 %", "unknown", "unknown"]),
                           (cpu, ["50 %"] * 3)):  # fmt: skip
        view = kernel_view(factory.report(devices=[device], kernels=ran))
        assert view is not None
        assert [row.compute.text for row in view.rows] == shares


@pytest.mark.parametrize(
    ("ridges", "shown"),
    [({"fp8": 306.0, "bf16": 153.0, "fp16": 154.0}, "153 FLOP/B"), ({"fp32": 9.6, "fp16": 154.0}, "154 FLOP/B"),
     ({"fp64": 4.8, "fp32": 9.6}, "9.60 FLOP/B"), ({"fp8": 306.0}, None)],
)  # fmt: skip
def test_the_ridge_is_that_of_matrix_products_in_16_bits_else_of_fp32(
    ridges: dict[str, float], shown: str | None
) -> None:
    device = factory.A100.model_copy(update={"ridge_flop_per_byte": ridges})
    view = phase_view(factory.gpu_generation(devices=[device]))
    assert view is not None
    table = {label: [str(cell) for cell in cells] for label, cells in view.rows}
    assert table.get("Ridge of the GPU") == ([shown] * 3 if shown else None)


def test_phases_are_compared_side_by_side_without_empty_rows() -> None:
    view = phase_view(factory.gpu_generation())
    assert view is not None
    assert view.columns == ("Prefill", "Decode", "Other")
    table = {label: [str(cell) for cell in cells] for label, cells in view.rows}
    assert table["Arithmetic intensity"] == ["341 FLOP/B", "1.06 FLOP/B", "unknown"]
    assert "Padding tokens" not in table


def paths(svg: str) -> list[list[tuple[float, float]]]:
    """The corners of every roof, in pixels: the paths drawn as lines."""
    found = []
    for element in ET.fromstring(svg).iter("path"):
        if element.get("stroke") == "var(--ink-soft)":
            numbers = [float(part) for part in re.findall(r"-?[\d.]+", element.get("d", ""))]
            found.append(list(zip(numbers[::2], numbers[1::2], strict=True)))
    return found


def test_the_roofs_bend_at_the_ridge() -> None:
    """312 TFLOP/s over 2039 GB/s is 153.0 FLOP/B, of which the logarithm is 2.1847."""
    chart = roofline(factory.gpu_generation())
    labels = {
        element.text: element.get("transform", "")
        for element in ET.fromstring(chart.svg).iter("text")
        if element.text in ("1", "100") and element.get("transform", "").endswith(",17)")
    }
    one, hundred = (float(re.findall(r"[\d.]+", labels[text])[0]) for text in ("1", "100"))
    sheet, reached = paths(chart.svg)
    assert len(sheet) == 3
    ridge = one + (hundred - one) / 2 * 2.1847
    assert sheet[1][0] == pytest.approx(ridge, abs=1.0)
    assert sheet[1][1] == sheet[2][1]
    assert sheet[0][1] > sheet[1][1]
    assert reached[1][1] > sheet[1][1]


def test_a_roof_that_starts_below_the_chart_still_bends() -> None:
    fast = factory.worked("gemm", "prefill", 1, 1000.0, 2e11, 1e9, tensor_core=True)
    chart = roofline(factory.gpu_generation(kernels=[fast], phases=[]))
    sheet = paths(chart.svg)[0]
    assert len({round(x) for x, _ in sheet}) == 3


def test_the_chart_fits_the_pages_policy() -> None:
    report = factory.maximal()
    chart = roofline(report)
    assert "style=" not in chart.svg
    assert "href" not in chart.svg
    assert "var(--phase-decode)" in chart.svg
    assert chart.svg.count("<title>") <= MAX_POINTS + 5
    assert chart.omitted == "147 of 500 kernels with known work are drawn, the longest ones."  # H(500) / 1000 = 1 / 147
    assert chart.svg == roofline(report).svg


def test_without_peaks_or_work_the_chart_says_why() -> None:
    assert roofline(factory.cpu_sample()).reason.startswith("The peaks of this device are not known")
    bare = roofline(factory.report(devices=[factory.A100]))
    assert bare.reason.startswith("The FLOPs and bytes of the kernels are not known")
    assert bare.reason.startswith("The FLOPs and bytes of the kernels are not known")


def test_the_shares_of_a_device_without_rank_are_found() -> None:
    device = factory.A100.model_copy(update={"rank": None})
    row = doc.LedgerRow(rank=None, device=0, phase="decode", group="moving", bucket="memcpy", us=5.0)
    assert ledger_view(factory.report(devices=[device], ledger=[row])) is not None
