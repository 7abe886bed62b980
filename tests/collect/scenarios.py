"""Runs small random models in many ways, as a script of a user would; prints which records belong to which way.

Run under a runtime folder: `python scenarios.py plain|compiled`.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    CompileConfig,
    ContinuousBatchingConfig,
    DynamicCache,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    StaticCache,
    T5Config,
    T5ForConditionalGeneration,
)

NO_END = {"eos_token_id": None, "pad_token_id": 0}
GREEDY = {"max_new_tokens": 4, "do_sample": False}


def llama(layers: int = 2) -> LlamaForCausalLM:
    torch.manual_seed(layers)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=64, num_hidden_layers=layers, max_position_embeddings=128, **sizes, **NO_END)
    return LlamaForCausalLM(config).eval()


def mistral() -> MistralForCausalLM:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    return MistralForCausalLM(
        MistralConfig(vocab_size=64, num_hidden_layers=2, sliding_window=4, **sizes, **NO_END)
    ).eval()


def t5() -> T5ForConditionalGeneration:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    return T5ForConditionalGeneration(T5Config(vocab_size=64, decoder_start_token_id=0, **sizes, **NO_END)).eval()


def bart() -> BartForConditionalGeneration:
    layers = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64}
    start = {"decoder_start_token_id": 2, "forced_eos_token_id": None}
    return BartForConditionalGeneration(
        BartConfig(vocab_size=64, d_model=32, **layers, **heads, **start, **NO_END)
    ).eval()


def bert() -> BertModel:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return BertModel(BertConfig(vocab_size=64, **sizes)).eval()


def ids(batch: int, tokens: int) -> torch.Tensor:
    return torch.arange(batch * tokens).reshape(batch, tokens) % 61 + 3


def static_by_hand() -> None:
    model = llama()
    cache = StaticCache(config=model.config, max_cache_len=32)
    model(ids(1, 5), cache=cache)
    model(ids(1, 1), cache=cache)
    cache.crop(-2)
    model(ids(1, 1), cache=cache)
    cache.reset()
    model(ids(1, 6), cache=cache)


def positional() -> None:
    model = llama()
    filled = model(ids(2, 5)).cache
    model(ids(2, 1), None, None, filled)


def filled_unseen() -> None:
    """A copy of a filled static cache: with a mask its length is known, without it is not."""
    model = llama()
    cache = StaticCache(config=model.config, max_cache_len=32)
    model(ids(1, 5), cache=cache)
    for mask in (torch.ones(1, 6, dtype=torch.long), None):
        model(ids(1, 1), cache=copy.deepcopy(cache), attention_mask=mask)


def padded() -> None:
    prompt = ids(2, 5)
    prompt[0, :2] = 0
    llama().generate(prompt, attention_mask=(prompt != 0).long(), **GREEDY)


def resumed() -> None:
    """A second request on the cache of the first one, with two more tokens."""
    model = llama()
    with torch.inference_mode():
        first = model.generate(ids(1, 5), return_dict_in_generate=True, **GREEDY)
    text = torch.cat([first.sequences, ids(1, 1)], dim=1)
    model.generate(text, cache=first.cache, attention_mask=torch.ones_like(text), **GREEDY)


def training() -> None:
    model = llama().train()
    with torch.enable_grad():
        model(ids(2, 5), labels=ids(2, 5)).loss.backward()


def failing() -> None:
    try:
        llama()(torch.full((1, 5), 10_000))
    except IndexError:
        return
    raise AssertionError


def assisted() -> None:
    llama().generate(ids(1, 5), assistant_model=llama(1), max_new_tokens=8, do_sample=False)


def continuous() -> None:
    """Three requests with 5, 3 and 7 tokens."""
    model = llama()
    settings = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64, use_async_batching=False)
    generation = GenerationConfig(**{**GREEDY, "max_new_tokens": 3}, eos_token_id=-1, pad_token_id=0)
    prompts = [list(range(3, 8)), list(range(8, 11)), list(range(11, 18))]
    model.generate_batch(inputs=prompts, generation_config=generation, continuous_batching_config=settings)


PLAIN: dict[str, Callable[[], object]] = {
    "batch 1": lambda: llama().generate(ids(1, 5), **GREEDY),
    "batch 4": lambda: llama().generate(ids(4, 7), **GREEDY),
    "two": lambda: [model.generate(ids(1, 5), **GREEDY) for model in [llama()] for _ in range(2)],
    "static": lambda: llama().generate(ids(4, 7), cache_implementation="static", **GREEDY),
    "static twice": lambda: [
        model.generate(ids(1, 5), cache_implementation="static", **GREEDY) for model in [llama()] for _ in range(2)
    ],
    "sliding": lambda: mistral().generate(ids(1, 7), **GREEDY),
    "sliding static": lambda: mistral().generate(ids(1, 7), cache_implementation="static", **GREEDY),
    "chunked": lambda: llama().generate(ids(2, 7), prefill_chunk_size=3, **GREEDY),
    "beams": lambda: llama().generate(ids(1, 5), num_beams=3, **GREEDY),
    "padded": padded,
    "no cache": lambda: llama().generate(ids(1, 5), **GREEDY, use_cache=False),
    "assisted": assisted,
    "lookup": lambda: llama().generate(ids(1, 5), prompt_lookup_num_tokens=3, max_new_tokens=6, do_sample=False),
    "resumed": resumed,
    "t5": lambda: t5().generate(ids(2, 5), **GREEDY),
    "bart": lambda: bart().generate(ids(2, 5), **GREEDY),
    "t5 forward": lambda: t5()(input_ids=ids(2, 5), decoder_input_ids=ids(2, 3)),
    "bert": lambda: bert()(ids(2, 6)),
    "continuous": continuous,
    "embeds": lambda: llama()(inputs_embeds=torch.zeros(2, 3, 32)),
    "positional": positional,
    "static by hand": static_by_hand,
    "filled unseen": filled_unseen,
    "growing": lambda: llama()(ids(1, 3), past_key_values=None, cache=DynamicCache()),
    "training": training,
    "failing": failing,
}


class Around(torch.nn.Module):
    """A module of the user's own that holds a model."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = llama(1)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=input_ids).logits


def compiled(made: Callable[[LlamaForCausalLM], Callable[..., object]]) -> None:
    call = made(llama(1))
    call(input_ids=ids(1, 5))
    call(input_ids=ids(1, 5))


def compile_in_place(model: LlamaForCausalLM) -> LlamaForCausalLM:
    model.compile(backend="eager", fullgraph=True)
    return model


def compile_forward_in_place(model: LlamaForCausalLM) -> LlamaForCausalLM:
    model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)  # type: ignore[method-assign]
    return model


def static_compiled() -> None:
    settings = CompileConfig(backend="eager", fullgraph=True, mode=None)
    settings._compile_all_devices = True
    llama(1).generate(ids(1, 5), cache_implementation="static", compile_config=settings, **GREEDY)


COMPILED: dict[str, Callable[[], object]] = {
    "torch.compile(model)": lambda: compiled(lambda model: torch.compile(model, backend="eager", fullgraph=True)),
    "model.compile()": lambda: compiled(compile_in_place),
    "torch.compile(forward)": lambda: compiled(
        lambda model: torch.compile(model.forward, backend="eager", fullgraph=True)
    ),
    "forward replaced": lambda: compiled(compile_forward_in_place),
    "static": static_compiled,
    "around": lambda: torch.compile(Around(), backend="eager")(ids(1, 5)),
    "other module": lambda: torch.compile(torch.nn.Linear(2, 2), backend="eager")(torch.ones(1, 2)),
    "export": lambda: torch.export.export(llama(1), (), {"input_ids": ids(1, 5), "use_cache": False}),
}


def written() -> int:
    """Records that this process has written; 0 where nothing measures it."""
    runtime = sys.modules.get("_traceanalyzer_inside.runtime")
    return runtime.process.steps if runtime is not None else 0


def main() -> None:
    from torch._dynamo.utils import counters

    marks = {}
    for name, run in (PLAIN if sys.argv[1] == "plain" else COMPILED).items():
        torch._dynamo.reset()
        counters.clear()
        before = written()
        with torch.no_grad():
            run()
        graphs, breaks = counters["stats"].get("unique_graphs", 0), sum(counters["graph_break"].values())
        marks[name] = {"from": before, "to": written(), "graphs": graphs, "breaks": breaks}
    sys.stdout.write(json.dumps(marks))


if __name__ == "__main__":
    main()
