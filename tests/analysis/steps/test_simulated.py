"""Simulated runs without labels, shapes and ops: nothing is left but kernels, their names and their grids."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.analysis.truth import count_errors, share_of_time_right
from traceanalyzer import read_trace
from traceanalyzer.analysis.pipeline import Analysis, analyze
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.variants import Variant
from traceanalyzer.simulate.write import simulate

BARE = Variant(labels=False, shapes=False, ops=False)
SMALL = Scenario(model="llama-3.2-1b", prompt=128, output=3)
GRAPH = replace(SMALL, mode="graph", batch=5)

CASES: dict[str, Scenario] = {
    "one": SMALL,
    "decode only": replace(SMALL, batch=8, skip_prefill=True),
    "graph": GRAPH,
    "padded graphs": replace(GRAPH, capture_sizes=(1, 2, 4, 8)),
    "piecewise graphs": replace(GRAPH, mode="piecewise", capture_sizes=(1, 2, 4, 8)),
    "cached prefixes": replace(SMALL, batch=4, prompt=512, prefix=480),
    "short prompts": replace(SMALL, prompt=8, batch=4),
    "chunks": replace(SMALL, batch=3, prompt=256, chunk=128, arrivals_every=1, output=5),
    "chunks of one": replace(SMALL, prompt=512, chunk=128),
    "in turns": replace(SMALL, batch=2, together=False),
    "speculation, padded graphs": replace(GRAPH, batch=3, speculate=3, output=8, capture_sizes=(4, 8, 16)),
    "prompts only": replace(SMALL, batch=4, output=1),
}  # fmt: skip
EXACT = {"tokens", "sequences", "prefill_tokens", "decode_tokens"}


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """The analysis and the truth of a case, made once."""
    made = {}

    def get(name: str) -> tuple[Analysis, dict]:
        if name not in made:
            made[name] = run(CASES[name], tmp_path_factory.mktemp("run"))
        return made[name]

    return get


def run(scenario: Scenario, folder: Path, variant: Variant = BARE) -> tuple[Analysis, dict]:
    (written,) = simulate(scenario, folder / "run.json", passes, variant=variant)
    return analyze([read_trace(written.trace)]), json.loads(written.truth.read_text())


@pytest.mark.parametrize("name", CASES)
def test_phases_are_right_without_anything_said(name, case):
    analysis, truth = case(name)
    if name == "prompts only":  # a single pass shows no end
        assert set(analysis.main.timeline.steps["phase"]) == {"prefill"}
    assert share_of_time_right(analysis, truth) >= 0.99
    errors = count_errors(analysis, truth)
    if "speculation" not in name:
        assert {count: errors[count] for count in EXACT} == dict.fromkeys(EXACT, (1.0, 0.0))
    assert errors["context_sum"][1] == 0.0  # known or not, none is wrong


@pytest.mark.parametrize("name", ["one", "graph", "chunks of one"])
def test_contexts_are_followed_from_the_prompts(name, case):
    analysis, truth = case(name)
    assert count_errors(analysis, truth)["context_sum"] == (1.0, 0.0)


@pytest.mark.parametrize("name", ["decode only", "in turns", "cached prefixes"])
def test_contexts_that_no_prompt_explains_stay_unknown(name, case):
    analysis, _ = case(name)
    steps = analysis.main.timeline.steps
    assert steps.loc[steps["phase"] == "decode", "context_sum"].isna().all()


def test_padding_is_told_from_what_is_useful(case):
    analysis, _ = case("padded graphs")
    decodes = analysis.main.timeline.steps.query("phase == 'decode'")
    assert (decodes[["tokens", "sequences", "padded_tokens"]] == [5.0, 5.0, 3.0]).all(axis=None)


def test_drafts_belong_to_the_pass_before_them(case):
    analysis, _ = case("speculation, padded graphs")
    steps = analysis.main.timeline.steps
    drafts = steps[steps["phase"] == "draft"]
    assert (steps.loc[drafts["parent_step"], "phase"] != "draft").all()
    assert (drafts.groupby("parent_step").size() == 3).all()
    checks = steps[steps["phase"] == "decode"]
    assert (checks["tokens"] == 4 * checks["sequences"]).all()
    assert (checks["padded_tokens"] == 4).all()


def test_a_window_that_cuts_passes_claims_none_of_them(tmp_path):
    analysis, truth = run(replace(SMALL, output=6, batch=2), tmp_path, replace(BARE, cut=True))
    assert share_of_time_right(analysis, truth) >= 0.99


def test_the_comparison_notices_wrong_phases(tmp_path):
    analysis, truth = run(SMALL, tmp_path)
    for step in truth["steps"]:
        step["phase"] = "decode"
    assert share_of_time_right(analysis, truth) < 0.9


@pytest.mark.parametrize("name", ["prefill.json", "decode.json"])
def test_a_name_of_a_file_says_nothing(name, tmp_path):
    """A file called prefill holds decoding, one called decode a prompt."""
    scenario = replace(SMALL, skip_prefill=True, batch=8) if name == "prefill.json" else replace(SMALL, output=2)
    (written,) = simulate(scenario, tmp_path / name, passes, variant=BARE)
    analysis = analyze([read_trace(written.trace)])
    assert share_of_time_right(analysis, json.loads(written.truth.read_text())) >= 0.99
