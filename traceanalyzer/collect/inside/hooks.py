"""Puts the wrappers where they belong as soon as the modules that they wrap are there.

`start` is called once torch has been imported. Modules that are there by then are wrapped at once; for the others the
finder of `sitecustomize` calls back. Methods that the command line names (`--step module:Class.method`) are wrapped in
the same way; the script itself is no module that is imported, see `mainscript`.

What could be wrong: a method that was copied out of its class before it is wrapped stays plain; this happens only where
its module came before torch.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Iterator

from . import continuous, huggingface, mainscript, recorder, sglang, steps, torchfacts, vllm
from .description import Describe, Description, Facts
from .guard import attempt, guarded
from .runtime import process

_Hook = Callable[[Any], None]
_hooked: list[str] = []


def start(finder: Any, folder: str) -> None:
    """Torch is there: attach to the supervisor, say hello, and wait for the engines.

    Args:
        finder: of sitecustomize; its table is filled.
        folder: the runtime folder.
    """
    if not process.attach(folder):
        return
    os.register_at_fork(after_in_child=steps.after_fork)
    with guarded("hello"):
        process.hello(**torchfacts.at_import())
    recorder.install()
    steps.meet_recorder(recorder.boundary)
    table: dict[str, list[_Hook]] = {}
    mine: list[str] = []
    for name, hook in _hooks(mine):
        table.setdefault(name, []).append(hook)
    for name, hooks in table.items():
        module = sys.modules.get(name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            _run(name, hooks, module)
        else:
            finder.table[name] = lambda module, name=name, hooks=hooks: _run(name, hooks, module)
    if mine:
        with guarded("steps of the script"):
            mainscript.Search(mine, _wrap_named).start()


def _hooks(mine: list[str]) -> Iterator[tuple[str, _Hook]]:
    """Module, and what to call with it; `mine` gets the names that the script itself is to define."""
    yield from huggingface.HOOKS
    yield from continuous.HOOKS
    for engine in (vllm, sglang):
        for module, name, describe, facts in engine.HOOKS:
            yield module, _wrapping(name, _telling(describe, facts) if facts is not None else describe)
    for named in process.config.get("step") or ():
        module, _, name = named.partition(":")
        if mainscript.is_main(module):
            mine.append(name)
        else:
            yield module, lambda found, name=name: _wrap_or_tell(found, name)  # type: ignore[misc]


def _run(name: str, hooks: list[_Hook], module: Any) -> None:
    for hook in hooks:
        attempt(f"hook {name}", None, hook, module)
    _hooked.append(name)
    attempt("hello", None, _tell_engines)


def _tell_engines() -> None:
    process.hello(hooks=_hooked, engines=torchfacts.engines())


def _wrapping(name: str, describe: Describe) -> _Hook:
    """Wrap a method where the class itself has it: releases move methods between classes."""
    owner_name, _, method = name.partition(".")

    def wrap(module: Any) -> None:
        owner = getattr(module, owner_name, None)
        if owner is not None and method in vars(owner):
            setattr(owner, method, steps.annotate(vars(owner)[method], steps.spread(describe)))

    return wrap


def _telling(describe: Describe, facts: Facts) -> Describe:
    """Say the facts of an engine's object when it runs its first step with requests."""
    told: set[int] = set()

    def describe_and_tell(instance: Any, /, *args: Any, **kwargs: Any) -> Description | None:
        found = describe(instance, *args, **kwargs)
        if found is not None and found.phase != "other" and id(instance) not in told:
            told.add(id(instance))
            attempt("engine facts", None, _tell, facts, instance)
        return found

    return describe_and_tell


def _tell(facts: Facts, instance: Any) -> None:
    process.hello(**torchfacts.running(), **facts(instance))


def _describe_named(*_: Any, **__: Any) -> Description:
    """A step that only its name is known of."""
    return steps.OTHER


def _wrap_or_tell(module: Any, name: str) -> None:
    if not _wrap_named(module, name):
        raise LookupError


def _wrap_named(module: Any, name: str) -> bool:
    """Wrap what `Class.method` or `function` names in a module. Returns whether it is there."""
    *owners, last = name.split(".")
    owner = module
    for each in owners:
        owner = getattr(owner, each, None)
    plain = vars(owner).get(last, getattr(owner, last, None)) if hasattr(owner, "__dict__") else None
    inner = plain.__func__ if isinstance(plain, (staticmethod, classmethod)) else plain
    if not callable(inner) or isinstance(inner, type):
        return False
    wrapped: Any = steps.annotate(inner, steps.spread(_describe_named))
    setattr(owner, last, wrapped if inner is plain else type(plain)(wrapped))  # type: ignore[misc]
    return True
