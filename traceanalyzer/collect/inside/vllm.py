"""vLLM: what a step of its worker is, from the scheduler's output, and what its configuration says of the model.

    Worker.execute_model              one step: the target's forward pass, up to the logits or short of them
    Worker.execute_dummy_batch        a pass without requests that keeps data-parallel ranks together
    GPUModelRunner.propose_draft_token_ids, *Speculator.propose     the draft model's passes after a step

Requests that have no output yet, or more tokens to run than the one they wait for and its drafts, run a prompt:
chunks and recomputed (preempted) requests included. Everything is read from Python objects that the scheduler built on
the host. `sample_tokens`, split off in vLLM 0.11, gets no label: the analysis gives a step the logits and the sampling
that follow it, and a draft has its own label.

What could be wrong with it: before 0.12 the scheduler does not say how many tokens a request has put out, so the last
chunk of a prompt counts as decoding where it is a single token, which costs the same. With asynchronous scheduling the
context counts drafts that are rejected later. A layer-wise (KV-shared, sliding) model reads less than its context.
"""

from __future__ import annotations

import itertools
from typing import Any

from . import architecture
from .description import Description, Hook
from .guard import note

OTHER = Description("other")
_NO_MODEL = frozenset(("ngram", "ngram_gpu", "suffix", "custom_class"))
"""Methods of speculation that run no model."""


def describe_step(worker: Any, output: Any, *_: Any, **__: Any) -> Description | None:
    """The step that `Worker.execute_model(scheduler_output)` runs; None where it runs none."""
    tokens = output.total_num_scheduled_tokens
    if not tokens:
        return None
    try:
        return _described(worker, output, tokens)
    except (AttributeError, KeyError, TypeError) as error:  # another release: say what is left
        note("vllm step", error)
        return Description("other", tokens)


def _described(worker: Any, output: Any, tokens: int) -> Description:
    scheduled, cached = output.num_scheduled_tokens, output.scheduled_cached_reqs
    if _is_warm_up(scheduled):
        return OTHER
    if getattr(output, "scheduled_encoder_inputs", None) and _only_encodes(worker):
        return Description("encoder", sequences=len(scheduled))
    computed, outputs = _progress(cached)
    context = sum(computed) + tokens
    if output.scheduled_new_reqs or tokens != len(scheduled) or (outputs is not None and 0 in outputs):
        names = [request.req_id for request in cached] if isinstance(cached, list) else cached.req_ids
        return _uneven(output, context, names, computed, outputs)
    return Description("decode", tokens, tokens, context, context, 0, 0, 0)


def _progress(cached: Any) -> tuple[list[int], list[int] | None]:
    """Of each request that the worker knows: tokens computed before this step, and tokens put out (None: not said).

    One object with lists since 0.9, a list with one object per request before.
    """
    if isinstance(cached, list):
        return [request.num_computed_tokens for request in cached], None
    return cached.num_computed_tokens, getattr(cached, "num_output_tokens", None)


def _uneven(output: Any, context: int, names: list[str], computed: list[int], outputs: list[int] | None) -> Description:
    """A step that starts requests, continues prompts or verifies drafts.

    Hundreds of sequences that put out one token each are common beside them, so only the others are looked at one by
    one: a row of one token adds its context once, and one of more adds the rest.

    Args:
        output: of the scheduler.
        context: of the known requests, with the tokens of all.
        names, computed, outputs: of the known requests; no outputs: not said.
    """
    scheduled = output.num_scheduled_tokens
    prompts = prompt_tokens = more = starting = 0
    for request in output.scheduled_new_reqs:
        count, before = scheduled[request.req_id], request.num_computed_tokens
        context += before
        more += (count - 1) * (before + count)
        prompts += 1
        prompt_tokens += count
        starting += not _is_resumed(request)
    if output.total_num_scheduled_tokens - prompt_tokens == len(names):
        continued = outputs.count(0) if outputs is not None else 0
        prompts, prompt_tokens = prompts + continued, prompt_tokens + continued
    else:
        drafts = getattr(output, "scheduled_spec_decode_tokens", None) or {}
        for name, before, put_out in zip(names, computed, outputs or itertools.repeat(1)):
            count = scheduled[name]
            more += (count - 1) * (before + count)
            if not put_out or count - len(drafts.get(name, ())) > 1:
                prompts += 1
                prompt_tokens += count
    phase = "decode" if not prompts else "prefill" if prompts == len(scheduled) else "mixed"
    return Description(
        phase, output.total_num_scheduled_tokens, len(scheduled), context, context + more, prompt_tokens, prompts,
        starting,
    )  # fmt: skip


def _is_resumed(request: Any) -> bool:
    """Whether a request that is sent as a new one has put out tokens before: it was preempted (runner V2)."""
    known, prompt = getattr(request, "prefill_token_ids", None), getattr(request, "prompt_token_ids", None)
    return known is not None and prompt is not None and len(known) > len(prompt)


def _is_warm_up(scheduled: dict[str, int]) -> bool:
    """Whether the requests are made up by the engine itself at start-up: its names for them start with `_`."""
    name = next(iter(scheduled))
    return name.startswith("_") and "warmup" in name


def _only_encodes(worker: Any) -> bool:
    """Whether this instance runs the encoder of a multimodal model and leaves the rest to others."""
    return getattr(worker.vllm_config, "is_mm_encoder_only", False) is True


def describe_dummy(_: Any, *__: Any, **___: Any) -> Description | None:
    """A pass over made-up tokens, `Worker.execute_dummy_batch()`."""
    return OTHER


def describe_draft(runner: Any, output: Any, *_: Any, **__: Any) -> Description | None:
    """The draft passes after a step, `GPUModelRunner.propose_draft_token_ids(scheduler_output, ...)`.

    How many tokens they run depends on the method, so it is left open.
    """
    if getattr(getattr(runner, "speculative_config", None), "method", None) in _NO_MODEL:
        return None
    return Description("draft", sequences=len(output.num_scheduled_tokens))


def describe_speculator(speculator: Any, batch: Any, *_: Any, **options: Any) -> Description | None:
    """The draft passes after a step of runner V2, `Speculator.propose(input_batch, ...)`; None for a dummy run."""
    if options.get("dummy_run"):
        return None
    return Description("draft", sequences=batch.num_reqs)


def facts(worker: Any) -> dict[str, Any]:
    """What a worker knows of its process, engine and model, for the hello file; what is unknown is left out."""
    config, runner = worker.vllm_config, getattr(worker, "model_runner", None)
    parallel, speculation = config.parallel_config, getattr(config, "speculative_config", None)
    model = architecture.of_config(_text_config(config.model_config), config.model_config.model)
    model.update(_stored(config), **_memory(runner, config))
    if _world(parallel) == 1 and "quantization" not in model:
        model.update(architecture.count_parameters(_module(runner)))
    found = architecture.known(
        rank=getattr(worker, "rank", None), local_rank=getattr(worker, "local_rank", None), world_size=_world(parallel),
        model=model, parallel=_parallel(parallel), engine=_settings(config),
    )  # fmt: skip
    draft = getattr(speculation, "draft_model_config", None)
    if draft is not None and getattr(speculation, "method", None) not in _NO_MODEL:
        found["draft_model"] = architecture.of_config(_text_config(draft), draft.model)
        found["draft_model"].update(architecture.known(dtype=architecture.dtype_name(draft.dtype)))
    return found


def _text_config(model: Any) -> Any:
    return getattr(model, "hf_text_config", None) or getattr(model, "hf_config", None)


def _world(parallel: Any) -> int:
    """Ranks that share one replica's weights."""
    return int(parallel.tensor_parallel_size) * int(parallel.pipeline_parallel_size)


def _stored(config: Any) -> dict[str, Any]:
    """In which types the weights and the cache are kept."""
    dtype = architecture.dtype_name(config.model_config.dtype)
    cache = architecture.dtype_name(getattr(config.cache_config, "cache_dtype", None))
    quantization = getattr(config.model_config, "quantization", None)
    return architecture.known(
        dtype=dtype, kv_dtype=dtype if cache == "auto" else cache, quantization=quantization and str(quantization)
    )


def _parallel(parallel: Any) -> dict[str, int]:
    sizes = {
        "tp": getattr(parallel, "tensor_parallel_size", None),
        "pp": getattr(parallel, "pipeline_parallel_size", None),
        "dp": getattr(parallel, "data_parallel_size", None),
    }
    found = {name: size for name, size in sizes.items() if isinstance(size, int)}
    if getattr(parallel, "enable_expert_parallel", False) is True:
        found["ep"] = found.get("tp", 1) * found.get("dp", 1)
    return found


def _settings(config: Any) -> dict[str, Any]:
    """The settings that decide how steps are batched and launched."""
    scheduler, compilation = config.scheduler_config, getattr(config, "compilation_config", None)
    graphs = getattr(compilation, "cudagraph_mode", None)
    if getattr(config.model_config, "enforce_eager", None) is True:
        graph_mode: str | None = "NONE"
    elif graphs is not None:
        graph_mode = str(getattr(graphs, "name", graphs))
    else:
        graph_mode = None
    chunked = getattr(scheduler, "enable_chunked_prefill", None)
    speculation = getattr(config, "speculative_config", None)
    return architecture.known(
        max_num_seqs=getattr(scheduler, "max_num_seqs", None),
        max_num_batched_tokens=getattr(scheduler, "max_num_batched_tokens", None),
        chunked_prefill=chunked if isinstance(chunked, bool) else None,
        async_scheduling=getattr(scheduler, "async_scheduling", None),
        prefix_caching=getattr(config.cache_config, "enable_prefix_caching", None),
        block_size=getattr(config.cache_config, "block_size", None),
        cuda_graphs=graph_mode,
        speculation=getattr(speculation, "method", None),
        speculated_tokens=getattr(speculation, "num_speculative_tokens", None),
    )


def _module(runner: Any) -> Any:
    """The model, without the wrapper that replays its graphs."""
    model = getattr(runner, "model", None)
    return getattr(model, "runnable", model) if model is not None else None


def _memory(runner: Any, config: Any) -> dict[str, int]:
    """Bytes of this rank's weights and cache. A cache of several groups has no single size per token."""
    found = architecture.weight_bytes(_module(runner))
    reserved = architecture.storage_bytes(getattr(runner, "kv_caches", None))
    if not reserved:
        return found
    found["kv_reserved_bytes"] = reserved
    cache, size = getattr(runner, "kv_cache_config", None), getattr(config.cache_config, "block_size", None)
    blocks = getattr(cache, "num_blocks", None) or getattr(config.cache_config, "num_gpu_blocks", None)
    if len(getattr(cache, "kv_cache_groups", ())) == 1 and blocks and size:
        found["kv_bytes_per_token"] = reserved // (blocks * size)
    return found


_RUNNER = "vllm.v1.worker.gpu_model_runner"
_SPECULATORS = (
    ("eagle", "EagleSpeculator"),
    ("eagle.speculator", "EagleSpeculator"),
    ("autoregressive.speculator", "AutoRegressiveSpeculator"),
    ("target_dependent_ar.speculator", "TargetDependentARSpeculator"),
    ("standalone_ar.speculator", "StandaloneARSpeculator"),
    ("multi_module_mtp.speculator", "MultiModuleMTPSpeculator"),
    ("dflash.speculator", "DFlashSpeculator"),
)
HOOKS: tuple[Hook, ...] = (
    ("vllm.v1.worker.gpu_worker", "Worker.execute_model", describe_step, facts),
    ("vllm.v1.worker.gpu_worker", "Worker.execute_dummy_batch", describe_dummy, None),
    ("vllm.v1.worker.cpu_worker", "CPUWorker.execute_model", describe_step, facts),
    ("vllm.v1.worker.tpu_worker", "TPUWorker.execute_model", describe_step, facts),
    (_RUNNER, "GPUModelRunner.propose_draft_token_ids", describe_draft, None),
    *(
        (f"vllm.v1.worker.gpu.spec_decode.{module}", f"{owner}.propose", describe_speculator, None)
        for module, owner in _SPECULATORS
    ),
)
"""Wrapped only where the class itself has the method: CPUWorker's own is gone since 0.11, draft classes come and go,
and what is inherited is wrapped where it is written."""
