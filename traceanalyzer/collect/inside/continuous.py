"""Continuous batching of Hugging Face: a step of its model runner, from the requests that the scheduler put into it.

    ModelRunner.compute_batch(model, batch)      one pass over packed sequences, and its sampling

The runner's inputs keep the requests of the batch and how far each has come; `position_offset` has this step's tokens
in it by then. A request decodes once its prompt is behind it. What could be wrong: in releases without this runner the
packed pass itself is described, which tells sequences and tokens but not the contexts; a prefix that was found in the
cache makes a request look like one that was begun before.
"""

from __future__ import annotations

from typing import Any

from . import huggingface, steps
from .description import Description

_WARM_UP = "warmup"


def describe(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Description | None:
    """The step that `runner.compute_batch(model, batch)` runs."""
    huggingface.meet(args[1] if len(args) > 1 else kwargs["model"])
    inputs = args[0].inputs_and_outputs
    pairs = getattr(inputs, "io_pairs", None)
    if pairs is not None:
        inputs = pairs[inputs.current_pair].host_io
    requests = inputs.requests_in_batch
    if not requests or _WARM_UP in requests[0].state.request_id:
        return steps.OTHER
    tokens = context = pairs_sum = prompts = prompt_tokens = starting = 0
    for request in requests:
        count, reached = request.query_length, request.state.position_offset
        tokens += count
        context += reached
        pairs_sum += count * reached
        if reached - count < len(request.state.initial_tokens):
            prompts += 1
            prompt_tokens += count
            starting += reached == count
    phase = "decode" if not prompts else "prefill" if prompts == len(requests) else "mixed"
    return Description(phase, tokens, len(requests), context, pairs_sum, prompt_tokens, prompts, starting)


def wrap(module: Any) -> None:
    """Called with `transformers.generation.continuous_batching.model_runner`."""
    owner = module.ModelRunner
    owner.compute_batch = steps.annotate(owner.compute_batch, describe)


HOOKS = (("transformers.generation.continuous_batching.model_runner", wrap),)
"""Module, and what to call with it once it is there."""
