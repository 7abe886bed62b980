"""Real CPU recordings of generate(), made here: every pass found, with tokens and contexts known by construction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.analysis.steps.test_shared_traces import analysed
from tests.conftest import require
from traceanalyzer.analysis.steps import Steps

PROMPT, NEW, BATCH, LAYERS = 37, 9, 2, 3


@pytest.fixture(scope="module")
def torch() -> Any:
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError:
        require(False, "torch and transformers are not installed")
    return torch


def record(torch: Any, path: Path, model: Any, **options: Any) -> Steps:
    """Record one generate() after a warm-up, and find its steps."""
    from torch.profiler import ProfilerActivity, profile

    ids = torch.randint(5, 500, (BATCH, PROMPT))
    fixed = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    request = fixed | {"attention_mask": torch.ones_like(ids)} | options
    with torch.no_grad():
        model.generate(ids, **request)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recording:
            model.generate(ids, **request)
    recording.export_chrome_trace(str(path))
    return analysed(path)[0]


def llama(torch: Any, attention: str = "sdpa") -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=512, max_position_embeddings=256, attn_implementation=attention, eos_token_id=None,
        bos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def gpt2(torch: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=64, n_layer=LAYERS, n_head=4, vocab_size=600, n_positions=512, eos_token_id=None, bos_token_id=None
    )
    return GPT2LMHeadModel(config).eval()


def is_a_generation(steps: Steps) -> None:
    table = steps.table
    assert table["phase"].tolist() == ["prefill"] + ["decode"] * (NEW - 1)
    assert table["tokens"].tolist() == [BATCH * PROMPT] + [BATCH] * (NEW - 1)
    assert table["sequences"].tolist() == [BATCH] * NEW
    assert table["context_sum"].tolist() == [BATCH * (PROMPT + i) for i in range(NEW)]
    assert table["query_context_sum"].tolist() == [
        BATCH * PROMPT * PROMPT, *(BATCH * (PROMPT + i) for i in range(1, NEW))
    ]  # fmt: skip
    assert (table["confidence"] >= 0.95).all()
    assert table["complete"].all()
    assert steps.facts.workload == "generation"
    assert steps.facts.layers == LAYERS
    assert steps.facts.graph_mode is None


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_growing_cache(torch, tmp_path, attention):
    is_a_generation(record(torch, tmp_path / "t.json", llama(torch, attention)))


def test_a_fixed_cache(torch, tmp_path):
    is_a_generation(record(torch, tmp_path / "t.json", llama(torch), cache_implementation="static"))


def test_learned_positions(torch, tmp_path):
    is_a_generation(record(torch, tmp_path / "t.json", gpt2(torch)))


def test_without_a_cache_every_pass_is_a_prefill(torch, tmp_path):
    steps = record(torch, tmp_path / "t.json", llama(torch), use_cache=False)
    assert steps.table["phase"].tolist() == ["prefill"] * NEW
    assert steps.table["tokens"].tolist() == [BATCH * (PROMPT + i) for i in range(NEW)]
    assert [(note.code, note.count) for note in steps.facts.notes] == [("no_kv_cache", NEW)]
