"""Hugging Face models: what one forward pass is, from the shapes of its arguments and the length of its cache.

    PreTrainedModel.__call__                a pass, its compiled forward included
    OptimizedModule.__call__                torch.compile(model)
    OptimizeContext.__call__                torch.compile(model.forward), and what generate() compiles itself
    GenerationMixin._prefill                passes that run a prompt, in chunks or not
    CandidateGenerator.get_candidates       passes of a draft; the next pass verifies what it proposed

A pass over an empty cache is prefill, as is one of several tokens on a filled one unless it verifies a draft; the rest
decodes. Every sequence of a batch has the same length here: padding counts as the tokens that the model computes.
An encoder's tokens are the decoder's context too, since its layers attend to both.

What could be wrong: without a cache every pass runs the whole text, and is prefill. A hand-written loop that adds a
last single token of a prompt decodes, which costs the same. Beams count as sequences. A compiled generate() holds its
passes inside larger graphs, where none is seen.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from typing import Any, Callable

from . import caches, steps
from . import model as models
from .description import Compiled, Description
from .guard import attempt
from .runtime import process
from .torchfacts import running

_PREFILLING, _DRAFTING, _VERIFYING = 1, 2, 4


_CACHES = ("cache", "past_key_values", "cache_params")
"""What the cache is called, the newest name first."""


class _Thread(threading.local):
    doing = 0
    """What the passes of this thread are for, where the model's arguments do not tell: a sum of the above."""


_thread = _Thread()
_new = tuple.__new__


class _Known:
    """A model that was met: how it is called, and what has been told of it."""

    __slots__ = ("cache", "cache_type", "encoder", "facts", "ids", "names", "plain", "reference")

    def __init__(self, model: Any) -> None:
        key = id(model)
        # At the interpreter's end this module may be empty before the model goes.
        self.reference = weakref.ref(model, lambda _, known=_known: known.pop(key, None))  # type: ignore[misc]
        self.names = tuple(inspect.signature(type(model).forward).parameters)[1:]
        self.cache = next((name for name in _CACHES if name in self.names), "")
        self.encoder = _is_encoder(model)
        self.ids = "decoder_input_ids" if "decoder_input_ids" in self.names else "input_ids"
        self.plain = not self.encoder and self.ids == "input_ids"
        self.facts: dict[str, Any] = {}
        self.cache_type: type | None = None


_known: dict[int, _Known] = {}


def describe(args: tuple[Any, ...], kwargs: dict[str, Any], compiled: bool = False) -> Description:
    """The pass that `model(*args, **kwargs)` runs; the model is the first of `args`.

    Args:
        args: the call's, the model first.
        kwargs: the call's.
        compiled: whether it runs what torch.compile made; where not, the model itself is asked.
    """
    model = args[0]
    fields = model.__dict__
    known = _known.get(id(model)) or meet(model)
    if len(args) > 1:
        kwargs = {**kwargs, **dict(zip(known.names, args[1:]))}
    ids, cache = kwargs.get(known.ids), kwargs.get(known.cache)
    if ids is None:
        ids = kwargs.get("inputs_embeds" if known.plain else "decoder_inputs_embeds")
        if ids is None:
            return _without_ids(known)
    shape = ids.shape
    batch, tokens = shape if len(shape) == 2 else shape[:2] if len(shape) > 1 else (1, shape[0])
    if cache is None:
        cache = next((kwargs[name] for name in _CACHES if kwargs.get(name) is not None), None)
    before = 0 if cache is None else caches.length(cache, tokens)
    if before is None:
        before = _by_mask(cache, kwargs.get("attention_mask"), tokens)
    elif before and known.cache_type is not type(cache):
        attempt("cache facts", None, _tell_cache, known, cache)
    if not compiled:
        made = fields.get("_compiled_call_impl") or fields.get("forward")
        compiled = made is not None and hasattr(made, "_torchdynamo_orig_callable")
    if not known.plain or (fields["training"] and sys.modules["torch"].is_grad_enabled()):
        found = _special(known, fields, kwargs, (batch, tokens), before)
        return Compiled(*found) if compiled else found
    if before and tokens == 1 and not _thread.doing:  # as below, in less time
        context = batch * (before + 1)
        return _new(Compiled if compiled else Description, ("decode", batch, batch, context, context, 0, 0, 0))
    if "cu_seq_lens_q" in kwargs:
        return _packed(kwargs, batch * tokens, cache is not None)
    found = _described(batch, tokens, before, 0, kwargs.get("use_cache"))
    return Compiled(*found) if compiled else found


def _described(batch: int, tokens: int, before: int | None, source: int, use_cache: Any = None) -> Description:
    """A pass of a decoder; `source` is how many tokens of an encoder each sequence attends to."""
    doing, total = _thread.doing, batch * tokens
    context = pairs = None
    if before is not None:
        context = batch * (before + tokens + source)
        pairs = tokens * context
    if doing & _DRAFTING:
        return Description("draft", total, batch, context, pairs, 0, 0, 0)
    if doing & _VERIFYING:
        _thread.doing = doing & ~_VERIFYING
    if before != 0 and (tokens == 1 or doing & _VERIFYING) and not doing & _PREFILLING:
        return Description("decode", total, batch, context, pairs, 0, 0, 0)
    starting = batch if before == 0 else 0 if before else None
    if use_cache is False and not doing & _PREFILLING:
        starting = None  # each pass runs the whole text: nothing tells the first
    return Description("prefill", total, batch, context, pairs, total, batch, starting)


def _packed(kwargs: dict[str, Any], tokens: int, cached: bool) -> Description:
    """A pass over sequences that lie one after the other in one row, told by their bounds (`cu_seq_lens_q`)."""
    bounds, longest = kwargs["cu_seq_lens_q"], kwargs.get("max_length_q", kwargs.get("max_seqlen_q"))
    sequences = bounds.shape[0] - 1 if hasattr(bounds, "shape") else None
    if not cached:
        return Description("prefill", tokens, sequences, tokens, None, tokens, sequences, sequences)
    if type(longest) is int and longest == 1:
        return Description("decode", tokens, sequences, None, None, 0, 0, 0)
    return Description("mixed", tokens, sequences)


def _special(known: _Known, fields: Any, kwargs: Any, shape: tuple[int, int], before: int | None) -> Description:
    """Passes of encoders, of decoders that have one, and of training."""
    batch, tokens = shape
    total = batch * tokens
    if known.encoder:
        return Description("encoder", total, batch, total, total * tokens)
    if fields["training"] and sys.modules["torch"].is_grad_enabled():
        return Description("other", total, batch, total, total * tokens)
    encoded = kwargs.get("encoder_outputs")
    if encoded is not None:
        return _described(batch, tokens, before, encoded[0].shape[1])
    inputs = kwargs.get("input_ids")
    if inputs is None:
        return Description("other", total, batch)
    source = inputs.shape[1]
    whole = batch * (source + tokens)
    return Description("prefill", whole, batch, whole, batch * source * source + tokens * whole, whole, batch, batch)


def _without_ids(known: _Known) -> Description:
    """Encoders of pictures and sound, and models that are called in a way of their own."""
    return Description("encoder" if known.encoder or not known.cache else "other")


def _by_mask(cache: Any, mask: Any, tokens: int) -> int | None:
    """The length of a cache that was filled unseen: a mask over all of its tokens is as long as they and the new."""
    if getattr(mask, "ndim", 0) != 2 or mask.shape[1] < tokens:
        return None
    caches.set_length(cache, mask.shape[1])
    return int(mask.shape[1]) - tokens


def _is_encoder(model: Any) -> bool:
    """Whether a model is the encoder of a larger one: by its class' name, or a stack that says it is no decoder."""
    name = type(model).__name__
    if "Decoder" in name:
        return False
    return "Encoder" in name or "Vision" in name or model.__dict__.get("is_decoder") is False


def meet(model: Any) -> _Known:
    """Describe a model when it first runs, before its step is timed."""
    known = _known.get(id(model))
    if known is None:
        known = _known[id(model)] = _Known(model)
        if not known.encoder:
            known.facts = attempt("model facts", {}, models.facts, model)
            attempt("hello", None, _tell, known, bool(_thread.doing & _DRAFTING))
    return known


def _tell(known: _Known, draft: bool) -> None:
    """Say the facts of the largest model, and of the largest that drafts for it."""
    name = "draft_model" if draft else "model"
    largest = process.facts.get(name) or {}
    same = known.facts.get("fingerprint") == largest.get("fingerprint")
    if same or known.facts.get("weight_bytes", 0) > largest.get("weight_bytes", 0):
        process.hello(**{name: known.facts}, **running())


def _tell_cache(known: _Known, cache: Any) -> None:
    """Say what a cache of a new kind holds, in the place of what the last one said."""
    known.cache_type = type(cache)
    found = models.cache_facts(cache)
    if found and known.facts:
        known.facts = {name: fact for name, fact in known.facts.items() if not name.startswith("kv_r")}
        known.facts.update(found)
        _tell(known, bool(_thread.doing & _DRAFTING))


def wrap_models(module: Any) -> None:
    """Called with `transformers.modeling_utils`."""
    owner = module.PreTrainedModel
    owner.__call__ = steps.annotate(owner.__call__, describe)


def wrap_compiled(module: Any) -> None:
    """Called with `torch._dynamo.eval_frame`: what it makes of a model never runs the class' own `__call__`."""
    owner = module.OptimizedModule
    owner.__call__ = steps.annotate(owner.__call__, _describe_module)
    plain = module.OptimizeContext.__call__

    @functools.wraps(plain)
    def compile_one(self: Any, compiled: Any) -> Any:
        made = plain(self, compiled)
        return attempt("compiled", made, _annotated, compiled, made)

    module.OptimizeContext.__call__ = compile_one


def _annotated(compiled: Any, made: Any) -> Any:
    """A compiled `model.forward` or `model.__call__`, which a script may call without the model."""
    model = getattr(compiled, "__self__", None)
    name = getattr(compiled, "__name__", "")
    if name not in ("forward", "__call__", "_wrapped_call_impl") or not _is_model(model):
        return made
    return steps.annotate(made, lambda args, kwargs: describe((model, *args), kwargs, True))


def _is_model(module: Any) -> bool:
    owner = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    return owner is not None and isinstance(module, owner)


_inner: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _describe_module(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Description | None:
    """A compiled model, or a compiled module around one; anything else that is compiled is no step."""
    module = args[0]
    original = module._orig_mod
    if _is_model(original):
        return describe((original, *args[1:]), kwargs, True)
    if module not in _inner:
        found = next((each for each in original.modules() if _is_model(each)), None)
        _inner[module] = None if found is None else weakref.ref(found)
    reference = _inner[module]
    model = None if reference is None else reference()
    return None if model is None else describe((model, *args[1:]), kwargs, True)


def wrap_generation(module: Any) -> None:
    """Called with `transformers.generation.utils`."""
    owner = module.GenerationMixin
    for name in ("_prefill", "_prefill_chunking"):
        if name in vars(owner):
            setattr(owner, name, _during(_PREFILLING, vars(owner)[name]))


def wrap_drafts(module: Any) -> None:
    """Called with `transformers.generation.candidate_generator`."""
    for owner in list(vars(module).values()):
        if isinstance(owner, type) and "get_candidates" in vars(owner):
            owner.get_candidates = _during(_DRAFTING, vars(owner)["get_candidates"])  # type: ignore[attr-defined]


def _during(state: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """Have passes of this thread know what they are for while `original` runs."""
    compiling = sys.modules["torch"].compiler.is_compiling

    @functools.wraps(original)
    def known(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if compiling():
            return original(self, *args, **kwargs)
        before = _thread.doing
        _thread.doing = before | state
        try:
            return original(self, *args, **kwargs)
        finally:
            _thread.doing = before | _VERIFYING if state == _DRAFTING and not before & _DRAFTING else before

    return known


HOOKS: tuple[tuple[str, Callable[[Any], None]], ...] = (
    ("transformers.cache_utils", caches.watch),
    ("transformers.modeling_utils", wrap_models),
    ("transformers.generation.utils", wrap_generation),
    ("transformers.generation.candidate_generator", wrap_drafts),
    ("torch._dynamo.eval_frame", wrap_compiled),
)
"""Module, and what to call with it once it is there."""
