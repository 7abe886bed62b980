"""SGLang: what a forward pass of its model runner is, from the batch, and what its configuration says of the model.

    ModelRunner.forward                        one pass; runners of the draft model are told by `is_draft_worker`
    EAGLE*CudaGraphRunner.execute or replay    draft passes that are replayed as one graph, past `forward`

Lengths come from the lists and numbers that the scheduler keeps beside its tensors (`extend_seq_lens_cpu`,
`extend_prefix_lens_cpu`, `seq_lens_sum`). `seq_lens` lies on the device and is never read; neither is its copy
`seq_lens_cpu`, whose values would cost an operator of their own. Of tensors only the shape is asked.

What could be wrong with it: in a mixed batch a row of one token counts as decoding, as SGLang's own labels have it; the
last token of a prompt whose rest was cached looks the same. A verified batch counts its drafts into the context. A
prompt that runs in parts of its layers (SPLIT_PREFILL) tells no tokens, or each part would count them again.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

from . import architecture
from .description import Description, Hook
from .guard import guarded, note

OTHER = Description("other")
_MOST_STARTED = 8192
_started: dict[str, None] = {}
"""Names of the requests that started last, in that order: kept to tell a later chunk from a start, never recorded."""


def describe_forward(runner: Any, batch: Any, *_: Any, **__: Any) -> Description | None:
    """The pass that `ModelRunner.forward(forward_batch)` runs."""
    try:
        return _described(runner, batch)
    except (AttributeError, TypeError) as error:  # another release: say what is left
        note("sglang pass", error)
        return OTHER


def _described(runner: Any, batch: Any) -> Description:
    mode, sequences = batch.forward_mode.name, batch.batch_size
    ids = batch.input_ids
    tokens = ids.shape[0] if ids is not None else getattr(batch, "extend_num_tokens", None)
    if getattr(runner, "is_draft_worker", False) or mode.startswith("DRAFT"):
        return Description("draft", tokens, sequences)
    if mode == "DECODE":
        return _decode(tokens, sequences, _count(batch, "seq_lens_sum"))
    if mode == "TARGET_VERIFY":
        before = _count(batch, "seq_lens_sum")
        return _decode(tokens, sequences, before + tokens if before is not None and tokens is not None else None)
    if mode in ("EXTEND", "MIXED"):
        return _extend(batch, tokens, sequences, mixed=mode == "MIXED")
    if mode == "SPLIT_PREFILL":
        return Description("prefill", sequences=sequences)
    return Description("other", tokens or None, sequences or None)


def _decode(tokens: int | None, sequences: int, context: int | None) -> Description:
    """Every sequence has equally many tokens: one, or the drafts to verify."""
    pairs = tokens * context // sequences if tokens and sequences and context is not None else None
    return Description("decode", tokens, sequences, context, pairs, 0, 0, 0)


def _extend(batch: Any, tokens: int | None, sequences: int, mixed: bool) -> Description:
    """Prompts or chunks of them, in a mixed batch beside sequences that decode."""
    counts, before = _list(batch, "extend_seq_lens_cpu"), _list(batch, "extend_prefix_lens_cpu")
    if counts is None or before is None or len(counts) != len(before):
        return Description("mixed" if mixed else "prefill", tokens, sequences)
    context = sum(before) + sum(counts)
    pairs = sum(count * (cached + count) for count, cached in zip(counts, before))
    decoding = sum(count == 1 and cached > 0 for count, cached in zip(counts, before)) if mixed else 0
    total, prompts = sum(counts), len(counts) - decoding
    phase = "prefill" if not decoding else "mixed" if prompts else "decode"
    starting = _starting(getattr(batch, "rids", None), before)
    return Description(phase, total, sequences, context, pairs, total - decoding, prompts, starting)


def _starting(names: Any, before: list[int]) -> int:
    """How many rows start a request: those whose name is new, so that neither a cached prefix nor a chunk misleads.

    Without names (older releases) the rows without a prefix, which misses requests that find theirs cached.
    """
    if not isinstance(names, list) or len(names) != len(before):
        return before.count(0)
    fresh = [name for name in names if name not in _started]
    _started.update(dict.fromkeys(fresh))
    for name in list(itertools.islice(_started, max(0, len(_started) - _MOST_STARTED))):
        del _started[name]
    return len(fresh)


def _count(batch: Any, name: str) -> int | None:
    """A number that is certainly on the host; None for a tensor."""
    value = getattr(batch, name, None)
    return value if isinstance(value, int) else None


def _list(batch: Any, name: str) -> list[int] | None:
    """A list that is certainly on the host; None for a tensor."""
    value = getattr(batch, name, None)
    return value if isinstance(value, list) else None


def describe_draft_graph(_: Any, batch: Any, *__: Any, **___: Any) -> Description | None:
    """Draft passes as one graph. How many there are in it is the runner's business, so tokens are left open."""
    return Description("draft", sequences=batch.batch_size)


def facts(runner: Any) -> dict[str, Any]:
    """What a model runner knows of its process, engine and model, for the hello file; what is unknown is left out."""
    config, arguments = runner.model_config, runner.server_args
    model = architecture.of_config(
        getattr(config, "hf_text_config", None) or config.hf_config, getattr(config, "model_path", None)
    )
    dtype = architecture.dtype_name(getattr(config, "dtype", None))
    quantization = getattr(config, "quantization", None)
    stored = architecture.dtype_name(getattr(runner, "kv_cache_dtype", None))
    model.update(architecture.known(dtype=dtype, kv_dtype=stored, quantization=quantization))
    model.update(architecture.weight_bytes(getattr(runner, "model", None)), **_cache(runner))
    if getattr(runner, "is_draft_worker", False):
        return {"draft_model": model}
    parallel = _parallel(arguments)
    if parallel.get("tp") == 1 and parallel.get("pp", 1) == 1 and quantization is None:
        model.update(architecture.count_parameters(getattr(runner, "model", None)))
    size = parallel["tp"] * parallel.get("pp", 1) if "tp" in parallel else None
    return architecture.known(
        rank=_rank(runner, parallel), local_rank=getattr(runner, "gpu_id", None), world_size=size, model=model,
        parallel=parallel, engine=_settings(runner, arguments),
    )  # fmt: skip


_SECTIONS = ("get_parallel", "get_schedule", "get_spec")


def _setting(arguments: Any, name: str) -> Any:
    """A setting as it was resolved, None where it is not known.

    Recent releases keep in the arguments what was asked for, and in sections of a context of the process what came of
    it; before, the arguments were changed in place.
    """
    context = sys.modules.get("sglang.srt.runtime_context")
    for section in _SECTIONS:
        if hasattr(context, section):
            with guarded("sglang settings"):
                value = getattr(getattr(context, section)(), name, None)
                if value is not None:
                    return value
    return getattr(arguments, name, None)


def _rank(runner: Any, parallel: dict[str, int]) -> int | None:
    """The rank within the ranks that share the weights: pipeline stages outside, tensor shards inside."""
    shard, stage = (_setting(runner, name) for name in ("tp_rank", "pp_rank"))
    before = stage * parallel.get("tp", 1) if isinstance(stage, int) else 0
    return shard + before if isinstance(shard, int) else None


def _parallel(arguments: Any) -> dict[str, int]:
    sizes = {name: _setting(arguments, f"{name}_size") for name in ("tp", "pp", "dp", "ep")}
    return {name: size for name, size in sizes.items() if isinstance(size, int)}


def _settings(runner: Any, arguments: Any) -> dict[str, Any]:
    """The settings that decide how steps are batched and launched."""
    chunk, no_overlap = (_setting(arguments, name) for name in ("chunked_prefill_size", "disable_overlap_schedule"))
    return architecture.known(
        max_num_seqs=getattr(runner, "max_running_requests", None),
        max_num_batched_tokens=_setting(arguments, "max_prefill_tokens"),
        max_cached_tokens=getattr(runner, "max_total_num_tokens", None),
        chunked_prefill=chunk > 0 if isinstance(chunk, int) else None,
        async_scheduling=not no_overlap if isinstance(no_overlap, bool) else None,
        block_size=getattr(runner, "page_size", None),
        cuda_graphs=_graphs(runner),
        speculation=_setting(arguments, "speculative_algorithm"),
        speculated_tokens=_setting(arguments, "speculative_num_draft_tokens"),
    )


def _graphs(runner: Any) -> str | None:
    """Whether decode steps are replayed as graphs; the runner that replays them has had three names."""
    for name in ("decode_cuda_graph_runner", "graph_runner", "cuda_graph_runner"):
        if hasattr(runner, name):
            replays = getattr(runner, name)
            eager = replays is None or type(replays).__name__.startswith("Eager")
            return "NONE" if eager else "FULL_DECODE_ONLY"
    return None


def _cache(runner: Any) -> dict[str, int]:
    """Bytes of this rank's cache, and of one token in it: the first dimension of each layer's buffer counts tokens."""
    pool = getattr(runner, "token_to_kv_pool", None)
    buffers = [
        each for name in ("k_buffer", "v_buffer", "kv_buffer") for each in getattr(pool, name, None) or ()
    ]  # fmt: skip
    reserved = architecture.storage_bytes(buffers)
    if not reserved:
        return {}
    each = sum(buffer.numel() // buffer.shape[0] * buffer.element_size() for buffer in buffers)
    return {"kv_reserved_bytes": reserved, "kv_bytes_per_token": each}


_DRAFT_GRAPHS = (
    ("eagle_draft_cuda_graph_runner", "EAGLEDraftCudaGraphRunner"),
    ("eagle_draft_extend_cuda_graph_runner", "EAGLEDraftExtendCudaGraphRunner"),
    ("frozen_kv_mtp_cuda_graph_runner", "FrozenKVMTPCudaGraphRunner"),
)
HOOKS: tuple[Hook, ...] = (
    ("sglang.srt.model_executor.model_runner", "ModelRunner.forward", describe_forward, facts),
    *(
        (f"sglang.srt.speculative.{module}", f"{owner}.{method}", describe_draft_graph, None)
        for module, owner in _DRAFT_GRAPHS
        for method in ("execute", "replay")
    ),
)
"""Wrapped only where the class itself has the method: `replay` became `execute`."""
