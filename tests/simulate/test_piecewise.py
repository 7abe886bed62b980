"""Passes that replay a graph before, between and after the layers' attention, as engines do for mixed batches."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulate.test_passes import kernels, total
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.program import Op, Pass, Replay, launched
from traceanalyzer.simulate.scenario import Plant, Scenario
from traceanalyzer.simulate.write import simulate

RUN = Scenario(
    model="llama-3.2-1b", batch=3, prompt=24, output=4, chunk=16, arrivals_every=1, mode="piecewise",
    capture_sizes=(1, 2, 4, 8, 16),
)  # fmt: skip
LAYERS = 16


def pieces(one: Pass) -> list[Replay]:
    return [item for item in one.ops if isinstance(item, Replay)]


def roles(one: Pass) -> Counter[str]:
    """How many kernels of each role; parts of split keys are no work of a model."""
    return Counter(kernel.role for kernel in kernels(one) if kernel.role != "attention_combine")


def test_attention_stays_between_the_pieces() -> None:
    for one in passes(RUN):
        found = pieces(one)
        if one.tokens > 16:  # more than was captured
            assert (found, one.padded_tokens) == ([], 0)
            continue
        assert [piece.piece for piece in found] == sorted({piece.piece for piece in found})
        assert len(found) == LAYERS + 1
        assert not any(kernel.role in ("attention", "kv_write") for piece in found for kernel in piece.kernels)
        between = [item for item in one.ops if isinstance(item, Op)][1:]  # the first copies the ids
        assert Counter(kernel.role for kernel in launched(between)) == {"attention": LAYERS, "kv_write": LAYERS}
        rows = {kernel.grid[0] for piece in found for kernel in piece.kernels if kernel.role in ("rope", "activation")}
        assert rows == {one.tokens + one.padded_tokens}
        # Attention and the cache know the real tokens only.
        assert {kernel.grid[0] for kernel in launched(between) if kernel.role == "kv_write"} == {one.tokens}
        assert {kernel.grid[1] for kernel in launched(between) if kernel.role == "attention"} == {one.sequences}


def test_the_work_is_that_of_eager_passes() -> None:
    plain = replace(RUN, mode="eager", capture_sizes=())
    run = [*passes(RUN)]
    assert {one.phase for one in run if pieces(one)} == {"prefill", "mixed", "decode"}
    for one, eager in zip(run, passes(plain), strict=True):
        assert (one.phase, one.tokens, one.context_sum) == (eager.phase, eager.tokens, eager.context_sum)
        assert roles(one) == roles(eager)
        other = [kernel for kernel in kernels(eager) if kernel.role != "attention_combine"]
        same = one.useful or (total(kernels(one), "flops"), total(kernels(one), "bytes"))
        assert same == (total(other, "flops"), total(other, "bytes"))
        assert total(kernels(one), "flops", "attention") == total(kernels(eager), "flops", "attention")


def test_decode_whole_and_the_rest_in_pieces() -> None:
    for one in passes(replace(RUN, mode="full-and-piecewise")):
        assert bool(one.graph) == (one.phase == "decode")
        assert bool(pieces(one)) == (one.phase != "decode" and one.tokens <= 16)


@pytest.mark.parametrize(("model", "layers"), [("deepseek-v2-lite", 27), ("qwen3-30b-a3b", 48)])
def test_latent_attention_and_experts_in_pieces(model: str, layers: int) -> None:
    run = replace(RUN, model=model, gpu="h100-sxm-80gb", batch=1, output=2, chunk=None)
    *_, decode = passes(run)
    (*_, eager) = passes(replace(run, mode="eager", capture_sizes=()))
    assert len(pieces(decode)) == layers + 1
    assert roles(decode) == roles(eager)


def test_each_piece_is_a_graph_of_its_own(tmp_path: Path) -> None:
    run = replace(RUN, batch=2, plants=(Plant("allocator", 5_000, 3),))
    (written,) = simulate(run, tmp_path / "run.json", passes)
    truth = json.loads(written.truth.read_text())
    calls: Counter[str] = Counter()
    graphs: dict[int, set[tuple[object, ...]]] = defaultdict(set)
    nodes: dict[int, int] = defaultdict(int)
    for event in json.loads(written.trace.read_text())["traceEvents"]:
        calls[event["name"]] += event.get("cat") == "cuda_runtime"
        if event.get("cat") == "kernel" and "graph id" in event["args"]:
            args = event["args"]
            graphs[args["graph node id"]].add((event["name"], *args["grid"]))
            nodes[args["graph id"]] = max(nodes[args["graph id"]], args["graph node id"] & 0xFFFFFFFF)
    replayed = [one for one in truth["steps"] if one["tokens"] <= 16]
    assert calls["cudaGraphLaunch"] == (LAYERS + 1) * len(replayed)
    sizes = {one["tokens"] + one["padded_tokens"] for one in replayed}
    assert len(nodes) == (LAYERS + 1) * len(sizes)
    # Embedding, norm, qkv, rope; output, norm, gate and up, activation, down, norm, qkv, rope; last a norm alone.
    assert Counter(nodes.values()) == {4: len(sizes), 8: (LAYERS - 1) * len(sizes), 6: len(sizes)}
    assert {len(kinds) for kinds in graphs.values()} == {1}
    assert sum(row["ns"] for row in truth["ledger"]) == truth["span"]["span_ns"]
    assert any(step["idle"].get("idle_graph_launch") for step in truth["steps"])
    assert [step["idle_causes"].get("allocator", 0) for step in truth["steps"]][2] >= 5_000
