"""Finds methods and functions of the script itself, `--step __main__:Class.method`, once the script has defined them.

Nothing tells when a script has come past a definition. So it is looked up whenever the script imports another module,
builds a module of torch or switches one between training and evaluation, until it is there; most scripts build their
model below their definitions. What could be wrong: a call that began before the definition was found is not measured;
a script that does none of this after its definitions is never found, which the hello file tells under `failures`. What
is wrapped here cannot be sent to other machines by value (cloudpickle, Ray); `pickle`, which sends the name, is fine.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

from .guard import attempt, failures
from .runtime import process

MAIN = "__main__"
Wrap = Callable[[Any, str], bool]
_PROBED = ("__init__", "train")  # `eval` calls `train`


class _Imports:
    """A finder that finds nothing: it is asked whenever a module is imported for the first time."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look

    def find_spec(self, *_: Any, **__: Any) -> None:
        self._look()


class Search:
    """Looks for names in the script until all are found."""

    def __init__(self, names: list[str], wrap: Wrap) -> None:
        """Look for `names`, dotted, and hand each that is there to `wrap` with the module."""
        self._names = list(names)
        self._wrap = wrap
        self._plain: dict[str, Any] = {}
        self._finder = _Imports(self.look)

    def start(self) -> None:
        """Look now and, for what is not there yet, each time the script gives occasion."""
        for name in self._names:
            failures[_place(name)] = [1, "not defined yet"]
        module = sys.modules["torch"].nn.Module
        for name in _PROBED:
            self._plain[name] = vars(module)[name]
            setattr(module, name, self._probe(self._plain[name]))
        sys.meta_path.insert(0, self._finder)
        self.look()

    def look(self) -> None:
        """Wrap what is there by now."""
        for name in list(self._names):
            if attempt(_place(name), False, self._found, name):
                self._names.remove(name)
                failures.pop(_place(name), None)
                attempt("hello", None, process.hello)
        if not self._names:
            self._stop()

    def _found(self, name: str) -> bool:
        owner = sys.modules.get(MAIN)
        for part in name.split("."):
            owner = vars(owner).get(part) if hasattr(owner, "__dict__") else None
            if owner is None:
                return False
        return self._wrap(sys.modules[MAIN], name)

    def _probe(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def probed(*args: Any, **kwargs: Any) -> Any:
            self.look()
            return plain(*args, **kwargs)

        return probed

    def _stop(self) -> None:
        module = sys.modules["torch"].nn.Module
        for name, plain in self._plain.items():
            setattr(module, name, plain)
        self._plain.clear()
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)


def is_main(module: str) -> bool:
    """Whether a module's name means the script: `__main__`, or what `python -m` runs under that name."""
    spec = getattr(sys.modules.get(MAIN), "__spec__", None)
    return module in (MAIN, getattr(spec, "name", None))


def _place(name: str) -> str:
    return f"step {MAIN}:{name}"
