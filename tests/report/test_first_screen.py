"""The first screen as data: what it counts, what it repeats, and what it leaves out."""

from __future__ import annotations

import re

import pytest

from tests.report import factory
from traceanalyzer.report import html, markdown, text
from traceanalyzer.report.views.summary import first_screen


def fact(report: factory.doc.Report, label: str) -> str:
    (found,) = (fact for fact in first_screen(report).ran if fact.label == label)
    return str(found.figure)


def test_whole_and_cut_steps_are_counted_apart() -> None:
    whole = factory.step(0, "decode", 0.0, 10.0)
    cut = [factory.step(at, name, 10.0 * at, 10.0, complete=False) for at, name in ((1, "decode"), (2, "prefill"))]
    decode = factory.phase("decode", steps=1, duration_us=20.0, gpu_busy_us=20.0, time_share=1.0)
    devices = [factory.A100]
    both = factory.report(devices=devices, steps=[whole, *cut], phases=[decode])
    assert fact(both, "Steps") == "1 prefill (cut), 1 decode, 1 decode (cut)"
    only_cut = factory.report(devices=devices, steps=cut[:1], phases=[decode.model_copy(update={"steps": 0})])
    assert fact(only_cut, "Steps") == "1 decode (cut)"
    assert fact(factory.report(devices=devices), "Steps") == "none recognised"


def test_sentences_of_the_document_are_printed_as_they_are() -> None:
    """They may be spelt like a code of the catalogue without becoming another sentence."""
    verdict = factory.gpu_generation().verdict.model_copy(update={"ruled_out": ["more_compute", "a_b"]})
    first = first_screen(factory.gpu_generation(verdict=verdict))
    assert (first.does_not_help, first.ruled_out) == ("more_compute", ("a_b",))


def test_a_cost_says_what_it_takes_for_granted() -> None:
    assert first_screen(factory.gpu_generation()).cost_assumptions == ("Every recorded GPU is priced.",)
    assert first_screen(factory.almost_empty()).cost_assumptions == ()


def test_tokens_per_second_say_while_doing_what() -> None:
    speed = {fact.label: str(fact.figure) for fact in first_screen(factory.gpu_generation()).speed}
    assert speed["Output while decoding"] == "49.0 tokens/s"
    assert "Input while prefilling" in speed


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(1 / 512, "One decode step does 1/512 of the prefill's arithmetic, and takes 34 % of its time."),
     (0.1, "One decode step does 1/10 of"),
     (0.61, "One decode step does 61 % of"), (None, "")],
)  # fmt: skip
def test_the_work_of_a_step_is_set_against_the_whole_prefill(ratio: float | None, said: str) -> None:
    request = factory.gpu_generation().request
    assert request is not None
    changed = request.model_copy(update={"decode_step_flops_over_prefill_flops": ratio})
    report = factory.gpu_generation(request=changed)
    assert first_screen(report).work_ratio.startswith(said)
    assert bool(said) == bool(first_screen(report).work_ratio)
    for rendering in (markdown.render(report), text.render(report), html.render(report)):
        assert ("One decode step does" in rendering) == bool(said)


def test_without_limits_it_says_once_how_to_supply_them() -> None:
    said = "give --bandwidth-gbs and --peak-tflops"
    for rendering in (markdown.render(factory.cpu_sample()), text.render(factory.cpu_sample())):
        assert rendering.replace("\\", "").count(said) == 1
    assert said not in text.render(factory.gpu_generation())
    note = factory.doc.QualityNote(code="gpu_unknown", severity="warning", count=1, message="Supply them.")
    assert said not in text.render(factory.cpu_sample(quality=[note]))


def test_one_step_has_no_percentiles() -> None:
    first = first_screen(factory.graph_decode())
    assert {fact.label: str(fact.figure) for fact in first.speed}["Decode, one step"] == "5.21 ms"
    assert first.step_head == "First to last kernel"
    assert first.phases[0].step_in_words == "5.21 ms, one step"
    for rendering in (markdown.render, text.render, html.render):
        assert not re.search(r"\bp\d\d\b", rendering(factory.graph_decode()).partition("<script type=")[0])
    many = first_screen(factory.gpu_generation())
    assert {"TPOT p50", "TPOT p99"} <= {fact.label for fact in many.speed}
    assert many.step_head == "First to last kernel, p50"
    assert [line.step_in_words for line in many.phases][:2] == ["60.4 ms, one step", "20.4 ms"]


def test_two_steps_give_one_time_per_token() -> None:
    base = factory.gpu_generation()
    phases = [row.model_copy(update={"steps": 2}) if row.phase == "decode" else row for row in base.phases]
    for p99, label in ((20_660.0, "TPOT, one step"), (29_400.0, "TPOT p50")):
        request = base.request.model_copy(update={"tpot_us_p99": p99}) if base.request else None
        speed = first_screen(factory.gpu_generation(phases=phases, request=request)).speed
        assert label in {fact.label for fact in speed}


def test_a_simulated_run_says_so_first_everywhere() -> None:
    said = "Simulated sample: no GPU ran this"
    labelled = factory.gpu_generation().run.model_copy(update={"labels": {"simulated": "true"}})
    window = factory.gpu_generation(traces=[factory.trace(collector={"schema": 1, "window": {"simulated": True}})])
    for report in (factory.simulated(), factory.gpu_generation(run=labelled), window):
        page = html.render(report)
        assert page.index(said) < page.index("<h1")
        assert markdown.render(report).splitlines()[2].startswith(f"**{said}.**")
        assert text.render(report).startswith(said)
    other = [factory.trace(collector={"schema": 1, "simulated": False, "window": {"steps": 1, "simulated": "no"}})]
    for report in (factory.gpu_generation(), factory.gpu_generation(traces=other)):
        assert said not in html.render(report) + markdown.render(report) + text.render(report)


def test_the_verdict_names_the_first_thing_to_do() -> None:
    page = html.render(factory.gpu_generation())
    card = page[page.index('<section class="verdict') : page.index("</section>", page.index('<section class="verdict'))]
    (first, *_) = first_screen(factory.gpu_generation()).actions
    assert f'<a href="#finding-batch">{first.action}</a>' in card
    assert "7.5\u00a0\u00d7 the tokens per second, then " in card  # no figure parts from its unit
