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
last single token of a prompt decodes, which costs the same. Beams count as sequences.
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
from .description import Description
from .guard import attempt
from .layout import FLAG_COMPILED
from .runtime import process
from .torchfacts import running


class _Thread(threading.local):
    prefilling = False
    drafting = False
    verifying = False


_thread = _Thread()


class _Known:
    """A model that was met: how it is called, and what has been told of it."""

    __slots__ = ("cache_type", "encoder", "facts", "has_cache", "ids", "names", "reference")

    def __init__(self, model: Any) -> None:
        key = id(model)
        self.reference = weakref.ref(model, lambda _: _known.pop(key, None))
        self.names = tuple(inspect.signature(type(model).forward).parameters)[1:]
        self.has_cache = bool({"past_key_values", "cache", "cache_params"} & set(self.names))
        self.encoder = _is_encoder(model)
        self.ids = "decoder_input_ids" if "decoder_input_ids" in self.names else "input_ids"
        self.facts: dict[str, Any] = {}
        self.cache_type: type | None = None


_known: dict[int, _Known] = {}


def describe(model: Any, /, *args: Any, **kwargs: Any) -> Description:
    """The pass that `model(*args, **kwargs)` runs."""
    known = _known.get(id(model)) or _meet(model)
    if args:
        kwargs.update(zip(known.names, args))
    get = kwargs.get
    ids = get(known.ids)
    if ids is None:
        ids = get("decoder_inputs_embeds") if known.ids != "input_ids" else get("inputs_embeds")
    if ids is None:
        return _without_ids(known, kwargs)
    shape = ids.shape
    batch, tokens = (shape[0], shape[1]) if len(shape) > 1 else (1, shape[0])
    cache = get("cache")
    if cache is None:
        cache = get("past_key_values")
        if cache is None:
            cache = get("cache_params")
    before = 0 if cache is None else caches.length(cache, tokens)
    if before is None:
        before = _by_mask(cache, get("attention_mask"), tokens)
    elif before and known.cache_type is not type(cache):
        attempt("cache facts", None, _tell_cache, known, cache)
    if known.encoder or known.ids != "input_ids" or (model.training and sys.modules["torch"].is_grad_enabled()):
        return _special(known, model, kwargs, batch, tokens, before)
    return _described(batch, tokens, before, batch * tokens, 0, get("use_cache"))


def _described(
    batch: int, tokens: int, before: int | None, total: int, source: int, use_cache: Any = None
) -> Description:
    """A pass of a decoder; `source` is how many tokens of an encoder each sequence attends to."""
    thread = _thread
    context = pairs = None
    if before is not None:
        context = batch * (before + tokens + source)
        pairs = tokens * context
    if thread.drafting:
        return Description("draft", total, batch, context, pairs, 0, 0, 0)
    verifying, thread.verifying = thread.verifying, False
    if before != 0 and (tokens == 1 or verifying) and not thread.prefilling:
        return Description("decode", total, batch, context, pairs, 0, 0, 0)
    starting = batch if before == 0 else 0 if before else None
    if use_cache is False and not thread.prefilling:
        starting = None  # each pass runs the whole text: nothing tells the first
    return Description("prefill", total, batch, context, pairs, total, batch, starting)


def _special(known: _Known, model: Any, kwargs: Any, batch: int, tokens: int, before: int | None) -> Description:
    """Passes of encoders, of decoders that have one, and of training."""
    total = batch * tokens
    if known.encoder:
        return Description("encoder", total, batch, total, total * tokens)
    if model.training and sys.modules["torch"].is_grad_enabled():
        return Description("other", total, batch, total, total * tokens)
    encoded = kwargs.get("encoder_outputs")
    if encoded is not None:
        return _described(batch, tokens, before, total, encoded[0].shape[1])
    inputs = kwargs.get("input_ids")
    if inputs is None:
        return Description("other", total, batch)
    source = inputs.shape[1]
    whole = batch * (source + tokens)
    return Description("prefill", whole, batch, whole, batch * source * source + tokens * whole, whole, batch, batch)


def _without_ids(known: _Known, kwargs: dict[str, Any]) -> Description:
    """Encoders of pictures and sound, and models that are called in a way of their own."""
    return Description("encoder" if known.encoder or not known.has_cache else "other")


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


def _meet(model: Any) -> _Known:
    """Describe a model when it first runs, before its step is timed."""
    known = _known[id(model)] = _Known(model)
    if not known.encoder:
        known.facts = attempt("model facts", {}, models.facts, model)
        attempt("hello", None, _tell, known, _thread.drafting)
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
        _tell(known, _thread.drafting)


def wrap_models(module: Any) -> None:
    """Called with `transformers.modeling_utils`."""
    owner = module.PreTrainedModel
    owner.__call__ = steps.annotate(owner.__call__, describe, _compiled)


def _compiled(model: Any, *_: Any) -> int:
    """Whether the call ran what `model.compile()` made, or a compiled function in the place of `forward`."""
    forward = model.__dict__.get("forward")
    made = forward is not None and hasattr(forward, "_torchdynamo_orig_callable")
    return FLAG_COMPILED if made or model._compiled_call_impl is not None else 0


def wrap_compiled(module: Any) -> None:
    """Called with `torch._dynamo.eval_frame`: what it makes of a model never runs the class' own `__call__`."""
    owner = module.OptimizedModule
    owner.__call__ = steps.annotate(owner.__call__, _describe_module, _always_compiled)
    plain = module.OptimizeContext.__call__

    @functools.wraps(plain)
    def compile_one(self: Any, compiled: Any) -> Any:
        made = plain(self, compiled)
        return attempt("compiled", made, _annotated, compiled, made)

    module.OptimizeContext.__call__ = compile_one


def _always_compiled(*_: Any) -> int:
    return FLAG_COMPILED


def _annotated(compiled: Any, made: Any) -> Any:
    """A compiled `model.forward` or `model.__call__`, which a script may call without the model."""
    model = getattr(compiled, "__self__", None)
    name = getattr(compiled, "__name__", "")
    if name not in ("forward", "__call__", "_wrapped_call_impl") or not _is_model(model):
        return made
    return steps.annotate(made, functools.partial(describe, model), _always_compiled)


def _is_model(module: Any) -> bool:
    owner = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    return owner is not None and isinstance(module, owner)


_inner: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _describe_module(module: Any, /, *args: Any, **kwargs: Any) -> Description | None:
    """A compiled model, or a compiled module around one; anything else that is compiled is no step."""
    original = module._orig_mod
    if _is_model(original):
        return describe(original, *args, **kwargs)
    if module not in _inner:
        found = next((each for each in original.modules() if _is_model(each)), None)
        _inner[module] = None if found is None else weakref.ref(found)
    reference = _inner[module]
    model = None if reference is None else reference()
    return None if model is None else describe(model, *args, **kwargs)


def wrap_generation(module: Any) -> None:
    """Called with `transformers.generation.utils`."""
    owner = module.GenerationMixin
    for name in ("_prefill", "_prefill_chunking"):
        if name in vars(owner):
            setattr(owner, name, _during("prefilling", vars(owner)[name]))


def wrap_drafts(module: Any) -> None:
    """Called with `transformers.generation.candidate_generator`."""
    for owner in list(vars(module).values()):
        if isinstance(owner, type) and "get_candidates" in vars(owner):
            owner.get_candidates = _during("drafting", vars(owner)["get_candidates"])  # type: ignore[attr-defined]


def _during(state: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Have passes of this thread know what they are for while `original` runs."""
    compiling = sys.modules["torch"].compiler.is_compiling

    @functools.wraps(original)
    def known(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if compiling():
            return original(self, *args, **kwargs)
        before = getattr(_thread, state)
        setattr(_thread, state, True)
        try:
            return original(self, *args, **kwargs)
        finally:
            setattr(_thread, state, before)
            _thread.verifying = state == "drafting" and not before

    return known


HOOKS: tuple[tuple[str, Callable[[Any], None]], ...] = (
    ("transformers.cache_utils", caches.watch),
    ("transformers.modeling_utils", wrap_models),
    ("transformers.generation.utils", wrap_generation),
    ("transformers.generation.candidate_generator", wrap_drafts),
    ("torch._dynamo.eval_frame", wrap_compiled),
)
"""Module, and what to call with it once it is there."""
