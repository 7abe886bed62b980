"""Steps without labels: boundaries from inputs, graphs, logits and repetition; phases from token arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analysis.steps.factory import FFN, HIDDEN, Recording
from traceanalyzer.analysis.steps import find
from traceanalyzer.analysis.steps.phase import THRESHOLD
from traceanalyzer.trace.tables import MISSING

FA2 = (
    "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::bfloat16_t, "
    "Flash_kernel_traits<128, 64, 128, 4, cutlass::bfloat16_t> >, {causal}, false, false, false, true, false, {split}, "
    "false>(flash::Flash_fwd_params)"
)


def generation(r: Recording, prompt: int, new: int, batch: int = 1) -> None:
    """What an eager generate() with a growing cache launches."""
    r.forward(batch * prompt, batch, ids=[batch, prompt], q=prompt, k=prompt, batch=batch)
    for i in range(1, new):
        r.forward(batch, batch, ids=[batch, 1], q=1, k=prompt + i, batch=batch)


def test_generate_with_a_growing_cache():
    r = Recording()
    generation(r, prompt=37, new=5, batch=2)
    steps = find(*r.build())
    table = steps.table
    assert table["phase"].tolist() == ["prefill"] + ["decode"] * 4
    assert table["tokens"].tolist() == [74, 2, 2, 2, 2]
    assert table["sequences"].tolist() == [2] * 5
    assert table["context_sum"].tolist() == [74, 76, 78, 80, 82]
    assert table["query_context_sum"].tolist() == [2 * 37 * 37, 76, 78, 80, 82]
    assert (table["confidence"] > 0.95).all()
    assert table["complete"].all()
    assert "q=1 < k=38" in table["evidence"].iloc[1]
    assert (steps.facts.workload, steps.facts.layers, steps.facts.graph_mode) == ("generation", 4, "eager")


def test_every_evidence_string_fits_a_table():
    r = Recording()
    generation(r, prompt=600, new=3)
    for evidence in find(*r.build()).table["evidence"]:
        assert evidence
        assert all(isinstance(text, str) and 0 < len(text) <= 60 for text in evidence)


def test_a_fixed_cache_counts_its_context_up():
    """k stays 128 throughout; the prompt had 37 tokens."""
    r = Recording()
    r.forward(74, 2, ids=[2, 37], q=37, k=128, batch=2)
    for _ in range(4):
        r.forward(2, 2, ids=[2, 1], q=1, k=128, batch=2)
    table = find(*r.build()).table
    assert table["phase"].tolist() == ["prefill"] + ["decode"] * 4
    assert table["context_sum"].tolist() == [74, 76, 78, 80, 82]


def test_a_fixed_cache_without_its_prompt_has_an_unknown_context():
    r = Recording()
    for _ in range(4):
        r.forward(2, 2, ids=[2, 1], q=1, k=128, batch=2)
    table = find(*r.build()).table
    assert table["phase"].tolist() == ["decode"] * 4
    assert table["context_sum"].isna().all()
    assert table["tokens"].tolist() == [2] * 4


def test_generation_without_a_cache_is_never_decode():
    r = Recording()
    for length in range(37, 43):
        r.forward(length, 1, ids=[1, length], q=length, k=length, batch=1)
    steps = find(*r.build())
    assert steps.table["phase"].tolist() == ["prefill"] * 6
    assert [(n.code, n.count) for n in steps.facts.notes] == [("no_kv_cache", 6)]


def test_equal_batches_of_prompts_are_no_missing_cache():
    r = Recording()
    for _ in range(6):
        r.forward(512, None, ids=[1, 512], q=512, k=512, batch=1)
    assert find(*r.build()).facts.notes == ()


def test_chunked_prefill():
    """Three chunks of 256 tokens, then decode; every chunk samples one row."""
    r = Recording()
    for i in range(3):
        r.forward(256, 1, ids=[256], q=256, k=256 * (i + 1), batch=1)
    r.forward(1, 1, ids=[1], q=1, k=769, batch=1)
    table = find(*r.build()).table
    assert table["phase"].tolist() == ["prefill"] * 3 + ["decode"]
    assert table["context_sum"].tolist() == [256, 512, 768, 769]
    assert any("chunk" in text for text in table["evidence"].iloc[1])


def test_a_cached_prefix_leaves_a_short_prompt_a_prefill():
    """q = 6 new tokens over 500 cached ones; only the last got logits."""
    r = Recording()
    r.forward(6, 1, ids=[6], q=6, k=506, batch=1)
    table = find(*r.build()).table
    assert table["phase"].tolist() == ["prefill"]
    assert table["context_sum"].tolist() == [506]


def test_speculative_verification_is_decode():
    """4 tokens per sequence, all with logits, k growing by what was accepted."""
    r = Recording()
    for k in (104, 107, 108, 112):
        r.forward(8, 8, ids=[2, 4], q=4, k=k, batch=2)
    table = find(*r.build()).table
    assert table["phase"].tolist() == ["decode"] * 4
    assert table["tokens"].tolist() == [8] * 4
    assert table["sequences"].tolist() == [2] * 4
    assert table["context_sum"].tolist() == [208, 214, 216, 224]


def test_an_ambiguous_short_query_is_other():
    """q = 4 < k, no logits seen: a chunk, a cached prefix and a verification look the same."""
    r = Recording()
    r.forward(4, None, ids=[4], q=4, k=104, batch=1)
    table = find(*r.build()).table
    assert table["phase"].tolist() == ["other"]
    assert table["confidence"].iloc[0] < THRESHOLD


def test_flat_batches_are_told_by_logits():
    """An engine's flattened ids carry no lengths: fewer logits than tokens is prefill, as many is decode."""
    r = Recording()
    r.forward(900, 3, ids=[900])
    r.forward(24, 24, ids=[24])
    table = find(*r.build()).table
    assert table["phase"].tolist() == ["prefill", "decode"]
    assert table["sequences"].tolist() == [3, 24]
    assert table["evidence"].iloc[0][0] == "lm_head M=3 < layer M=900"
    assert table["context_sum"].isna().all()


def test_prefill_only_models_never_decode():
    """An embedding model: no lm_head, no sampling."""
    r = Recording()
    for _ in range(3):
        r.forward(4 * 128, None, ids=[4, 128], q=128, k=128, batch=4)
    steps = find(*r.build())
    assert steps.table["phase"].tolist() == ["prefill"] * 3
    assert steps.facts.workload == "prefill_only"


def test_an_encoder_before_the_decoder():
    r = Recording()
    r.kernel("conv")
    for _ in range(4):
        r.layer(1500, q=1500, k=1500, batch=1)
    r.forward(4, 1, ids=[1, 4], q=4, k=4, batch=1)
    for i in range(5, 8):
        r.forward(1, 1, ids=[1, 1], q=1, k=i, batch=1)
    steps = find(*r.build())
    assert steps.table["phase"].tolist() == ["encoder", "prefill"] + ["decode"] * 3
    assert steps.facts.workload == "generation"


def test_positions_looked_up_beside_tokens_are_one_input():
    r = Recording()
    for length in (40, 1, 1):
        r.kernel("embedding", op=r.op("aten::embedding", [[32000, HIDDEN], [2, length]]))
        r.kernel("embedding", op=r.op("aten::embedding", [[1024, HIDDEN], [1, length]]))
        for _ in range(4):
            r.layer(2 * length, q=length, k=40 if length == 40 else 41, batch=2)
    steps = find(*r.build())
    assert steps.table["sequences"].tolist() == [2, 2, 2]
    assert steps.table["tokens"].tolist() == [80, 2, 2]
    assert (steps.activity_step >= 0).all()


def test_a_table_looked_up_inside_a_layer_is_no_input():
    r = Recording()
    for length in (40, 1):
        op = r.op("aten::embedding", [[32000, HIDDEN], [1, length]])
        r.kernel("embedding", op=op)
        for _ in range(4):
            r.op("aten::embedding", [[32, 8], [length, 40]])
            r.layer(length, q=length, k=40 if length == 40 else 41, batch=1)
    assert find(*r.build()).table["tokens"].tolist() == [40, 1]


def test_eager_attention_is_read_from_batched_gemms():
    """[B x heads, q, d] x [d, k] then [q, k] x [k, d]; heads 8, d 64."""
    r = Recording()
    for q, k in ((40, 40), (1, 41), (1, 42)):
        op = r.op("aten::embedding", [[32000, HIDDEN], [2, q]])
        r.kernel("embedding", op=op)
        for _ in range(3):
            r.gemm(2 * q, 3 * HIDDEN, HIDDEN)
            r.kernel("gemm", "scores", m=q, n=k, k=64, batch=16)
            r.kernel("softmax")
            r.kernel("gemm", "values", m=q, n=64, k=k, batch=16)
            r.gemm(2 * q, FFN, HIDDEN)
    steps = find(*r.build())
    assert steps.table["phase"].tolist() == ["prefill", "decode", "decode"]
    assert steps.table["context_sum"].tolist() == [80, 82, 84]
    assert steps.facts.layers == 3


def test_query_heads_folded_into_the_query_length():
    """Attention over [B, kv heads, group x q, d]: q reads 4, but the step runs one token per sequence."""
    r = Recording()
    for k in (50, 51, 52):
        r.forward(2, 2, ids=[2, 1], q=4, k=k, batch=2)
    table = find(*r.build()).table
    assert table["phase"].tolist() == ["decode"] * 3
    assert table["context_sum"].tolist() == [100, 102, 104]


def test_folded_heads_are_told_by_the_tokens_where_ids_are_flat():
    r = Recording()
    for k in (50, 51, 52):
        r.forward(2, 2, ids=[2], q=4, k=k, batch=2)
    table = find(*r.build()).table
    assert table["phase"].tolist() == ["decode"] * 3
    assert table["context_sum"].tolist() == [100, 102, 104]


def test_whole_graphs_are_steps():
    """No ids looked up, no shapes: one launch replays a step, logits and sampling follow it."""
    r = Recording()
    for _ in range(5):
        r.kernel("memcpy", "inputs")
        r.graph(attention="paged_attention_v1_kernel")
        r.gemm(8, 32000, HIDDEN)
        r.kernel("sampling", "argmax")
    steps = find(*r.build())
    table = steps.table
    assert len(table) == 5
    assert table["phase"].tolist() == ["decode"] * 5
    assert set(steps.activity_step.tolist()) == {0, 1, 2, 3, 4}
    assert np.bincount(steps.activity_step).tolist() == [4 * 6 + 3] * 5
    assert table["complete"].all()
    assert (steps.facts.graph_mode, steps.facts.layers) == ("full", 4)


def test_an_eager_prompt_before_graphs():
    r = Recording()
    r.forward(300, 1, ids=[1, 300], q=300, k=300, batch=1)
    for _ in range(3):
        op = r.op("aten::embedding", [[32000, HIDDEN], [1, 1]])
        r.kernel("embedding", op=op)
        r.graph()
        r.gemm(1, 32000, HIDDEN)
        r.kernel("sampling", "argmax")
    steps = find(*r.build())
    assert steps.table["phase"].tolist() == ["prefill"] + ["decode"] * 3
    assert steps.facts.graph_mode == "full"


def test_graphs_that_look_ids_up_themselves():
    """Only the eager prompt shows its input; each graph after it is a pass of its own."""
    r = Recording()
    r.forward(300, 1, ids=[1, 300], q=300, k=300, batch=1)
    for _ in range(3):
        r.graph(attention="paged_attention_v1_kernel")
        r.kernel("sampling", "argmax")
    assert find(*r.build()).table["phase"].tolist() == ["prefill"] + ["decode"] * 3


def test_work_between_the_input_and_its_graph_is_no_step():
    r = Recording()
    for _ in range(3):
        r.kernel("embedding", op=r.op("aten::embedding", [[32000, HIDDEN], [1, 1]]))
        r.gemm(1, HIDDEN, HIDDEN)
        r.graph()
        r.kernel("sampling", "argmax")
    steps = find(*r.build())
    assert np.bincount(steps.activity_step).tolist() == [4 * 6 + 3] * 3


def test_piecewise_graphs_are_not_taken_for_decode():
    """A graph per layer between eager attention, over a prompt of 900 tokens with a label."""
    r = Recording()
    with r.annotate("execute_context_1(900)_generation_0(0)"):
        for _ in range(4):
            launch = r.launch("cudaGraphLaunch")
            for _ in range(3):
                r.kernel("gemm", launch=launch)
            r.kernel("attention")
    steps = find(*r.build())
    assert steps.table["phase"].tolist() == ["prefill"]
    assert steps.facts.graph_mode == "piecewise"


def test_a_graph_alone_is_no_decode():
    """One graph per step and nothing else known: the prior alone must not name a phase."""
    r = Recording()
    for _ in range(3):
        r.graph()
    table = find(*r.build()).table
    assert table["phase"].tolist() == ["other"] * 3


def test_the_lm_head_ends_steps_when_no_input_is_seen():
    r = Recording()
    for k in (101, 102, 103):
        r.forward(4, 4, q=1, k=k, batch=4)
    steps = find(*r.build())
    assert steps.table["phase"].tolist() == ["decode"] * 3
    assert np.bincount(steps.activity_step).tolist() == [4 * 6 + 2] * 3
    assert steps.table["context_sum"].tolist() == [404, 408, 412]


def test_repeating_layers_give_steps_as_the_last_resort():
    """Names only: six layers, something between, six layers."""
    r = Recording()
    for _ in range(4):
        r.kernel("elementwise", "prepare")
        for _ in range(6):
            r.layer(MISSING, shapes=False)
        r.kernel("gemm", "head")
        r.kernel("sampling", "argmax")
    steps = find(*r.build())
    assert len(steps.table) == 4
    assert np.bincount(steps.activity_step).tolist() == [6 * 6 + 3] * 4
    assert steps.facts.layers == 6
    assert steps.table["phase"].tolist() == ["other"] * 4


@pytest.mark.parametrize(
    ("attention", "phase"),
    [
        (FA2.format(causal="false", split="true"), "decode"),
        (FA2.format(causal="true", split="false"), "prefill"),
        ("kernel_unified_attention_3d", "decode"),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext", "prefill"),
        ("kernel_unified_attention_2d", "other"),
    ],
)
def test_attention_kernels_that_serve_one_phase(attention, phase):
    r = Recording()
    for _ in range(3):
        r.forward(64, None, attention=attention, kv_write=True)
    assert find(*r.build()).table["phase"].tolist() == [phase]


def test_two_attention_families_are_a_mixed_step():
    r = Recording()
    op = r.op("aten::embedding", [[32000, HIDDEN], [70]])
    r.kernel("embedding", op=op)
    for _ in range(4):
        r.layer(70, attention=FA2.format(causal="true", split="false"))
        r.kernel("attention", "void paged_attention_v1_kernel")
    r.gemm(6, 32000, HIDDEN)
    row = find(*r.build()).table.iloc[0]
    assert row.phase == "mixed"
    assert row.tokens == 70


def test_a_lone_attention_kernel_is_a_fragment():
    r = Recording()
    r.kernel("kv_cache", "store_kvcache_kernel", grid_x=6)
    r.kernel("attention", FA2.format(causal="false", split="true"))
    table = find(*r.build()).table
    assert table["phase"].tolist() == ["other"]
    assert table["confidence"].iloc[0] < 0.5
    assert table["tokens"].tolist() == [6]


def test_matmuls_alone_are_no_step():
    r = Recording()
    for _ in range(10):
        r.gemm(131072, 32, 32)
    steps = find(*r.build())
    assert len(steps.table) == 0
    assert (steps.activity_step == MISSING).all()
    assert steps.facts.workload == "unknown"


def test_a_range_called_decode_is_a_hint():
    """Tokens alone say little (M = 64); the name of the range decides, and all passes inside it are found."""
    r = Recording()
    with r.annotate("decode loop"):
        for _ in range(3):
            r.forward(64, None, ids=[64])
    table = find(*r.build()).table
    assert table["phase"].tolist() == ["decode"] * 3
    assert table["evidence"].iloc[0][0] == "range named decode"
    assert (table["confidence"] < 0.95).all()


def test_profiler_steps_say_nothing_of_a_phase():
    r = Recording()
    for n in range(3):
        with r.annotate(f"ProfilerStep#{n}"):
            r.forward(64, None, ids=[64])
    assert find(*r.build()).table["phase"].tolist() == ["other"] * 3


def test_warm_up_ranges():
    r = Recording()
    with r.annotate("warmup"):
        r.forward(64, 1, ids=[64])
    r.forward(64, 1, ids=[64])
    assert find(*r.build()).table["phase"].tolist() == ["warmup", "prefill"]


def test_a_pass_cut_by_the_window_is_incomplete():
    """The window opens in the middle of a pass and closes in the middle of another."""
    r = Recording()
    for _ in range(2):
        r.layer(2, q=1, k=40, batch=2)
    r.gemm(2, 32000, HIDDEN)
    for k in (41, 42):
        r.forward(2, 2, ids=[2, 1], q=1, k=k, batch=2)
    r.forward(2, None, layers=2, ids=[2, 1], q=1, k=43, batch=2)
    table = find(*r.build()).table
    assert table["complete"].tolist() == [False, True, True, False]
    assert table["phase"].tolist() == ["decode"] * 4


def test_a_pause_between_requests_does_not_stretch_a_step():
    r = Recording()
    generation(r, prompt=64, new=3)
    r.now += 50_000_000
    r.kernel("memcpy", "next prompt")
    generation(r, prompt=64, new=3)
    steps = find(*r.build())
    assert len(steps.table) == 6
    longest = (steps.table["end_ns"] - steps.table["start_ns"]).max()
    assert longest < 5_000_000
    assert (steps.activity_step == MISSING).sum() == 1


def test_helper_threads_go_with_the_time_of_their_launch():
    r = Recording()
    for k in (41, 42):
        r.forward(2, 2, ids=[2, 1], q=1, k=k, batch=2)
        r.kernel("memcpy", "copy out", thread=2)
    steps = find(*r.build())
    assert np.bincount(steps.activity_step).tolist() == [4 * 6 + 4] * 2


def test_an_empty_recording():
    r = Recording()
    r.kernel("elementwise")
    steps = find(*r.build())
    assert len(steps.table) == 0
    assert list(steps.table.columns)[:3] == ["step", "device", "phase"]


def shapeless(r: Recording, tokens: int, attention: str, grid: int = 1) -> None:
    """A pass recorded without shapes: the lookup has no dims, kernels have names and grids only."""
    op = r.op("aten::embedding")
    r.kernel("embedding", op=op)
    for _ in range(4):
        r.kernel("norm", grid_x=tokens)
        r.kernel("gemm")
        r.kernel("attention", attention, grid_x=grid)
        r.kernel("gemm")
        r.kernel("elementwise", grid_x=tokens * 8)
    r.kernel("gemm")
    r.kernel("sampling", "argmax")


def test_without_shapes_the_contrast_of_launch_grids_tells():
    r = Recording()
    for tokens in (300, 1, 1, 1, 1):
        shapeless(r, tokens, "some_attention")
    steps = find(*r.build())
    assert steps.table["phase"].tolist() == ["prefill"] + ["decode"] * 4
    assert steps.table["tokens"].isna().all()
    assert "300 x the blocks of other passes" in steps.table["evidence"].iloc[0]


def test_equal_passes_without_shapes_have_no_contrast():
    r = Recording()
    for _ in range(5):
        shapeless(r, 64, "some_attention")
    assert find(*r.build()).table["phase"].tolist() == ["other"] * 5


def test_query_tiles_of_flash_attention():
    """Five tiles of at most 128 queries: a prompt. One tile: nothing said."""
    r = Recording()
    plain = FA2.replace("_splitkv", "").format(causal="false", split="false")
    shapeless(r, 64, plain, grid=5)
    shapeless(r, 64, plain, grid=1)
    assert find(*r.build()).table["phase"].tolist() == ["prefill", "other"]


def test_vector_kernels_mean_one_token():
    r = Recording()
    op = r.op("aten::embedding")
    r.kernel("embedding", op=op)
    for _ in range(4):
        for _ in range(4):
            r.kernel("gemv")
        r.kernel("attention")
    table = find(*r.build()).table
    assert table["phase"].tolist() == ["decode"]
    assert table["evidence"].iloc[0] == ("mostly vector kernels",)


def test_a_first_chunk_without_logits_is_no_encoder():
    r = Recording()
    r.forward(256, None, ids=[256], q=256, k=256, batch=1)
    r.forward(256, 1, ids=[256], q=256, k=512, batch=1)
    r.forward(1, 1, ids=[1], q=1, k=513, batch=1)
    assert find(*r.build()).table["phase"].tolist() == ["prefill", "prefill", "decode"]


def test_one_query_per_sequence_over_a_paged_cache():
    """The keys lie in a pool, so k is not known; one query for each of 12 sequences is enough."""
    r = Recording()
    r.forward(12, None, ids=[12], q=1, batch=12)
    row = find(*r.build()).table.iloc[0]
    assert (row.phase, row.tokens, row.sequences) == ("decode", 12, 12)
    assert np.isnan(row.context_sum)
    assert "q=1 over a paged cache" in row.evidence


def test_query_tokens_of_a_whole_batch_are_no_query_length():
    """Neither sequences nor keys are told: q is all 24 tokens, one of each sequence, as the logits say."""
    r = Recording()
    r.forward(24, 24, ids=[24], q=24)
    row = find(*r.build()).table.iloc[0]
    assert (row.phase, row.tokens, row.sequences) == ("decode", 24, 24)


def test_the_widest_product_of_a_lone_layer_is_no_lm_head():
    """Gate and up apart, one layer only: two wide products, four square ones, one back."""
    r = Recording()
    for _ in range(3):
        r.gemm(3, 2048, 2048)
    r.kernel("attention", q_len=3, kv_len=3, batch=1)
    r.gemm(3, 2048, 2048)
    for n, k in ((8192, 2048), (8192, 2048), (2048, 8192)):
        r.gemm(3, n, k)
    steps = find(*r.build())
    assert set(steps.activity_step.tolist()) == {0}
    assert steps.table["phase"].tolist() == ["prefill"]
    assert not any("lm_head" in text for text in steps.table["evidence"].iloc[0])


def test_a_fused_lone_layer_has_no_lm_head_either():
    r = Recording()
    r.gemm(3, 4096, 1024)
    r.kernel("attention", q_len=1, kv_len=9, batch=3)
    for n, k in ((1024, 2048), (6144, 1024), (1024, 3072)):
        r.gemm(3, n, k)
    steps = find(*r.build())
    assert set(steps.activity_step.tolist()) == {0}
    assert not any("lm_head" in text for text in steps.table["evidence"].iloc[0])
    assert steps.facts.workload == "generation"
