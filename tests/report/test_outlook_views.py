"""What could be otherwise: findings by saving, changes, memory and batch sizes, with figures worked out by hand."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tests.report import factory
from traceanalyzer.report import document as doc
from traceanalyzer.report import html, markdown, text
from traceanalyzer.report.views.batching import batching_view
from traceanalyzer.report.views.beyond import beyond_floor
from traceanalyzer.report.views.findings import findings_view
from traceanalyzer.report.views.what_if import changes_view, memory_view


def test_findings_come_in_the_order_of_the_document() -> None:
    report = factory.gpu_generation(findings=[
        factory.finding("unknown", "Unknown", "found", action="?"),
        factory.finding("prefill", "Prefill", "found", phase="prefill", saving_share=0.5),
        factory.finding("decode", "Decode", "found", phase="decode", saving_share=0.1),
        factory.finding("span", "Span", "found", phase="decode", saving_share=0.1, saving_share_of_span=0.4),
    ])  # fmt: skip
    view = findings_view(report)
    assert view is not None
    assert [row.title for row in view.found] == ["Unknown", "Prefill", "Decode", "Span"]
    said = ["", "saves 50 % of a prefill step"] + ["saves 10 % of a decode step"] * 2
    assert [row.saving for row in view.found] == said


def test_a_finding_says_what_it_saves_and_what_comes_of_it() -> None:
    view = findings_view(factory.gpu_generation())
    assert view is not None
    graph = view.found[1]
    assert graph.anchor == "finding-decode-graph"
    assert graph.aside == "saves 9.06 ms of a decode step (44 %); then 11.3 ms a step, 88.5 tokens/s; confidence 80 %"
    assert [(fact.label, str(fact.figure)) for fact in graph.facts] == [
        ("Saves", "9.06 ms"), ("Share of the step", "44 %"), ("Share of the span", "43 %"), ("Step then", "11.3 ms"),
        ("Tokens/s then", "88.5"), ("Confidence", "80 %"),
    ]  # fmt: skip
    assert [(row.time, row.count) for row in graph.kernels] == [("7.41 ms", "224"), ("459 \u00b5s", "65")]
    assert graph.kernels_omitted == "and 9 more"


def test_the_other_rules_stand_apart_with_their_reasons() -> None:
    view = findings_view(factory.gpu_generation())
    assert view is not None
    assert [(status, title, len(rules)) for status, title, rules in view.others] == [
        ("passed", "Passed: 1", 1), ("not_applicable", "Not applicable: 2", 2), ("error", "Could not be judged: 1", 1)
    ]  # fmt: skip
    assert view.others[0][2][0].reason == "Every matrix product runs in bf16."


@pytest.mark.parametrize("ids", [["a b", "a b"], ["x", "x"], ["<>", "finding-1"], ["1", "<"]])
def test_every_finding_has_an_anchor_of_its_own(ids: list[str]) -> None:
    view = findings_view(factory.report(findings=[factory.finding(name, "T", "found") for name in ids]))
    assert view is not None
    assert len({row.anchor for row in view.found}) == 2


def test_where_nothing_was_found_it_says_so_and_where_no_rule_was_asked_it_says_nothing() -> None:
    passed = factory.report(findings=[factory.finding("a", "A", "passed"), factory.finding("b", "B", "error")])
    for rendering in (html.render(passed), markdown.render(passed), text.render(passed)):
        assert "Nothing was found that would save time: 1 of 2 checks passed, 0 do not apply, 1 could not" in rendering
    assert findings_view(factory.almost_empty()) is None
    assert "Findings" not in html.render(factory.almost_empty())


def test_changes_come_by_saving_with_the_step_they_leave() -> None:
    """20.36 ms less 44.5 % is 11.30 ms, less 21 % 16.08 ms."""
    changes = changes_view(factory.gpu_generation())
    assert [(change.label, change.saves) for change in changes[:2]] == [
        ("Free launches", "saves 44 %, then 11.5 ms a step"), ("Twice the bandwidth", "saves 21 %, then 16.4 ms a step")
    ]  # fmt: skip
    shares = [change.share for change in changes]
    assert shares == sorted(shares, reverse=True)
    some = doc.Sensitivity(compute_2x=None, bandwidth_2x=-0.1, launches_free=None, weights_half=1.7, kv_half=None)
    assert [change.share for change in changes_view(factory.report(sensitivity=some))] == [1.0, 0.0]


def test_the_memory_bar_is_as_long_as_the_memory() -> None:
    """Of 80 GB: 16 weights, 30 of 40 reserved for KV in use, 20 free, so 4 of something else."""
    memory = doc.Memory(total_bytes=80_000_000_000, weight_bytes=16e9, kv_bytes_per_token=131_072.0,
                        kv_reserved_bytes=40e9, kv_used_bytes=30e9, free_bytes=20e9, max_sequences=7, source="shapes",
                        confidence=0.8, assumptions=[])  # fmt: skip
    view = memory_view(factory.report(memory=memory))
    assert view is not None
    assert [(piece.title, round(piece.width, 3)) for piece in view.segments] == [
        ("Weights: 16.0 GB", 20.0), ("KV cache in use: 30.0 GB", 37.5),
        ("KV cache reserved, not in use: 10.0 GB", 12.5),
        ("Everything else: 4.00 GB", 5.0), ("Free: 20.0 GB", 25.0),
    ]  # fmt: skip
    assert view.lead == "How the memory of the device is used: 7 sequences of this length fit."
    bare = memory.model_copy(update={"total_bytes": None, "max_sequences": None})
    view = memory_view(factory.report(memory=bare))
    assert view is not None
    assert view.segments == ()
    assert view.lead == "How the memory of the device is used."


def test_parts_larger_than_the_memory_fill_the_bar_and_no_more() -> None:
    memory = doc.Memory(total_bytes=10, weight_bytes=30.0, kv_bytes_per_token=None, kv_reserved_bytes=None,
                        kv_used_bytes=10.0, free_bytes=None, max_sequences=None, source="trace", confidence=0.1,
                        assumptions=[])  # fmt: skip
    view = memory_view(factory.report(memory=memory))
    assert view is not None
    assert [piece.width for piece in view.segments] == [75.0, 25.0]


def test_batching_says_where_it_is_and_where_it_ends() -> None:
    """With one sequence a step takes 20.105 ms, 49.7 tokens/s; with 153 36.065 ms, 4242 tokens/s."""
    view = batching_view(factory.gpu_generation())
    assert view is not None
    assert view.lead == (
        "Recorded: 49.0 tokens/s with 1 sequence in the batch. Predicted: 4,242 tokens/s with 153 sequences, where "
        "matrix products become bound by compute."
    )
    assert view.points[0] == ("1", "20.1 ms", "49.7")
    assert view.points[-1] == ("153", "36.1 ms", "4,242")
    titles = [element.text for element in ET.fromstring(view.svg).iter("title")]
    assert len(titles) == 9
    assert titles[0] == "1 sequence: 20.1 ms a step, 49.7 tokens/s"
    assert "style=" not in view.svg


def test_batching_says_what_the_recorded_batch_is_worth() -> None:
    """Eight that take turns at 120 tokens/s, where one alone runs at 45: a third of 360."""
    some = factory.BATCHING.model_copy(
        update={"batching_efficiency": 120 / 360, "effective_batch": 8 * 120 / 360, "streams": 8, "cap": None}
    )
    base = factory.gpu_generation()
    phases = [row.model_copy(update={"sequences_mean": 8.0}) for row in base.phases]
    view = batching_view(factory.gpu_generation(batching=some, phases=phases))
    assert view is not None
    assert view.notes == (
        "The recorded batch is worth 2.7 single sequences: batching efficiency 33 %.",
        "8 sequences took turns, in steps that each serve a part of them.", "Confidence 60 %.",
    )  # fmt: skip
    assert "where" not in view.lead


def test_a_single_point_is_no_curve() -> None:
    one = factory.BATCHING.model_copy(update={"points": factory.BATCHING.points[:1]})
    view = batching_view(factory.gpu_generation(batching=one))
    assert view is not None
    assert view.svg == ""
    assert batching_view(factory.gpu_generation(batching=one.model_copy(update={"points": []}))) is None


def test_what_a_step_spends_beyond_its_floor_is_listed() -> None:
    """Per step of 10 ms: products 5 ms, of which 2 their bytes need; attention as its bytes; 1 ms others; 3 ms idle."""
    base = factory.gpu_generation()
    device, (kernel, *_), (entry, *_) = base.devices[0], base.kernels, base.ledger
    phases = [row.model_copy(update={"steps": 2}) for row in base.phases if row.phase == "decode"]
    place = {"phase": "decode", "rank": device.rank, "device": device.device}
    kernels = [
        kernel.model_copy(update={**place, "category": category, "total_us": us})
        for category, us in (("gemm", 10_000.0), ("attention", 1_000.0), ("norm", 2_000.0), ("comm", 400.0))
    ]
    ledger = [
        entry.model_copy(update={**place, "group": group, "bucket": bucket, "us": us})
        for group, bucket, us in (("idle", "idle_launch", 6_000.0), ("idle", "idle_artefact", 9e6),
                                  ("moving", "communication", 100.0))
    ]  # fmt: skip
    assert device.bandwidth_gbs is not None
    floor = base.decode_floor.model_copy(update={  # type: ignore[union-attr]
        "weight_bytes_read": 2_000.0 * device.bandwidth_gbs * 1e3, "kv_bytes": 500.0 * device.bandwidth_gbs * 1e3,
        "floor_us": 2_500.0, "measured_us": 10_000.0,
    })  # fmt: skip
    report = base.model_copy(update={"phases": phases, "kernels": kernels, "ledger": ledger, "decode_floor": floor})
    assert beyond_floor(report) == (
        "Beyond the floor, on average: idle 3.00 ms, matrix products 3.00 ms, other kernels 1.00 ms."
    )
    assert beyond_floor(report.model_copy(update={"decode_floor": None})) == ""
