"""The simulator's passes against formulas written down here: sums per pass, shapes against kernels, schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from traceanalyzer.catalog.models import find
from traceanalyzer.errors import InputError, TraceAnalyzerError
from traceanalyzer.simulate.experts import draw_active
from traceanalyzer.simulate.passes import passes
from traceanalyzer.simulate.program import Copy, Kernel, Launch, Op, Pass, Replay
from traceanalyzer.simulate.reference import ALONE, EIGHT
from traceanalyzer.simulate.scenario import Scenario

MATRIX = ("gemm", "gemv")
LLAMA = Scenario(model="llama-3.1-8b", batch=2, prompt=100, output=3)
# One layer's matrices (outputs x inputs), written out.
LLAMA_LAYER = 6144 * 4096 + 4096 * 4096 + 2 * 14336 * 4096 + 4096 * 14336
LLAMA_HEAD = 128_256 * 4096


def ops_of(ops: Iterable[Op | Launch]) -> Iterator[Op]:
    for one in ops:
        if isinstance(one, Op):
            yield one
            yield from ops_of(one.body)


def launched(ops: Iterable[Op | Launch | Replay]) -> Iterator[Kernel]:
    for one in ops:
        if isinstance(one, Op):
            yield from launched(one.body)
        elif isinstance(one, Replay):
            yield from one.kernels
        elif isinstance(one.work, Kernel):
            yield one.work


def kernels(one: Pass) -> list[Kernel]:
    return [*launched(one.ops), *one.graph, *launched(one.after)]


def total(of: Iterable[Kernel], what: str, *roles: str) -> float:
    return sum(getattr(kernel, what) or 0 for kernel in of if not roles or kernel.role in roles)


def test_llama_prefill_and_decode_do_the_work_of_their_matrices() -> None:
    prefill, decode, _ = passes(LLAMA)
    assert (prefill.phase, prefill.tokens, prefill.sequences, prefill.context_sum) == ("prefill", 200, 2, 200)
    assert (decode.phase, decode.tokens, decode.context_sum, decode.query_context_sum) == ("decode", 2, 202, 202)
    assert total(kernels(prefill), "flops", *MATRIX) == 2 * 200 * 32 * LLAMA_LAYER + 2 * 2 * LLAMA_HEAD
    assert total(kernels(decode), "flops", *MATRIX) == 2 * 2 * (32 * LLAMA_LAYER + LLAMA_HEAD)
    # Causal: half the square of 100 x 100; one query: all 101 keys. 4 FLOPs a pair, head and element.
    assert total(kernels(prefill), "flops", "attention") == 32 * 2 * 4 * 32 * 128 * 100 * 100 / 2
    assert total(kernels(decode), "flops", "attention") == 32 * 2 * 4 * 32 * 128 * 101
    # 131072 bytes of cache a token; queries and output of 32 heads.
    assert total(kernels(decode), "kv_bytes") == 131_072 * 202
    attention = [kernel for kernel in kernels(decode) if kernel.role == "attention"]
    assert total(attention, "bytes") == 131_072 * 202 + 32 * 2 * 2 * 4096 * 2


# Weights that a decode step reads: the published total without tables of which it takes rows.
READ = {
    "llama-3.1-8b": 8_030_261_248 - 128_256 * 4096,
    "qwen2.5-7b": 7_615_616_512 - 152_064 * 3584,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b": 999_885_952,
    "gpt2": 124_439_808 - 1024 * 768,
    "opt-6.7b": 6_658_473_984 - 2050 * 4096,
    "falcon-7b": 6_921_720_704,
    "command-r": 34_980_831_232,
    "olmo-2-7b": 7_298_617_344 - 100_352 * 4096,
    "qwen3-8b": 8_190_735_360 - 151_936 * 4096,
    "phi-3-mini": 3_821_079_552 - 32_064 * 3072,
}


@pytest.mark.parametrize(("model", "weights"), READ.items())
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_decode_step_reads_every_weight_once(model: str, weights: int, fused: bool, batch: int) -> None:
    decode = list(passes(Scenario(model=model, batch=batch, prompt=20, output=2, fused=fused, gpu="h100-sxm-80gb")))[-1]
    assert total(kernels(decode), "weight_bytes") == 2 * weights


@pytest.mark.parametrize(("dtype", "size"), [("bf16", 2), ("fp16", 2), ("fp32", 4)])
def test_bytes_follow_the_data_type(dtype: str, size: int) -> None:
    scenario = replace(LLAMA, dtype=dtype, attention="math", model="tinyllama-1.1b")
    decode = list(passes(scenario))[-1]
    assert total(kernels(decode), "weight_bytes") == size * (1_100_048_384 - 32_000 * 2048)
    units = {(kernel.dtype, kernel.tensor_core) for kernel in kernels(decode) if kernel.role == "gemm"}
    assert units == {(dtype, dtype != "fp32")}


@pytest.mark.parametrize("scenario", [
    LLAMA,
    replace(LLAMA, fused=False, kv_cache="cat", sampler="full"),
    replace(LLAMA, model="qwen2.5-7b", batch=1),
    replace(LLAMA, model="gpt2", attention="math"),
    replace(LLAMA, model="qwen3-30b-a3b", gpu="h200-sxm"),
    replace(LLAMA, model="llama-3.1-70b", ranks=4),
], ids=str)  # fmt: skip
def test_recorded_shapes_give_each_products_work(scenario: Scenario) -> None:
    seen = 0
    for one in passes(scenario):
        for op in ops_of((*one.ops, *one.after)):
            if op.name not in ("aten::mm", "aten::addmm", "aten::bmm"):
                continue
            left, right = op.arguments[1:3] if op.name == "aten::addmm" else op.arguments[:2]
            *many, m, k = left.dims
            *_, inner, n = right.dims
            assert inner == k
            (kernel,) = launched(op.body)
            count = math.prod(many)
            size = {"c10::BFloat16": 2, "c10::Half": 2, "float": 4}[left.dtype]
            bias = op.name == "aten::addmm"
            assert kernel.flops == count * (2 * m * n * k + bias * m * n)
            assert kernel.bytes == count * size * (m * k + k * n + m * n + bias * n)
            seen += 1
    assert seen > 100


def test_a_bias_is_read_and_added() -> None:
    decode = list(passes(Scenario(model="qwen2.5-7b", prompt=10, output=2)))[-1]
    layer = 2 * 4608 * 3584 + 4608 + 2 * 3584 * 3584 + 2 * 3 * 18_944 * 3584
    assert total(kernels(decode), "flops", *MATRIX) == 28 * layer + 2 * 152_064 * 3584


def test_sliding_layers_read_their_window_only() -> None:
    scenario = Scenario(model="gemma-3-1b", prompt=2000, output=2)
    prefill, decode = passes(scenario)
    # 4 full layers and 22 of 512 keys; one key head of 256.
    assert total(kernels(decode), "kv_bytes") == (4 * 2001 + 22 * 512) * 2 * 256 * 2
    # The area under min(position, window), summed query by query.
    full = sum(position + 0.5 for position in range(2000))
    sliding = sum(min(position + 0.5, 512) for position in range(2000))
    assert total(kernels(prefill), "flops", "attention") == (4 * full + 22 * sliding) * 4 * 4 * 256


@pytest.mark.parametrize("chunk", [1, 37, 64, 500])
def test_chunks_add_up_to_the_whole_prompt(chunk: int) -> None:
    whole = Scenario(model="llama-3.2-1b", batch=2, prompt=150, output=4)
    parts = list(passes(replace(whole, chunk=chunk)))
    assert sum(one.prefill_tokens for one in parts) == 300
    assert sum(one.decode_tokens for one in parts) == 2 * 3
    assert all(one.prefill_tokens <= chunk for one in parts)
    # Reading in chunks of one token counts each diagonal whole, larger ones half.
    attention = sum(total(kernels(one), "flops", "attention") for one in parts)
    unchunked = sum(total(kernels(one), "flops", "attention") for one in passes(whole))
    assert attention == pytest.approx(unchunked, rel=0.02 if chunk == 1 else 1e-4)
    assert {one.phase for one in parts} == {"prefill", "decode"} | ({"mixed"} if chunk < 300 else set())


def test_later_arrivals_ride_along() -> None:
    scenario = Scenario(model="llama-3.2-1b", batch=3, prompt=64, output=10, chunk=32, arrivals_every=4)
    told = [(one.phase, one.prefill_sequences, one.decode_sequences, one.requests) for one in passes(scenario)]
    assert told[:6] == [
        ("prefill", 1, 0, (0,)), ("prefill", 1, 0, (0,)), ("decode", 0, 1, (0,)), ("decode", 0, 1, (0,)),
        ("mixed", 1, 1, (0, 1)), ("mixed", 1, 1, (0, 1)),
    ]  # fmt: skip
    assert sum(decode for _, _, decode, _ in told) == 3 * 9


def test_what_the_cache_holds_of_a_prompt_is_not_read_again() -> None:
    hit, decode, _ = passes(replace(LLAMA, prefix=90))
    assert (hit.phase, hit.tokens, hit.context_sum, hit.query_context_sum) == ("prefill", 20, 200, 2_000)
    assert (decode.tokens, decode.context_sum) == (2, 202)
    # Ten queries over a hundred keys, causal: 10 x 100 - 10 x 10 / 2 pairs.
    assert total(kernels(hit), "flops", "attention") == 32 * 2 * 4 * 32 * 128 * 950
    assert total(kernels(hit), "kv_bytes") == 131_072 * 200
    assert total(kernels(hit), "flops", *MATRIX) == 2 * 20 * 32 * LLAMA_LAYER + 2 * 2 * LLAMA_HEAD
    chunked = [(one.prefill_tokens, one.context_sum) for one in passes(replace(LLAMA, batch=1, prefix=90, chunk=8))]
    assert chunked == [(8, 98), (2, 100), (0, 101), (0, 102)]


def test_groups_take_turns() -> None:
    told = [(one.phase, one.requests) for one in passes(replace(EIGHT, output=3))]
    groups = [(0, 1, 2), (3, 4, 5), (6, 7)]
    assert told == [(phase, group) for phase in ("prefill", "decode", "decode") for group in groups]
    alone = [one.requests for one in passes(Scenario(batch=2, prompt=5, output=2, together=False))]
    assert alone == [(0,), (1,), (0,), (1,)]


def test_without_prefill_only_decoding_is_left() -> None:
    told = [(one.phase, one.context_sum) for one in passes(Scenario(batch=2, prompt=30, output=3, skip_prefill=True))]
    assert told == [("decode", 62), ("decode", 64)]


def test_a_graph_replays_the_kernels_of_eager_passes() -> None:
    eager = list(passes(LLAMA))
    graph = list(passes(replace(LLAMA, mode="graph")))
    assert not graph[0].graph
    assert graph[0] == eager[0]
    for one, other in zip(graph[1:], eager[1:], strict=True):
        assert list(one.graph) == list(launched(other.ops))
        assert not list(launched(one.ops))
        assert one.after == other.after


def test_a_concatenated_cache_is_copied_whole() -> None:
    decode = list(passes(replace(LLAMA, kv_cache="cat")))[-1]
    cat = [kernel for kernel in kernels(decode) if kernel.role == "kv_cat"]
    assert len(cat) == 64
    assert total(cat, "bytes") == 2 * 131_072 * 2 * 102
    assert not [kernel for kernel in kernels(list(passes(LLAMA))[-1]) if kernel.role == "kv_cat"]


def test_math_attention_multiplies_masked_pairs_and_repeats_keys() -> None:
    prefill, decode, _ = passes(replace(LLAMA, attention="math"))
    assert total(kernels(prefill), "flops", "attention") == 32 * 2 * 4 * 32 * 128 * 100 * 100
    assert total(kernels(decode), "kv_bytes") == 131_072 * 202
    repeats = [kernel for kernel in kernels(decode) if kernel.kv_bytes]
    assert total(repeats, "bytes") == 131_072 * 202 * (1 + 32 // 8)


@pytest.mark.parametrize(("weights", "gpu", "bits", "dtype"), [
    ("fp8", "h100-sxm-80gb", 8, "fp8"),
    ("int8", "a100-sxm4-80gb", 8, "bf16"),
    ("int4", "a100-sxm4-80gb", 4 + 16 / 128, "bf16"),
    ("fp4", "b200", 4 + 8 / 16, "fp4"),
])  # fmt: skip
def test_quantised_weights_are_read_packed(weights: str, gpu: str, bits: float, dtype: str) -> None:
    decode = list(passes(replace(LLAMA, weights=weights, gpu=gpu)))[-1]
    layers = [kernel for kernel in kernels(decode) if kernel.role == "gemm"][:-1]
    per_output = {"int8": 2 * 32 * (6144 + 4096 + 28_672 + 4096), "fp8": 4 * 32 * 4}.get(weights, 0)
    assert total(layers, "weight_bytes") == 32 * LLAMA_LAYER * bits / 8 + per_output
    assert total(layers, "flops") == 2 * 2 * 32 * LLAMA_LAYER
    assert {kernel.dtype for kernel in layers} == {dtype}
    head = [kernel for kernel in kernels(decode) if kernel.role == "gemm"][-1]
    assert head.weight_bytes == 2 * LLAMA_HEAD


@pytest.mark.parametrize(("weights", "gpu", "written"), [("fp8", "h100-sxm-80gb", 1), ("fp4", "b200", 1 / 2 + 1 / 16)])
def test_activations_are_scaled_and_clamped_before_a_quantised_product(weights: str, gpu: str, written: float) -> None:
    decode = list(passes(replace(LLAMA, weights=weights, gpu=gpu)))[-1]
    # Two tokens through four products a layer, three of width 4096 and one of 14336; one fp32 scale is read by each.
    numbers = 32 * 2 * (3 * 4096 + 14_336)
    assert total(kernels(decode), "flops", "quantise") == 2 * numbers
    assert total(kernels(decode), "bytes", "quantise") == numbers * (2 + written) + 32 * 4 * 4


def test_an_fp8_cache_is_half_as_large() -> None:
    decode = list(passes(replace(LLAMA, kv="fp8", gpu="h100-sxm-80gb")))[-1]
    assert total(kernels(decode), "kv_bytes") == 131_072 * 204 / 2
    writes = total(kernels(decode), "bytes", "kv_write")
    assert writes == 32 * (2 * 2 * 1024 * (2 + 1) + 2 * 8)


def test_experts_are_read_as_often_as_tokens_meet_them() -> None:
    scenario = Scenario(model="qwen3-30b-a3b", gpu="h200-sxm", prompt=400, output=2)
    prefill, decode = passes(scenario)
    expert = 3 * 2048 * 768
    # One token meets its 8 experts; 400 tokens meet all 128.
    assert total(kernels(decode), "weight_bytes", "moe") == 2 * 48 * 8 * expert
    assert total(kernels(prefill), "weight_bytes", "moe") == 2 * 48 * 128 * expert
    assert total(kernels(prefill), "flops", "moe") == 2 * 48 * 400 * 8 * expert
    assert total(kernels(decode), "weight_bytes") == 2 * (30_532_122_624 - 48 * 120 * expert - 151_936 * 2048)


def test_grids_of_grouped_products_and_of_attention_in_a_window() -> None:
    # 128 experts, 8 a token, tiles of 64 x 64; up 1536 outputs, down 2048.
    for batch, tiles in ((4, (32, 32)), (16, (128, 128)), (64, (134, 134))):
        _, decode = passes(Scenario(model="qwen3-30b-a3b", batch=batch, prompt=8, output=2, gpu="h100-sxm-80gb"))
        grids = [kernel.grid[0] for kernel in kernels(decode) if kernel.role == "moe"][:2]
        assert grids == [tiles[0] * 24, tiles[1] * 32]
    # gemma-3-1b: four heads share one key head; in a window each has a block of its own.
    _, decode = passes(Scenario(model="gemma-3-1b", batch=3, prompt=600, output=2, mode="piecewise"))
    assert {kernel.grid for kernel in kernels(decode) if kernel.role == "attention"} == {(1, 3, 1), (1, 3, 4)}


def test_latent_attention_reads_latents_and_makes_keys_for_prompts_only() -> None:
    scenario = Scenario(model="deepseek-v2-lite", gpu="h100-sxm-80gb", prompt=300, output=3)
    prefill, decode, _ = passes(scenario)
    expert = 3 * 2048 * 1408
    held = find("deepseek-v2-lite").published_parameters
    assert held is not None
    # 58 of 64 experts in 26 of 27 layers are not read, nor is the embedding table.
    assert total(kernels(decode), "weight_bytes") == 2 * (held - 26 * 58 * expert - 102_400 * 2048)
    assert total(kernels(decode), "kv_bytes") == 27 * 301 * 576 * 2
    assert total(kernels(decode), "flops", "attention") == 27 * 2 * 16 * 301 * (576 + 512)
    assert total(kernels(prefill), "flops", "attention") == 27 * 2 * 16 * 300 * 300 / 2 * (192 + 128)
    made = 2 * 27 * 300 * 512 * 16 * 256
    layer = 16 * 192 * 2048 + 576 * 2048 + 2048 * 2048
    dense = 3 * 2048 * 10_944 + 26 * (3 * 2048 * 2816 + 64 * 2048)
    assert total(kernels(prefill), "flops", *MATRIX) == made + 2 * 300 * (27 * layer + dense) + 2 * 102_400 * 2048


@pytest.mark.parametrize("tokens", [2, 8, 32])
def test_as_many_experts_are_active_as_uniform_routing_gives(tokens: int) -> None:
    moe = find("qwen3-30b-a3b").moe
    drawn = [draw_active(np.random.default_rng(seed), moe, tokens) for seed in range(400)]
    assert np.mean(drawn) == pytest.approx(128 * (1 - (1 - 8 / 128) ** tokens), rel=0.02)
    assert 8 < min(drawn) <= max(drawn) <= min(128, 8 * tokens)


def test_ranks_share_the_model_and_communicate() -> None:
    whole = Scenario(model="llama-3.1-70b", gpu="h200-sxm", batch=4, prompt=50, output=2)
    shared = replace(whole, ranks=4)
    one = list(passes(whole))[-1]
    ranks = [list(passes(shared, rank))[-1] for rank in range(4)]
    norms = 161 * 8192 * 2
    read = sum(total(kernels(rank), "weight_bytes") for rank in ranks)
    assert read == total(kernels(one), "weight_bytes") + 3 * norms
    assert sum(total(kernels(rank), "kv_bytes") for rank in ranks) == total(kernels(one), "kv_bytes")
    assert sum(total(kernels(rank), "flops", *MATRIX) for rank in ranks) == total(kernels(one), "flops", *MATRIX)
    reduces = [kernel for kernel in kernels(ranks[0]) if "AllReduce" in kernel.name]
    assert len(reduces) == 160
    # A ring sends 2 * 3/4 of 4 x 8192 numbers at 300 GB/s, after 12 us.
    assert reduces[0].duration_ns == 12_000 + round(1.5 * 4 * 8192 * 2 / 300)
    assert all(kernel.communication and kernel.flops is None and kernel.bytes is None for kernel in reduces)
    assert not [kernel for kernel in kernels(one) if kernel.communication]


def test_a_kernel_takes_the_longer_of_arithmetic_and_traffic() -> None:
    costs = replace(Scenario().costs, kernel_fixed_ns=0)
    prefill, decode, _ = passes(replace(LLAMA, costs=costs, prompt=4000))
    down = [kernel for kernel in kernels(prefill) if kernel.role == "gemm"][3]
    assert down.duration_ns == round(2 * 8000 * 4096 * 14_336 / (0.70 * 312e12) * 1e9)
    small = [kernel for kernel in kernels(decode) if kernel.role == "gemm"][3]
    assert small.duration_ns == round(2 * (4096 * 14_336 + 2 * (4096 + 14_336)) / (0.80 * 2039e9) * 1e9)


def test_attention_that_does_not_split_keys_leaves_the_card_empty() -> None:
    costs = replace(Scenario().costs, kernel_fixed_ns=0)
    scenario = Scenario(prompt=8000, output=2, costs=costs)
    split, whole = (list(passes(replace(scenario, split_kv=split_kv)))[-1] for split_kv in (True, False))
    fast, slow = (next(k for k in kernels(one) if k.role == "attention") for one in (split, whole))
    assert (fast.flops, fast.bytes) == (slow.flops, slow.bytes)
    # 8 blocks on 108 multiprocessors.
    assert slow.duration_ns == pytest.approx(fast.duration_ns * 108 / 8, rel=1e-4)


def test_the_ids_are_copied_to_the_host() -> None:
    def copies(ops: Iterable[Op | Launch]) -> list[Copy]:
        calls = [launch for op in ops_of(ops) for launch in op.body if isinstance(launch, Launch)]
        return [launch.work for launch in calls if isinstance(launch.work, Copy)]

    (copy,) = copies(next(passes(LLAMA)).after)
    assert (copy.direction, copy.size, copy.blocking) == ("DtoH", 16, True)
    (copy,) = copies(next(passes(replace(LLAMA, sync_every_step=False))).after)
    assert not copy.blocking


def test_the_full_sampler_sorts_the_vocabulary() -> None:
    after = next(passes(replace(LLAMA, sampler="full"))).after
    assert {"aten::softmax", "aten::sort", "aten::cumsum", "aten::multinomial"} <= {op.name for op in after}
    assert all(kernel.flops is None for kernel in launched(after) if kernel.role == "sort")
    assert "aten::argmax" in {op.name for op in next(passes(LLAMA)).after}


def test_the_same_scenario_gives_the_same_passes() -> None:
    scenario = Scenario(model="qwen3-30b-a3b", gpu="h200-sxm", batch=4, prompt=20, output=4, seed=7)
    assert list(passes(scenario)) == list(passes(scenario))
    weights = [
        [total(kernels(one), "weight_bytes", "moe") for one in passes(replace(scenario, seed=s))] for s in (7, 8)
    ]
    assert weights[0] != weights[1]


def test_layers_are_shared_between_passes_of_one_shape() -> None:
    _, first, second = passes(LLAMA)
    ids = {id(op) for op in first.ops}
    shared = [op for op in second.ops if id(op) in ids]
    assert len(shared) > 0.7 * len(second.ops)


def test_the_reference_scenario_is_in_fp16_on_one_a100() -> None:
    assert (ALONE.model, ALONE.gpu, ALONE.dtype, ALONE.batch, EIGHT.batch) == (
        "llama-3.1-8b", "a100-sxm4-80gb", "fp16", 1, 8,
    )  # fmt: skip
    step = list(passes(replace(ALONE, output=2)))[-1]
    busy = sum(kernel.duration_ns for kernel in kernels(step))
    assert 0.9 * 22.2e6 < busy < 22.2e6


@pytest.mark.parametrize(("changes", "message"), [
    ({"model": "deepseek-v3"}, "simulated on Hopper only"),
    ({"model": "deepseek-v2-lite", "gpu": "h200-sxm", "fused": False}, "fused kernels"),
    ({"model": "deepseek-v3", "gpu": "h200-sxm"}, "needs 1342 GB on one GPU"),
    ({"model": "no-such-model"}, "unknown model"),
    ({"gpu": "no-such-gpu"}, "unknown GPU"),
    ({"gpu": "mi300x"}, "mi300x"),
    ({"weights": "fp8"}, "a100-sxm4-80gb multiplies no fp8"),
    ({"weights": "fp4", "gpu": "h100-sxm-80gb"}, "multiplies no fp4"),
    ({"weights": "int4", "dtype": "fp32", "attention": "math"}, "16-bit activations"),
    ({"weights": "int4", "model": "falcon-7b"}, "no multiple of 128"),
    ({"weights": "int8", "model": "mixtral-8x7b", "ranks": 2}, "experts"),
    ({"dtype": "fp32"}, "flash attention does not run in fp32"),
    ({"gpu": "v100-sxm2-32gb"}, "no bf16"),
    ({"gpu": "p40", "dtype": "fp16", "attention": "math"}, "no fp16 peak of p40 on tensor cores"),
    ({"model": "qwen2.5-7b", "ranks": 8}, "does not divide over 8 ranks"),
    ({"model": "llama-3.1-70b"}, "needs 141 GB on one GPU"),
    ({"model": "gpt2", "prompt": 2000}, "too many for gpt2"),
    ({"kv_cache": "cat", "chunk": 10}, "sequences of one length"),
    ({"attention": "math", "arrivals_every": 2}, "sequences of one length"),
    ({"kv": "fp8", "kv_cache": "cat"}, "fp8 cache"),
    ({"mode": "graph", "kv_cache": "cat"}, "fixed shapes"),
    ({"group_size": 0}, "group_size"),
    ({"skip_prefill": True, "chunk": 5}, "without prefill"),
    ({"prefix": 100}, "none is left to read"),
    ({"prefix": 9, "kv_cache": "cat"}, "sequences of one length"),
])  # fmt: skip
def test_what_cannot_be_simulated_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(TraceAnalyzerError, match=message):
        passes(replace(LLAMA, **changes))


def test_there_are_only_the_ranks_that_run() -> None:
    with pytest.raises(InputError, match="no rank 1"):
        passes(LLAMA, 1)
