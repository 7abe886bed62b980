"""Speculative decoding: which passes run, what they read and give, and what the truth says of them."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulate.test_passes import kernels, total
from traceanalyzer.errors import InputError
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.program import Copy, Pass, launched
from traceanalyzer.simulate.scenario import Plant, Scenario
from traceanalyzer.simulate.write import simulate

RUN = Scenario(model="qwen2.5-1.5b", batch=2, prompt=32, output=7, speculate=3, accepted=2, draft="qwen2.5-0.5b")
# Weights of one layer (query, key and value, output, MLP) and of the output layer.
TARGET_LAYER, TARGET_HEAD = (1536 + 2 * 256) * 1536 + 1536 * 1536 + 3 * 8960 * 1536, 151_936 * 1536
DRAFT_LAYER, DRAFT_HEAD = (896 + 2 * 128) * 896 + 896 * 896 + 3 * 4864 * 896, 151_936 * 896


def shapes(run: Scenario) -> list[tuple[str, int, int]]:
    return [(one.phase, one.tokens, one.context_sum) for one in passes(run)]


def products(one: Pass) -> float:
    """Multiply-adds of its matrices; a bias adds less than a thousandth."""
    return total(kernels(one), "flops", "gemm", "gemv") / 2


def test_the_target_checks_what_the_draft_guessed() -> None:
    # Two sequences of 32 tokens and 7 to give: 1 by the prefill, then 3 a pass. Each pass is followed by three guesses.
    assert shapes(RUN) == [
        ("prefill", 64, 64), ("draft", 64, 64), ("draft", 2, 66), ("draft", 2, 68),
        # The newest token and three guesses: 36 keys each, of which two guesses stay: 35.
        ("decode", 8, 72), ("draft", 8, 72), ("draft", 2, 72), ("draft", 2, 74),
        ("decode", 8, 78),
    ]  # fmt: skip
    # All right: four tokens a pass, and 7 are given after two.
    assert shapes(replace(RUN, accepted=3))[4:] == [
        ("decode", 8, 72), ("draft", 8, 72), ("draft", 2, 74), ("draft", 2, 76), ("decode", 8, 80),
    ]  # fmt: skip
    # None right: a token a pass, as without guesses.
    assert [phase for phase, *_ in shapes(replace(RUN, accepted=0))].count("decode") == 6
    assert shapes(replace(RUN, speculate=1, accepted=1, output=3)) == [
        ("prefill", 64, 64), ("draft", 64, 64), ("decode", 4, 68),
    ]  # fmt: skip


def test_every_checked_token_gets_logits() -> None:
    *_, decode, draft, following, _, last = passes(RUN)
    assert products(decode) == pytest.approx(8 * (28 * TARGET_LAYER + TARGET_HEAD), rel=1e-3)
    # The first run takes all that was checked, and guesses for each sequence once.
    assert products(draft) == pytest.approx(8 * 24 * DRAFT_LAYER + 2 * DRAFT_HEAD, rel=1e-3)
    assert products(following) == pytest.approx(2 * (24 * DRAFT_LAYER + DRAFT_HEAD), rel=1e-3)
    (kept,) = [one for one in kernels(last) if "rejection" in one.name]
    assert (kept.grid, kept.bytes, kept.flops) == ((2, 1, 1), 8 * 6 + 8 * 8 + 4 * 8, 6)
    # Causal: four queries over 36 keys see 36 * 4 - 4 * 4 / 2 pairs; 28 layers, 2 sequences, 12 heads of 128.
    assert total(kernels(decode), "flops", "attention") == 28 * 2 * 4 * 12 * 128 * (4 * 36 - 8)
    assert total(kernels(decode), "kv_bytes") == 28 * 2 * 2 * 2 * 128 * 2 * 36


def test_a_draft_of_the_targets_own_layers() -> None:
    own = [one for one in passes(replace(RUN, draft=2)) if one.phase == "draft"]
    assert products(own[1]) == pytest.approx(2 * (2 * TARGET_LAYER + TARGET_HEAD), rel=1e-3)
    assert sum(one.role == "rope" for one in kernels(own[1])) == 2


def test_the_host_waits_for_what_was_kept_and_for_the_guesses() -> None:
    run = [*passes(RUN)]
    copies = [[one.size for one in launched(given.after) if isinstance(one, Copy)] for given in run[3:]]
    assert copies == [[8 * 6], [8 * 8], [], [], [8 * 6], [8 * 8]]
    assert [given.host_after_ns > 0 for given in run[3:]] == [True, False, False, False, True, True]


def test_graphs_of_the_target_and_of_the_draft(tmp_path: Path) -> None:
    run = replace(RUN, mode="graph", capture_sizes=(2, 4, 8, 16), batch=3)
    replayed = [(one.phase, one.tokens, one.padded_tokens) for one in passes(run) if one.graph]
    assert set(replayed) == {("decode", 12, 4), ("draft", 12, 4), ("draft", 3, 1)}
    (written,) = simulate(run, tmp_path / "run.json", passes)
    kinds = defaultdict(set)
    for event in json.loads(written.trace.read_text())["traceEvents"]:
        if event.get("cat") == "kernel" and "graph id" in event["args"]:
            key = event["args"]["graph id"], event["args"]["graph node id"]
            kinds[key].add((event["name"], *event["args"]["grid"]))
    assert {graph for graph, _ in kinds} == {1, 2, 3}
    assert {len(found) for found in kinds.values()} == {1}


def test_the_truth_of_speculation(tmp_path: Path) -> None:
    (written,) = simulate(replace(RUN, plants=(Plant("scheduler", 9_000),)), tmp_path / "run.json", passes)
    truth = json.loads(written.truth.read_text())
    steps = truth["steps"]
    assert [step["parent"] for step in steps] == [None, 0, 0, 0, None, 4, 4, 4, None]
    assert [step["period_ns"] is None for step in steps] == [False, *(True,) * 3, False, *(True,) * 4]
    # A pass's period ends where the target's next one starts.
    assert steps[4]["period_ns"] == steps[8]["start_ns"] - steps[4]["start_ns"]
    assert (steps[1]["prefill_tokens"], steps[1]["decode_tokens"], steps[4]["decode_tokens"]) == (0, 0, 8)
    request = truth["request"]
    assert request["requests"] == 2
    assert request["ttft_ns_p50"] == steps[0]["end_ns"] - steps[0]["start_ns"]
    assert request["tpot_ns_p50"] == steps[4]["period_ns"] / 3
    assert truth["decode_floor"]["weight_bytes"] == pytest.approx(2 * (28 * TARGET_LAYER + TARGET_HEAD), rel=1e-3)
    assert set(truth["phases"]) == {"prefill", "draft", "decode"}
    assert sum(row["ns"] for row in truth["ledger"]) == truth["span"]["span_ns"]
    assert [step["planted"] for step in steps[2:5]] == [{}, {"scheduler": 9_000}, {}]
    assert steps[4]["idle"]["idle_host"] == 150_000 + 9_000
    assert "ta.step[draft n=1 tokens=64 seqs=2 ctx=64 qk=2048]" in written.trace.read_text()


@pytest.mark.parametrize(("changes", "said"), [
    ({"speculate": 17}, "speculate is 17"), ({"speculate": -1}, "speculate is -1"), ({"accepted": 4}, "accepted is 4"),
    ({"speculate": 0}, "nothing is guessed"), ({"draft": "qwen"}, "unknown model"), ({"draft": 28}, "28 layers"),
    ({"draft": 0}, "0 layers"), ({"chunk": 16}, "whole prompts"), ({"attention": "math"}, "flash attention"),
    ({"model": "deepseek-v2-lite", "gpu": "h100-sxm-80gb"}, "latent attention"),
    ({"draft": "llama-3.1-70b"}, "needs 14. GB"), ({"ranks": 2, "draft": "gpt2"}, None),
    ({"ranks": 7, "model": "qwen2.5-0.5b"}, "does not divide"),
])  # fmt: skip
def test_what_cannot_be_guessed_is_refused(changes: dict, said: str | None) -> None:  # type: ignore[type-arg]
    if said is None:
        passes(replace(RUN, **changes))
        return
    with pytest.raises(InputError, match=said):
        passes(replace(RUN, **changes))
