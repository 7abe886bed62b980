"""Measures one forward pass: a record in the ring for every step, and a label around it while a window is open.

Only the outermost wrapped call of a thread is a step. Under `torch.compile` the wrapper vanishes: Dynamo sees the
original alone. What a step costs, armed and idle, is measured by benchmarks/armed.py.

What could be wrong: a call returns when its work is queued, so on a GPU a step's duration is the host's. Where the
clock is set back during a step its duration is 0. A coroutine or generator is measured until it ends and gets no label:
others run in between, and labels must be left in the order in which they were entered.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
from typing import Any, Callable, Optional

from . import layout
from .description import Describe, Description
from .guard import attempt
from .runtime import process

OTHER = Description("other")
_Call = Callable[..., Any]
_Describe = Callable[["tuple[Any, ...]", "dict[str, Any]"], Optional[Description]]
"""Takes them as they are: to spread named arguments over a call costs as much as all else that is done here."""


class _Thread(threading.local):
    inside = False
    """Whether a step of this thread is running."""
    native = 0
    """Its native id; 0: not asked for yet."""


_thread = _Thread()


def _never() -> bool:
    return False


def _nothing() -> int:
    return 0


_boundary: Callable[[], int] = _nothing


def meet_recorder(boundary: Callable[[], int]) -> None:
    """Have `boundary` called before each step: it gives the number of the window that is open, 0 for none."""
    global _boundary
    _boundary = boundary


def annotate(original: _Call, describe: _Describe) -> _Call:
    """The callable, each outermost call of which is a step.

    Args:
        original: a method or a function.
        describe: takes the call's positional and named arguments, and says what the step is; None: the call is none.
    """
    if inspect.iscoroutinefunction(original):
        return _annotate_awaited(original, describe)
    if inspect.isgeneratorfunction(original):
        return _annotate_generator(original, describe)
    return (_annotate_method if _takes_self(original) else _annotate_function)(original, describe)


def spread(describe: Describe) -> _Describe:
    """For `annotate`, what takes the arguments one by one."""
    return lambda args, kwargs: describe(*args, **kwargs)


def _takes_self(original: _Call) -> bool:
    code = getattr(original, "__code__", None)
    return code is not None and code.co_argcount > 0 and code.co_varnames[0] == "self"


def _annotate_method(original: _Call, describe: _Describe) -> _Call:
    compiling = getattr(getattr(sys.modules.get("torch"), "compiler", None), "is_compiling", _never)
    thread, now, write = _thread, time.time_ns, process.write_step

    # Dynamo tells compiled models apart by the frame's variables: as in the original, the model is `self`.
    @functools.wraps(original)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if compiling() or thread.inside:
            return original(self, *args, **kwargs)
        description = attempt("describe", OTHER, describe, (self, *args), kwargs)
        if description is None:
            return original(self, *args, **kwargs)
        window = _boundary() if process.ring is not None or attempt("ring", False, process.ensure) else 0
        scope = attempt("label", None, _enter, description) if window else None
        failed = layout.FLAG_FAILED
        start = now()
        try:
            thread.inside = True
            result = original(self, *args, **kwargs)
            failed = 0
            return result
        finally:
            end = now()
            thread.inside = False
            if scope is not None:
                attempt("label", None, scope.__exit__, None, None, None)
            write(description, start, end, failed, window, thread.native or _native())

    return method


def _annotate_function(original: _Call, describe: _Describe) -> _Call:
    """As a method of nobody."""

    def called(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    def described(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Description | None:
        return describe(args[1:], kwargs)

    method = _annotate_method(called, described)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        return method(None, *args, **kwargs)

    return function


def _enter(description: Description) -> Any:
    """The label of a step that is recorded, entered; None where it would become part of a traced graph."""
    torch = sys.modules["torch"]
    if torch.jit.is_tracing():
        return None
    scope = torch.autograd.profiler.record_function(label(process.steps, description))
    scope.__enter__()
    return scope


def _native() -> int:
    """The thread's native id, asked for once: it costs a system call."""
    found = _thread.native = threading.get_native_id() & 0xFFFF_FFFF
    return found


def label(number: int, description: Description) -> str:
    """The name of a step's scope, as the analysis reads it; what is unknown is left out."""
    phase, tokens, sequences, context_sum, query_context_sum, prefill_tokens, prefill_sequences, _ = description
    parts = [f"n={number}"]
    named = [("tokens", tokens), ("seqs", sequences), ("ctx", context_sum), ("qk", query_context_sum)]
    if phase == "mixed":
        if prefill_tokens is not None and tokens is not None:
            named += [("prefill_tokens", prefill_tokens), ("decode_tokens", tokens - prefill_tokens)]
        if prefill_sequences is not None and sequences is not None:
            named += [("prefill_seqs", prefill_sequences), ("decode_seqs", sequences - prefill_sequences)]
    parts += [f"{name}={value}" for name, value in named if value is not None]
    return f"ta.step[{phase} {' '.join(parts)}]"


class _measured:
    """Records what runs inside as one step without a label."""

    __slots__ = ("_description", "_start")

    def __init__(self, describe: _Describe, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._description = attempt("describe", OTHER, describe, args, kwargs)

    def __enter__(self) -> None:
        self._start = time.time_ns()

    def __exit__(self, kind: object, *_: object) -> None:
        description = self._description
        if description is not None and attempt("ring", False, process.ensure):
            failed = 0 if kind is None else layout.FLAG_FAILED
            process.write_step(description, self._start, time.time_ns(), failed, 0, _native())


def _annotate_awaited(original: _Call, describe: _Describe) -> _Call:
    @functools.wraps(original)
    async def step(*args: Any, **kwargs: Any) -> Any:
        with _measured(describe, args, kwargs):
            return await original(*args, **kwargs)

    return step


def _annotate_generator(original: _Call, describe: _Describe) -> _Call:
    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        with _measured(describe, args, kwargs):
            return (yield from original(*args, **kwargs))

    return step


def after_fork() -> None:
    """In the child: it has one thread, which has a new id and runs no step."""
    _thread.inside = False
    _thread.native = 0
