"""What cannot be simulated is refused with one line, before anything is built."""

from __future__ import annotations

from collections.abc import Sequence

from traceanalyzer.catalog.gpus import Gpu
from traceanalyzer.catalog.models import ModelConfig
from traceanalyzer.errors import InputError
from traceanalyzer.simulate import limits, names
from traceanalyzer.simulate.matmul import FP4_GROUP, INT4_GROUP
from traceanalyzer.simulate.scenario import Scenario
from traceanalyzer.simulate.speculation import draft_model

_FLASH_SINCE = 8.0
_LATENT_ON = 9.0
#: Bits per weight with scales, and what share of the memory a run can fill with weights and cache.
_BITS = {"fp8": 8.0, "int8": 8.0, "int4": 4 + 16 / INT4_GROUP, "fp4": 4 + 8 / FP4_GROUP}
_USABLE_MEMORY = 0.95


def check(scenario: Scenario) -> tuple[Gpu, ModelConfig]:
    """The scenario's GPU and model.

    Raises:
        UnknownGPUError: the catalogue does not hold the GPU.
        InputError: a value is out of range, or the model, the data types or their combination cannot be simulated.
    """
    gpu, model = limits.check(scenario)
    generation = names.generation(gpu)
    if scenario.dtype == "bf16" and generation < _FLASH_SINCE:
        raise InputError(f"{gpu.id} has no bf16", "use fp16 with math attention")
    if scenario.dtype != "fp32" and not gpu.tensor_tflops.get(scenario.dtype):
        raise InputError(f"no {scenario.dtype} peak of {gpu.id} on tensor cores is known", "choose another GPU")
    if scenario.attention == "flash" and (generation < _FLASH_SINCE or scenario.dtype == "fp32"):
        raise InputError(f"flash attention does not run in {scenario.dtype} on {gpu.id}", "use math attention")
    running = [model, *([draft_model(scenario)] if scenario.speculate else [])]
    for one in running:
        _model(scenario, one, generation)
        _data_types(scenario, one, gpu)
    _combinations(scenario)
    _memory(scenario, running, gpu)
    return gpu, model


def _latent(scenario: Scenario, model: ModelConfig, generation: float) -> None:
    """Latent attention is simulated as serving engines run it on Hopper."""
    if generation != _LATENT_ON:
        raise InputError(f"the latent attention of {model.id} is simulated on Hopper only", "choose an H100 or H200")
    if not scenario.fused or scenario.kv_cache != "static" or scenario.kv != "same" or scenario.attention != "flash":
        raise InputError(
            f"the latent attention of {model.id} goes with fused kernels, flash attention and a static cache",
            "leave out fp8, math and cat",
        )


def _model(scenario: Scenario, model: ModelConfig, generation: float) -> None:
    if model.mla is not None:
        _latent(scenario, model, generation)
    length = scenario.prompt + scenario.output + scenario.speculate
    if length > model.max_position:
        raise InputError(f"{length} tokens a request are too many for {model.id}", f"it takes {model.max_position}")
    ranks, kv_heads = scenario.ranks, model.kv_heads
    widths = {model.heads, *([model.moe.ffn] if model.moe else [model.ffn])}
    if any(width % ranks for width in widths) or (kv_heads % ranks and ranks % kv_heads):
        raise InputError(
            f"{model.id} does not divide over {ranks} ranks",
            f"it has {model.heads} heads, {kv_heads} key heads and MLPs of {max(widths - {model.heads})}",
        )


def _data_types(scenario: Scenario, model: ModelConfig, gpu: Gpu) -> None:
    weights = scenario.weights
    if weights == "same":
        return
    if scenario.dtype == "fp32":
        raise InputError(f"{weights} weights go with 16-bit activations", "use bf16 or fp16")
    if weights in ("fp8", "fp4") and not gpu.tensor_tflops.get(weights):
        raise InputError(f"{gpu.id} multiplies no {weights}", "use int8 or int4 weights, or a newer GPU")
    if model.moe is not None:
        raise InputError(f"{weights} weights of {model.id} cannot be simulated", "it has experts")
    group = {"int4": INT4_GROUP, "fp4": FP4_GROUP}.get(weights, 1)
    inputs = (model.hidden, model.heads * (model.head_dim or 0) // scenario.ranks, model.ffn // scenario.ranks)
    odd = [width for width in inputs if width % group]
    if odd:
        raise InputError(
            f"{weights} weights of {model.id} cannot be simulated on {scenario.ranks} ranks",
            f"a matrix has {odd[0]} inputs, no multiple of {group}",
        )


def _combinations(scenario: Scenario) -> None:
    if scenario.skip_prefill and (scenario.chunk is not None or scenario.arrivals_every):
        raise InputError("without prefill there are no chunks and no later arrivals")
    if scenario.prefix and (scenario.prefix >= scenario.prompt or scenario.skip_prefill):
        raise InputError(
            f"{scenario.prefix} of {scenario.prompt} prompt tokens are in the cache, and none is left to read",
            "the last token of a prompt is always read",
        )
    if scenario.group_size < 1:
        raise InputError(f"group_size must be at least 1, not {scenario.group_size}")
    alone = not scenario.together and scenario.group_size == 1
    ragged = scenario.chunk is not None or scenario.prefix > 0 or (scenario.arrivals_every > 0 and not alone)
    if ragged and (scenario.attention == "math" or scenario.kv_cache == "cat"):
        raise InputError(
            "math attention and a concatenated cache take sequences of one length only",
            "leave out chunks, prefixes and later arrivals",
        )
    if scenario.kv == "fp8" and (scenario.kv_cache == "cat" or scenario.attention == "math"):
        raise InputError("an fp8 cache goes with a static cache and flash attention")
    if scenario.mode != "eager" and (scenario.kv_cache == "cat" or scenario.attention == "math"):
        raise InputError("a graph replays fixed shapes", "use a static cache and flash attention")


def _memory(scenario: Scenario, running: Sequence[ModelConfig], gpu: Gpu) -> None:
    """Weights and caches of one rank against the card's memory; activations are left out."""
    needed, held = sum(_needed(scenario, model) for model in running), max(gpu.memory_sizes)
    if needed > _USABLE_MEMORY * held:
        where = f"on each of {scenario.ranks} ranks" if scenario.ranks > 1 else "on one GPU"
        raise InputError(
            f"{running[0].id} needs {needed / 1e9:.0f} GB {where}, {gpu.id} has {held / 1e9:.0f} GB",
            "use more ranks, a smaller batch or smaller weights",
        )


def _needed(scenario: Scenario, model: ModelConfig) -> float:
    """Bytes of a model's weights and cache on one rank."""
    size = 4 if scenario.dtype == "fp32" else 2
    tables = (1 if model.tied_embeddings else 2) * model.vocab * model.hidden
    bits = _BITS.get(scenario.weights, 8.0 * size)
    weights = (model.parameters - tables) * bits / 8 + tables * size
    cache = model.kv_elements_per_token * (1 if scenario.kv == "fp8" else size)
    cache *= scenario.batch * (scenario.prompt + scenario.output)
    # Latents are whole on every rank, keys and values divided as far as there are key heads.
    sharers = 1 if model.mla else min(model.kv_heads, scenario.ranks)
    return weights / scenario.ranks + cache / sharers
