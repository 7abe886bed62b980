"""What a model says of itself, against figures worked out from its shapes by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

from tests.collect.scenarios import ids, llama, mistral, t5
from traceanalyzer.collect.inside import caches, model

# A llama of 2 layers: hidden 32, 4 heads of 8, 2 of them for keys and values, ffn 64, vocabulary 64, untied.
LAYER = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64 + 2 * 32
WEIGHTS = 64 * 32 * 2 + 2 * LAYER + 32


def test_the_facts_of_a_small_model() -> None:
    facts = model.facts(llama())
    expected = {
        "architecture": "LlamaForCausalLM", "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 8,
        "ffn": 64, "vocab": 64, "parameters": WEIGHTS, "weight_bytes": 4 * WEIGHTS, "dtype": "float32",
        "tied_embeddings": False, "attention": "sdpa",
    }  # fmt: skip
    assert {name: facts[name] for name in expected} == expected
    assert "quantization" not in facts and "name" not in facts


def test_tied_weights_count_once_and_half_the_bytes_are_half() -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    facts = model.facts(LlamaForCausalLM(config).to(torch.bfloat16))
    assert facts["parameters"] == WEIGHTS - 64 * 32
    assert facts["weight_bytes"] == 2 * (WEIGHTS - 64 * 32)
    assert (facts["dtype"], facts["tied_embeddings"]) == ("bfloat16", True)


def test_weights_that_share_memory_without_being_one_object_count_once() -> None:
    made = llama()
    made.lm_head.weight = torch.nn.Parameter(made.model.embed_tokens.weight.data)
    assert model.facts(made)["weight_bytes"] == 4 * (WEIGHTS - 64 * 32)


def test_a_fake_model_is_described_without_a_warning() -> None:
    with FakeTensorMode():
        assert model.facts(llama())["weight_bytes"] == 4 * WEIGHTS


@pytest.mark.parametrize(
    ("loaded_as", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "Llama-3.1-8B"), ("gpt2", "gpt2"), ("/data/secret/model", None), ("./model", None),
        ("~/model", None), ("a/b/c", None), ("C:\\models\\x", None), ("", None), (None, None), (3, None),
    ],
)  # fmt: skip
def test_only_a_name_of_the_hub_is_told(loaded_as: Any, name: str | None) -> None:
    made = llama()
    made.config._name_or_path = loaded_as
    assert model.facts(made).get("name") == name


def test_a_folder_beside_the_script_is_no_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "private").mkdir()
    monkeypatch.chdir(tmp_path)
    made = llama()
    made.config._name_or_path = "private"
    assert "name" not in model.facts(made)


def test_the_same_shape_has_the_same_fingerprint() -> None:
    first, again, other = model.facts(llama()), model.facts(llama()), model.facts(llama(1))
    assert first["fingerprint"] == again["fingerprint"] != other["fingerprint"]


def packed(method: Any, **tensors: torch.Tensor) -> Any:
    """A model with tensors in the place of one layer's weights, as quantizers leave them."""
    made = llama()
    made.config.quantization_config = method
    layer = made.model.layers[0].mlp
    del layer.up_proj.weight
    for name, tensor in tensors.items():
        if name.startswith("buffer"):
            layer.up_proj.register_buffer(name, tensor)
        else:
            layer.up_proj.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
    return made


def test_packed_weights_count_by_their_bytes_and_leave_the_number_open() -> None:
    rest = WEIGHTS - 32 * 64
    four_bits = packed({"quant_method": "awq"}, weight=torch.zeros(4, 64, dtype=torch.int32))
    facts = model.facts(four_bits)
    assert facts["quantization"] == "awq" and "parameters" not in facts
    assert facts["weight_bytes"] == 4 * rest + 4 * 64 * 4 + buffers_bytes(four_bits)
    in_buffers = packed(SimpleNamespace(quant_method="gptq"), buffer_q=torch.zeros(4, 64, dtype=torch.int32))
    facts = model.facts(in_buffers)
    assert "parameters" not in facts and facts["weight_bytes"] == 4 * rest + buffers_bytes(in_buffers)


def buffers_bytes(made: Any) -> int:
    return sum(each.numel() * each.element_size() for each in made.buffers())


def test_packed_weights_that_say_what_they_stand_for_are_counted() -> None:
    made = packed({"quant_method": "bitsandbytes"}, weight=torch.zeros(1024, 1, dtype=torch.uint8))
    made.model.layers[0].mlp.up_proj.weight.quant_state = SimpleNamespace(shape=torch.Size([64, 32]))
    assert model.facts(made)["parameters"] == WEIGHTS
    eight = packed({"quant_method": "bitsandbytes"}, weight=torch.zeros(64, 32, dtype=torch.int8))
    assert model.facts(eight)["parameters"] == WEIGHTS
    assert model.facts(eight)["weight_bytes"] == 4 * WEIGHTS - 3 * 64 * 32 + buffers_bytes(eight)


@pytest.mark.parametrize("static", [False, True])
def test_a_cache_tells_its_bytes_from_its_shapes(static: bool) -> None:
    made = llama()
    cache = StaticCache(config=made.config, max_cache_len=32) if static else DynamicCache(config=made.config)
    assert model.cache_facts(cache) == {}
    with torch.no_grad():
        made(ids(3, 5), cache=cache)
    expected = {"kv_bytes_per_token": 2 * 2 * 2 * 8 * 4, "kv_dtype": "float32"}
    if static:
        expected["kv_reserved_bytes"] = 2 * 2 * 3 * 2 * 32 * 8 * 4
    assert model.cache_facts(cache) == expected


def test_the_decoders_own_cache_stands_for_both_of_an_encoder_decoder() -> None:
    made = t5()
    with torch.no_grad():
        found = made(input_ids=ids(1, 5), decoder_input_ids=ids(1, 3))
    assert model.cache_facts(found.cache)["kv_bytes_per_token"] == 2 * 2 * 4 * 8 * 4


def test_older_forms_of_a_cache_tell_their_length() -> None:
    keys = torch.zeros(2, 4, 7, 8)
    assert caches.length(((keys, keys),), 1) == 7
    assert caches.length((), 1) == 0
    assert caches.length(SimpleNamespace(_seen_tokens=9), 1) == 9
    assert caches.length(SimpleNamespace(key_cache=[keys]), 1) == 7
    assert caches.length(SimpleNamespace(key_cache=[]), 1) == 0


def test_a_sliding_cache_counts_beyond_its_window() -> None:
    made = mistral()
    cache = DynamicCache(config=made.config)
    with torch.no_grad():
        made(ids(1, 9), cache=cache)
    assert caches.length(cache, 1) == 9


def test_a_counted_cache_is_forgotten_with_its_object() -> None:
    before = len(caches._counts)
    cache = StaticCache(config=llama().config, max_cache_len=32)
    assert [caches.length(cache, 5), caches.length(cache, 1), caches.length(cache, 1)] == [0, 5, 6]
    assert len(caches._counts) == before + 1
    del cache
    assert len(caches._counts) == before
