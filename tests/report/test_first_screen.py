"""The first screen as data: what it counts, what it repeats, and what it leaves out."""

from __future__ import annotations

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
    [(1 / 512, "One decode step does 1/512 of the prefill's work."), (0.1, "One decode step does 1/10 of"),
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
