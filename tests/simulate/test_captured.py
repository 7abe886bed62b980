"""Graphs captured for certain sizes: what a padded pass computes, what of it is useful, and what is captured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulate.test_passes import kernels, total
from traceanalyzer.errors import InputError
from traceanalyzer.simulate import captured
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.program import Kernel
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.write import simulate

RUN = Scenario(model="llama-3.2-1b", batch=5, prompt=32, output=3, mode="graph", capture_sizes=(1, 2, 4, 8))
# llama-3.2-1b: 16 layers; qkv 3072, gate and up 16384, MLP 8192 wide, 2048 hidden, 8 key heads of 64.
LAYER = 3072 * 2048 + 2048 * 2048 + 3 * 8192 * 2048
BY_TOKEN = ("rms_norm_kernel", "rotary_embedding", "reshape_and_cache", "act_and_mul")


def by_name(found: list[Kernel], *parts: str) -> list[Kernel]:
    return [one for one in found if any(part in one.name for part in parts)]


def test_a_padded_pass_multiplies_rows_for_nobody() -> None:
    _, decode, _ = passes(RUN)
    plain = next(one for one in passes(replace(RUN, capture_sizes=(5,))) if one.phase == "decode")
    assert (decode.tokens, decode.padded_tokens, decode.sequences, decode.context_sum) == (5, 3, 5, 5 * 33)
    assert total(decode.graph, "flops", "gemm") == 2 * 8 * 16 * LAYER
    assert total(plain.graph, "flops", "gemm") == 2 * 5 * 16 * LAYER
    # Padding attends to nothing and is written to no cache; the lm_head is for real sequences.
    for role in ("attention", "kv_write"):
        assert total(decode.graph, "flops", role) == total(plain.graph, "flops", role)
    assert total(decode.graph, "kv_bytes") == total(plain.graph, "kv_bytes") == 2 * 16 * 8 * 64 * 2 * decode.context_sum
    assert total(decode.graph, "bytes", "kv_write") == total(plain.graph, "bytes", "kv_write") + 16 * 3 * 8
    heads = [
        [one.flops for one in kernels(given)[len(given.graph) :] if one.role == "gemm"] for given in (decode, plain)
    ]
    assert heads[0] == heads[1] == [2 * 5 * 2048 * 128_256]
    # What is useful is what the pass does at its own size.
    assert decode.useful == (total(kernels(plain), "flops"), total(kernels(plain), "bytes"))
    assert plain.padded_tokens == 0
    assert plain.useful is None


def test_grids_tell_the_captured_size() -> None:
    _, decode, _ = passes(RUN)
    assert {one.grid for one in by_name(list(decode.graph), *BY_TOKEN)} == {(8, 1, 1)}
    assert {one.grid for one in by_name(list(decode.graph), "flash_fwd")} == {(1, 8, 8)}
    # vLLM's unified attention: 16 rows hold four heads of a key head for four tokens.
    _, decode, _ = passes(replace(RUN, kv="fp8", gpu="h100-sxm-80gb"))
    assert {one.grid for one in by_name(list(decode.graph), "unified")} == {(8 // 4 + 8, 8, 1)}


def test_a_larger_pass_runs_eagerly_and_sizes_hold_whole_sequences() -> None:
    assert [bool(one.graph) for one in passes(replace(RUN, capture_sizes=(1, 2, 4)))] == [False, False, False]
    sizes = replace(RUN, capture_sizes=(1, 2, 4, 8))
    assert [captured.size(sizes, tokens) for tokens in (1, 3, 8, 9)] == [1, 4, 8, None]
    assert [captured.size(sizes, tokens, 3) for tokens in (3, 6, 9)] == [3, 6, 9]
    assert captured.size(replace(RUN, capture_sizes=()), 7) == 7
    assert (captured.USUAL[:6], captured.USUAL[-1], len(captured.USUAL)) == ((1, 2, 4, 8, 16, 24), 512, 51)


def test_one_graph_per_size_has_the_same_kernels_every_time() -> None:
    # Requests arrive one by one, so that contexts differ, and leave one by one.
    run = replace(RUN, arrivals_every=2, output=9)
    found: dict[int, set[tuple[tuple[str, tuple[int, int, int]], ...]]] = {}
    for one in passes(run):
        if one.graph:
            nodes = tuple((kernel.name, kernel.grid) for kernel in one.graph)
            found.setdefault(one.tokens + one.padded_tokens, set()).add(nodes)
    assert sorted(found) == [1, 2, 4, 8]
    assert {len(kinds) for kinds in found.values()} == {1}
    # Without captured sizes too, whatever the batch.
    for one in passes(replace(run, capture_sizes=())):
        if one.graph:
            assert "flash::flash_fwd_splitkv_kernel" in "".join(kernel.name for kernel in one.graph)


@pytest.mark.parametrize(("model", "gpu"), [("qwen3-30b-a3b", "h100-sxm-80gb"), ("deepseek-v2-lite", "h100-sxm-80gb")])
def test_experts_and_latent_attention_are_padded_too(model: str, gpu: str) -> None:
    run = replace(RUN, model=model, gpu=gpu, output=2)
    _, padded = passes(run)
    _, full = passes(replace(run, batch=8))
    for role in ("moe", "gemm", "gemv"):
        assert total(padded.graph, "flops", role) == total(full.graph, "flops", role)
    assert padded.useful == (None, None)  # sorting tokens by expert depends on the data


def test_the_truth_says_what_is_padding(tmp_path: Path) -> None:
    (written,) = simulate(RUN, tmp_path / "run.json", passes)
    truth = json.loads(written.truth.read_text())
    prefill, decode, _ = truth["steps"]
    assert (prefill["padded_tokens"], prefill["useful_flops"]) == (0, prefill["flops"])
    assert (decode["tokens"], decode["padded_tokens"]) == (5, 3)
    assert decode["flops"] - decode["useful_flops"] == pytest.approx(2 * 3 * 16 * LAYER, rel=0.01)
    assert decode["useful_bytes"] < decode["bytes"]
    assert truth["phases"]["decode"]["padded_tokens"] == 6
    assert "ta.step[decode n=1 tokens=5 seqs=5 ctx=165 qk=165 padded=3]" in written.trace.read_text()


@pytest.mark.parametrize(("sizes", "mode"), [
    ((0, 1), "graph"), ((2, 1), "graph"), ((1, 1), "graph"), ((1, 1 << 21), "graph"), ((True, 2), "graph"),
    ((1, 2), "eager"),
])  # fmt: skip
def test_what_cannot_be_captured_is_refused(sizes: tuple[int, ...], mode: str) -> None:
    with pytest.raises(InputError, match="captured"):
        passes(replace(RUN, capture_sizes=sizes, mode=mode))  # type: ignore[arg-type]
