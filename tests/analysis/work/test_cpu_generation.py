"""A tiny Llama generates on the CPU: the FLOPs of every step against the closed forms of its configuration."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from traceanalyzer.analysis import activity, kernels
from traceanalyzer.analysis.work import measure
from traceanalyzer.trace import read_trace

torch = pytest.importorskip("torch", reason="torch records the generation")
pytest.importorskip("transformers", reason="transformers holds the model")

BATCH, PROMPT, NEW = 2, 12, 4
HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, VOCAB = 64, 96, 2, 4, 2, 160
HEAD = HIDDEN // HEADS


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """The work of a recorded `generate()`, with start_ns, in order of time."""
    path = tmp_path_factory.mktemp("recording") / "tiny.json"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _record(path)
    trace = read_trace(path)
    found = activity.build(trace)
    assert found.on_cpu
    work = measure(trace, found, kernels.classes(trace, found))
    return work.assign(start_ns=found.table["start_ns"]).sort_values("start_ns").reset_index(drop=True)


def _record(path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    prompt = torch.randint(3, VOCAB, (BATCH, PROMPT))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        model.generate(prompt, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)
    profiler.export_chrome_trace(str(path))


def by_step(table: pd.DataFrame, role: str) -> list[float]:
    """FLOPs of a role per forward pass; a pass ends with its lm_head (the product as wide as the vocabulary)."""
    head = (table["role"] == "gemm") & (table["n"] == VOCAB)
    step = head.cumsum() - head
    chosen = table[table["role"] == role]
    return list(chosen["flops"].groupby(step[chosen.index]).sum())


def linear_flops(tokens: int) -> int:
    """Two FLOPs per weight and token over q, k, v, o, gate, up, down; lm_head on the last token of each sequence."""
    attention = HIDDEN * (HEADS * HEAD) + 2 * HIDDEN * (KV_HEADS * HEAD) + (HEADS * HEAD) * HIDDEN
    return 2 * tokens * LAYERS * (attention + 3 * HIDDEN * FFN) + 2 * BATCH * HIDDEN * VOCAB


def attention_flops(pairs: float) -> float:
    """Two products of head_dim per query-key pair and query head: q k and p v, 2 FLOPs each."""
    return LAYERS * BATCH * HEADS * pairs * 2 * (2 * HEAD)


def test_matrix_products_per_step(table: pd.DataFrame) -> None:
    assert by_step(table, "gemm") == [linear_flops(BATCH * PROMPT)] + [linear_flops(BATCH)] * (NEW - 1)


def test_attention_per_step(table: pd.DataFrame) -> None:
    """The prompt sees half of its square; each new token sees everything before it and itself."""
    decode = [attention_flops(PROMPT + i) for i in range(1, NEW)]
    assert by_step(table, "attention") == [attention_flops(PROMPT * PROMPT / 2), *decode]


def test_dimensions_and_bytes_of_attention(table: pd.DataFrame) -> None:
    attention = table[table["role"] == "attention"]
    lengths = attention[["batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim"]].drop_duplicates()
    expected = [[BATCH, PROMPT, PROMPT], *([BATCH, 1, PROMPT + i] for i in range(1, NEW))]
    assert lengths.to_numpy().tolist() == [[*row, HEADS, KV_HEADS, HEAD] for row in expected]
    kv = 4.0 * 2 * BATCH * KV_HEADS * HEAD * lengths["kv_len"].to_numpy()
    assert attention["kv_bytes"].drop_duplicates().to_numpy() == pytest.approx(kv)


def test_every_step_reads_every_weight_once(table: pd.DataFrame) -> None:
    weights = LAYERS * (2 * HIDDEN * HEADS * HEAD + 2 * HIDDEN * KV_HEADS * HEAD + 3 * HIDDEN * FFN) + HIDDEN * VOCAB
    gemm = table[table["role"] == "gemm"]
    assert gemm["weight_bytes"].sum() == NEW * 4 * weights
    assert set(gemm["m"]) == {BATCH, BATCH * PROMPT}


def test_a_cpu_has_no_tensor_cores_and_computes_in_fp32(table: pd.DataFrame) -> None:
    heavy = table[table["role"].isin(["gemm", "attention"])]
    assert set(heavy["dtype"]) == {"fp32"}
    assert np.all(table["tensor_core"] == 0)
