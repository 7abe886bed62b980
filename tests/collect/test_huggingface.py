"""Records of real passes of small models, each sum worked out by hand or by a closed form."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.collect.runtime import Runtime, Step
from traceanalyzer.collect.inside import continuous, huggingface, layout, steps

SCENARIOS = Path(__file__).with_name("scenarios.py")
Sums = tuple[str, int, int, int, int]


class Recorded:
    """What one run of the scenarios left."""

    def __init__(self, folder: Path, which: str) -> None:
        runtime = Runtime(folder)
        done = runtime.run(str(SCENARIOS), which, timeout=240)
        assert done.returncode == 0, done.stderr
        self.marks = json.loads(done.stdout)
        self.steps = runtime.steps()
        self.process = runtime.process()

    def of(self, name: str) -> list[Step]:
        mark = self.marks[name]
        return self.steps[mark["from"] : mark["to"]]

    def sums(self, name: str) -> list[Sums]:
        return [step.sums for step in self.of(name)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("plain") / "run", "plain")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("compiled") / "run", "compiled")


def decodes(batch: int, prompt: int, count: int, source: int = 0) -> list[Sums]:
    """`count` steps of one token for each of `batch` sequences, after `prompt` tokens and beside `source` others."""
    return [
        ("decode", batch, batch, batch * (prompt + step + source), batch * (prompt + step + source))
        for step in range(1, count + 1)
    ]


def generation(batch: int, prompt: int, new: int = 4) -> list[Sums]:
    """One pass over the prompts gives the first token of each, every further token takes one more pass."""
    return [("prefill", batch * prompt, batch, batch * prompt, batch * prompt**2), *decodes(batch, prompt, new - 1)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("batch 1", generation(1, 5)),
        ("batch 4", generation(4, 7)),
        ("two", generation(1, 5) * 2),
        ("static", generation(4, 7)),
        ("static twice", generation(1, 5) * 2),
        ("sliding", generation(1, 7)),
        ("sliding static", generation(1, 7)),
        ("beams", generation(3, 5)),
        ("padded", generation(2, 5)),
    ],
)
def test_a_generation_is_one_prefill_and_a_decode_step_for_each_further_token(
    plain: Recorded, name: str, expected: list[Sums]
) -> None:
    assert plain.sums(name) == expected
    starts = [step.new_sequences for step in plain.of(name)]
    assert starts == [step.sequences if step.phase == "prefill" else 0 for step in plain.of(name)]
    assert all(step.prefill_tokens == (step.tokens if step.phase == "prefill" else 0) for step in plain.of(name))


def test_chunks_of_a_prompt_are_prefill_even_where_the_last_is_a_single_token(plain: Recorded) -> None:
    # 7 tokens in chunks of 3: contexts 3, 6 and 7 for each of 2 sequences.
    chunks = [("prefill", 6, 2, 6, 18), ("prefill", 6, 2, 12, 36), ("prefill", 2, 2, 14, 14)]
    assert plain.sums("chunked") == [*chunks, *decodes(2, 7, 3)]
    assert [step.new_sequences for step in plain.of("chunked")] == [2, 0, 0, 0, 0, 0]


def test_without_a_cache_every_pass_runs_the_whole_text_and_starts_one_request(plain: Recorded) -> None:
    assert plain.sums("no cache") == [("prefill", n, 1, n, n * n) for n in (5, 6, 7, 8)]
    assert [step.new_sequences for step in plain.of("no cache")] == [1, 0, 0, 0]


def test_a_draft_is_told_from_what_verifies_it(plain: Recorded) -> None:
    steps = plain.of("assisted")
    verifying = [step for step in steps if step.phase != "draft"]
    assert [step.phase for step in verifying] == ["prefill"] + ["decode"] * (len(verifying) - 1)
    assert any(step.tokens > step.sequences for step in verifying[1:]), "a draft was verified"
    drafts = [step for step in steps if step.phase == "draft"]
    assert drafts and all(step.new_sequences == step.prefill_tokens == 0 for step in drafts)
    assert sum(step.new_sequences for step in steps) == 1
    assert all(step.query_context_sum == step.tokens * step.context_sum for step in steps)
    # The last pass sees the prompt and every token but the one that it gives: 5 + 8 - 1.
    assert steps[-1].context_sum == 12
    assert [step.phase for step in plain.of("lookup")][:2] == ["prefill", "decode"]


def test_a_request_that_goes_on_with_a_filled_cache_is_a_prefill_of_what_is_new(plain: Recorded) -> None:
    # 5 + 4 tokens, of which the last was never run; one more is appended: 8 are cached, 2 are new.
    assert plain.sums("resumed") == [*generation(1, 5), ("prefill", 2, 1, 10, 20), *decodes(1, 10, 3)]


def test_requests_that_are_batched_as_they_come_are_steps_of_the_runner(plain: Recorded) -> None:
    # 5, 3 and 7 tokens: 25 + 9 + 49; then one more each.
    first = ("prefill", 15, 3, 15, 83)
    assert plain.sums("continuous") == [first, ("decode", 3, 3, 18, 18), ("decode", 3, 3, 21, 21)]
    assert [step.new_sequences for step in plain.of("continuous")] == [3, 0, 0]


def request(tokens: int, reached: int, prompt: int, name: str = "a") -> Any:
    state = SimpleNamespace(request_id=name, position_offset=reached, initial_tokens=[0] * prompt)
    return SimpleNamespace(query_length=tokens, state=state)


@pytest.mark.parametrize("in_pairs", [False, True])
def test_chunks_beside_decoding_requests_are_mixed(monkeypatch: pytest.MonkeyPatch, in_pairs: bool) -> None:
    """One decodes its 9th token, one runs tokens 4 to 6 of 6, one the first 2 of 5: 9 + 3 x 6 + 2 x 2."""
    monkeypatch.setattr(huggingface, "meet", lambda model: None)

    def described(*requests: Any) -> tuple[object, ...] | None:
        inputs: Any = SimpleNamespace(requests_in_batch=list(requests))
        if in_pairs:
            pairs = [SimpleNamespace(host_io=None), SimpleNamespace(host_io=inputs)]
            inputs = SimpleNamespace(io_pairs=pairs, current_pair=1)
        return continuous.describe((SimpleNamespace(inputs_and_outputs=inputs), None), {})

    assert described(request(1, 9, 7), request(3, 6, 6), request(2, 2, 5)) == ("mixed", 6, 3, 17, 31, 5, 2, 1)
    assert described(request(1, 9, 8)) == ("decode", 1, 1, 9, 9, 0, 0, 0)
    assert described(request(1, 8, 8)) == ("prefill", 1, 1, 8, 8, 1, 1, 0)
    assert described(request(1, 9, 8, "__warmup_DECODING_0__")) == steps.OTHER == described()


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_an_encoder_runs_once_and_its_tokens_are_context_of_the_decoder(plain: Recorded, name: str) -> None:
    first = ("prefill", 2, 2, 2 * (1 + 5), 2 * (1 + 5))
    assert plain.sums(name) == [("encoder", 10, 2, 10, 50), first, *decodes(2, 1, 3, source=5)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 5 x 5 in the encoder, 3 x (3 + 5) in the decoder, twice.
        ("t5 forward", [("prefill", 16, 2, 16, 98)]),
        ("bert", [("prefill", 12, 2, 12, 72)]),
        ("embeds", [("prefill", 6, 2, 6, 18)]),
        ("growing", [("prefill", 3, 1, 3, 9)]),
        ("positional", [("prefill", 10, 2, 10, 50), *decodes(2, 5, 1)]),
        ("training", [("other", 10, 2, 10, 50)]),
        # 5, 6, cut to 4 and one more, emptied and 6 anew.
        ("static by hand", [*generation(1, 5, 2), *decodes(1, 4, 1), ("prefill", 6, 1, 6, 36)]),
        ("filled unseen", [*generation(1, 5, 2), ("decode", 1, 1, 0, 0)]),
    ],
)
def test_single_passes(plain: Recorded, name: str, expected: list[Sums]) -> None:
    assert plain.sums(name) == expected


def test_a_pass_that_raises_is_recorded_as_failed_and_raises(plain: Recorded) -> None:
    assert [step.flags for step in plain.of("failing")] == [layout.FLAG_FAILED]
    assert not any(step.flags for step in plain.of("batch 1"))


def test_nothing_of_ours_failed(plain: Recorded, compiled: Recorded) -> None:
    assert plain.process["failures"] == compiled.process["failures"] == []


def test_steps_follow_each_other(plain: Recorded) -> None:
    ends = 0
    for step in plain.steps:
        assert step.start_ns >= ends and step.duration_ns > 0
        ends = step.start_ns + step.duration_ns
    own = {step.thread for step in plain.of("continuous")}
    assert len(own) == 1 and len({step.thread for step in plain.steps} - own) == 1


@pytest.mark.parametrize(
    "name", ["torch.compile(model)", "model.compile()", "torch.compile(forward)", "forward replaced"]
)
def test_a_compiled_model_is_recorded_whole_and_is_one_graph(compiled: Recorded, name: str) -> None:
    assert compiled.sums(name) == [("prefill", 5, 1, 5, 25)] * 2
    assert all(step.flags == layout.FLAG_COMPILED for step in compiled.of(name))
    assert (compiled.marks[name]["graphs"], compiled.marks[name]["breaks"]) == (1, 0)


def test_a_generation_that_compiles_itself_decodes_in_one_graph(compiled: Recorded) -> None:
    assert compiled.sums("static") == generation(1, 5)
    assert [step.flags for step in compiled.of("static")] == [0, 1, 1, 1]
    assert (compiled.marks["static"]["graphs"], compiled.marks["static"]["breaks"]) == (1, 0)


def test_a_module_around_a_model_is_a_step_and_any_other_is_none(compiled: Recorded) -> None:
    assert compiled.sums("around") == [("prefill", 5, 1, 5, 25)]
    assert compiled.sums("other module") == compiled.sums("export") == []
