"""What a step runs over, and what recorded shapes and names say against or beside the description."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from traceanalyzer.analysis.model.description import Description
from traceanalyzer.analysis.replay import checks, described
from traceanalyzer.analysis.replay.facts import facts_of
from traceanalyzer.analysis.replay.layers import Pass
from traceanalyzer.analysis.replay.products import product
from traceanalyzer.analysis.replay.sizes import Facts, Sizes, sizes_of
from traceanalyzer.catalog import models, weight_bits

NOTHING = dict.fromkeys(
    ("tokens", "prefill_tokens", "decode_tokens", "sequences", "prefill_sequences", "decode_sequences", "context_sum",
     "query_context_sum", "padded_tokens"), np.nan,
)  # fmt: skip


def facts(phase: str = "decode", captured: int | None = None, **known: float) -> Facts | str | None:
    step: dict[Hashable, object] = {"phase": phase, "evidence": ""}
    for name, value in {**NOTHING, **known}.items():
        step[name] = value
    return facts_of(step, captured)


def sizes(name: str, tp: int = 1, **more: Any) -> Sizes:
    config = replace(models.find(name), **more)
    found = sizes_of(Description(config=config, weight_bits=weight_bits.plain(16), tp=tp, dtype="bf16"))
    assert found is not None
    return found


def test_padding_counts_for_the_kernels_and_not_for_the_cache() -> None:
    found = facts(captured=8, tokens=6, sequences=6, context_sum=600)
    assert isinstance(found, Facts)
    assert (found.rows, found.tokens, found.logits, found.keys, found.pairs) == (8, 6, 6, 600, 600)
    assert facts(padded_tokens=2, tokens=6, sequences=6, context_sum=600) == found


def test_grids_that_no_padding_explains_are_told() -> None:
    assert facts(captured=64, tokens=20, sequences=20) == "64 tokens by the kernels' grids, 20 by the step"
    assert facts(captured=4, tokens=20, sequences=20) == "4 tokens by the kernels' grids, 20 by the step"


def test_without_tokens_nothing_is_known() -> None:
    assert facts() is None
    counted = facts(captured=16)
    assert isinstance(counted, Facts)
    assert (counted.rows, counted.sequences, counted.keys) == (16, None, None)


def test_a_causal_mask_hides_half_of_what_is_new() -> None:
    whole = facts("prefill", tokens=100, sequences=1, prefill_tokens=100, prefill_sequences=1, context_sum=100)
    assert isinstance(whole, Facts)
    work = described.attention(sizes("llama-3.1-8b"), whole, None)
    assert work is not None
    assert work.flops == 4 * 32 * 128 * 100 * 100 / 2
    assert not work.estimated
    seen = sum(min(i + 1, 16) for i in range(100)) - 16 / 2  # the diagonal of the first 16 counts half, as without one
    windowed = described.attention(sizes("llama-3.1-8b"), whole, 16)
    assert windowed is not None
    assert windowed.flops == pytest.approx(4 * 32 * 128 * seen, rel=0.01)


def test_a_window_of_several_sequences_is_an_estimate() -> None:
    decode = facts(tokens=4, sequences=4, context_sum=4000)
    assert isinstance(decode, Facts)
    whole = sizes("llama-3.1-8b", tp=2)
    full, cut = described.attention(whole, decode, None), described.attention(whole, decode, 128)
    assert full is not None
    assert cut is not None
    assert (full.kv_bytes, full.estimated) == (2 * 4000 * 4 * 128 * 2, False)
    assert (cut.kv_bytes, cut.estimated) == (2 * 4 * 128 * 4 * 128 * 2, True)


def test_ranks_divide_what_they_hold() -> None:
    decode = facts(tokens=8, sequences=8, context_sum=800)
    assert isinstance(decode, Facts)
    qkv = product("qkv", sizes("llama-3.1-8b", tp=4), decode, None, fused=False)
    assert qkv is not None
    assert (qkv.m, qkv.n, qkv.k) == (8, (4096 + 2 * 1024) // 4, 4096)
    assert qkv.flops == 2 * 8 * 1536 * 4096
    assert qkv.bytes == 2 * (8 * 4096 + 8 * 1536 + 1536 * 4096)


def test_experts_are_padded_to_whole_tiles_of_their_kernel() -> None:
    whole = sizes("gpt-oss-20b")
    found = checks.padded(whole, ["_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu"])
    assert (found.hidden_padded, found.expert_ffn_padded) == (3072, 3072)
    assert checks.padded(whole, ["fused_moe_kernel", "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x64x1"]) == whole


def test_a_recorded_shape_of_another_size_contradicts_its_role() -> None:
    nothing = range(0)
    passed = Pass((), {0: ("o", 3), 1: ("lm_head", -1)}, nothing, 1)
    rows = np.array([[0, 1]], np.int64)
    fits = pd.DataFrame({"n": [4096, 128_512], "k": [4096, 4096]})  # the output layer is padded
    assert checks.contradicted(fits, rows, passed, sizes("llama-3.1-8b")) is None
    other = fits.assign(k=[5120, 4096])
    said = "layer 3: o of 4096 x 5120 recorded, 4096 x 4096 by the model"
    assert checks.contradicted(other, rows, passed, sizes("llama-3.1-8b")) == said


def test_a_contradicted_field_gives_no_sizes() -> None:
    config, bits = models.find("llama-3.1-8b"), weight_bits.plain(16)
    known = Description(config=config, weight_bits=bits, tp=1, dtype="bf16")
    assert sizes_of(known) is not None
    assert sizes_of(replace(known, contradicted=frozenset({"hidden"}))) is None
    assert sizes_of(replace(known, tp=None)) is None
    assert sizes_of(replace(known, weight_bits=None)) is None


def test_no_query_is_longer_than_its_context() -> None:
    """A label with 128 tokens of one sequence and one pair would give negative FLOPs."""
    assert isinstance(facts("prefill", tokens=128, sequences=1, context_sum=200, query_context_sum=128**2), Facts)
    told = facts("prefill", tokens=128, sequences=1, context_sum=200, query_context_sum=1)
    assert told == "128 tokens attend to themselves more often than the 1 times the step says"


def test_names_with_tiles_of_nothing_pad_nothing() -> None:
    own = sizes("gpt-oss-120b")
    for depth in ("0", "9" * 5000):
        assert checks.padded(own, [f"_matmul_ogs_NNT_bf16xbf16_16x256x{depth}x1_swiglu"]) == own


def test_checked_guesses_attend_to_latents_where_queries_are_absorbed() -> None:
    """Eight sequences of 4096 tokens check two tokens each: the latents are read once, whoever asks."""
    own = sizes("deepseek-v3", tp=8)
    keys = 8 * 4096.0
    checks_two = facts("decode", tokens=16, sequences=8, decode_tokens=16, decode_sequences=8, prefill_tokens=0,
                       prefill_sequences=0, context_sum=keys, query_context_sum=2 * keys)  # fmt: skip
    assert isinstance(checks_two, Facts)
    found = described.attention(own, checks_two, None, absorbed=True)
    assert found is not None
    assert found.kv_bytes == keys * (512 + 64) * 2
    assert found.flops == 2.0 * 16 * (2 * keys - 16**2 / 8 / 2) * (2 * 512 + 64)
    expanded = described.attention(own, checks_two, None)
    assert expanded is not None
    assert expanded.kv_bytes == 16 * keys * (128 + 64 + 128) * 2
