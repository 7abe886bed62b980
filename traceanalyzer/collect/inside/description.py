"""What a hook says of one step, before it runs.

What could be wrong with it: a hook says only what it knows on the host; the rest is None, never 0.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple


class Description(NamedTuple):
    """One step: its phase (of `layout.PHASES`) and its sizes, summed over the batch.

    tokens: go through the model. context_sum: lengths of the sequences, this step's tokens included.
    query_context_sum: sum over the sequences of tokens x context, not halved for causality.
    prefill_tokens, prefill_sequences: the share that runs prompts. new_sequences: requests that start.
    """

    phase: str
    tokens: int | None = None
    sequences: int | None = None
    context_sum: int | None = None
    query_context_sum: int | None = None
    prefill_tokens: int | None = None
    prefill_sequences: int | None = None
    new_sequences: int | None = None


class Compiled(Description):
    """A step that runs what torch.compile made."""

    __slots__ = ()


Describe = Callable[..., Optional[Description]]
"""Takes the arguments of the wrapped method, its instance first; None: this call is no step."""
Facts = Callable[[Any], "Dict[str, Any]"]
"""Takes the instance of the wrapped method: what it knows of its process, engine and model, for the hello file."""
Hook = Tuple[str, str, Describe, Optional[Facts]]
"""Module, `Class.method`, what to say of a call, what to say of an instance."""
