"""Imports the real engine classes from unpacked wheels, with stand-ins for what is not installed.

An engine's wheel needs a GPU, compiled extensions and a hundred packages; the classes that our hooks wrap are plain
Python. `use` puts the unpacked wheel on `sys.path` and, last on `sys.meta_path`, a finder that answers for packages
that are not installed and for the engine's own compiled extensions. What could be wrong with it: code that asks whether
a package is there is told yes, so what must be seen as absent is named in `ABSENT`.

Run it in a process of its own: nothing here is undone.
"""

from __future__ import annotations

import abc
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import pickle
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import core_schema

ROOT = Path(__file__).resolve().parents[2]
ENGINES = Path(os.environ.get("TRACEANALYZER_ENGINES", ROOT / ".venv" / "engines"))
"""Where `fetch_wheels.py` unpacks."""
ABSENT = frozenset(
    ("amdsmi", "libtpu", "tpu_info", "torch_npu", "torch_xla", "intel_extension_for_pytorch", "vllm_ascend", "mlx")
)
"""Packages whose presence would turn an engine to another device or to code that is not ours to run."""


class _Meta(abc.ABCMeta):
    """Gives a stand-in class any attribute, item and call; classes derived from one are ordinary."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or "_standin" not in cls.__dict__:
            raise AttributeError(name)
        made = _standin(name)
        setattr(cls, name, made)
        return made

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "_standin" not in cls.__dict__:
            return super().__call__(*args, **kwargs)
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType | type):
            return args[0]  # used as a decorator
        return object.__new__(cls)

    def __getitem__(cls, _item: object) -> Any:
        return cls

    def __or__(cls, _other: object) -> Any:
        return cls

    def __ror__(cls, _other: object) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __mro_entries__(cls, _bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (cls,)


def _standin(name: str) -> Any:
    return _Meta(name, (_Anything,), {"_standin": True, "__module__": "standin"})


class _Anything:
    """An instance that takes every question and says nothing."""

    def __init_subclass__(cls, **_: object) -> None:
        super().__init_subclass__()

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> Any:
        return core_schema.any_schema()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _standin(name)

    def __call__(self, *args: Any, **_: Any) -> Any:
        return args[0] if len(args) == 1 and isinstance(args[0], types.FunctionType | type) else self

    def __getitem__(self, _item: object) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class _Module(types.ModuleType):
    """A module with every name in it."""

    __version__ = "99.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _standin(name)
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers, before anybody else, for what of an engine is not to be run, and for packages that nobody has."""

    def __init__(self, engine: str, folder: Path, real: Sequence[str]) -> None:
        self.engine, self.folder, self.real = engine, folder, tuple(real)
        self.made: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        top = name.partition(".")[0]
        if top == self.engine:
            stands_in = not self._is_real(name) and self._in_wheel(name)
        elif "." in name:
            stands_in = top in self.made
        else:
            stands_in = name not in ABSENT and self._engine_asks() and self._is_missing(name)
        if not stands_in:
            return None
        self.made.add(name)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def _is_real(self, name: str) -> bool:
        """Whether a module is one of those to run, or a package around one."""
        return any(f"{name}.".startswith(f"{real}.") or real.startswith(f"{name}.") for real in self.real)

    def _in_wheel(self, name: str) -> bool:
        """Whether the wheel holds the module; its compiled extensions were not unpacked."""
        place = self.folder.joinpath(*name.split("."))
        return place.is_dir() or place.with_suffix(".py").exists() or name.rpartition(".")[2].startswith("_")

    def _is_missing(self, name: str) -> bool:
        if name in sys.builtin_module_names or name in sys.stdlib_module_names:
            return False
        return importlib.machinery.PathFinder.find_spec(name) is None

    def _engine_asks(self) -> bool:
        """Whether the import stands in the engine's code: installed packages must miss what they miss."""
        frame = sys._getframe(1)
        while frame.f_back is not None and (
            "importlib" in frame.f_code.co_filename or frame.f_code.co_filename == __file__
        ):
            frame = frame.f_back
        return str(frame.f_globals.get("__name__", "")).partition(".")[0] == self.engine

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def use(engine: str, real: Sequence[str], folder: Path = ENGINES) -> str:
    """Make imports find the unpacked wheel.

    Args:
        engine: the package's name.
        real: modules and packages of it that are run as they are; the others are stand-ins, if the wheel has them.
        folder: holds the package's folder and its `*.dist-info`.

    Returns:
        The wheel's version.
    """
    sys.path.insert(0, str(folder))
    sys.meta_path.insert(0, _Finder(engine, folder, real))
    infos = sorted(folder.glob(f"{engine}-*.dist-info"))
    return infos[-1].name[len(engine) + 1 : -len(".dist-info")]


def build(kind: Any, **known: Any) -> Any:
    """An instance of a dataclass whose other required fields are None: releases add fields that no hook reads."""
    missing, none = dataclasses.MISSING, {}
    for field in dataclasses.fields(kind):
        if field.default is missing and field.default_factory is missing and field.name not in known:
            none[field.name] = None
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**none, **{name: value for name, value in known.items() if name in names})


def own(module: str, path: str) -> Any:
    """The method that a class of the wheel itself has, None where it has none or is not there."""
    owner, _, method = path.partition(".")
    try:
        found = getattr(importlib.import_module(module), owner, None)
    except ModuleNotFoundError:
        return None
    return vars(found).get(method) if isinstance(found, type) else None


def watch_labels() -> list[str]:
    """The names of the scopes that are entered from now on, as if a window were open."""
    from torch.autograd import profiler

    importlib.import_module("_traceanalyzer_inside.steps").meet_recorder(lambda: 1)

    names: list[str] = []
    plain = profiler.record_function

    class Watched(plain):  # type: ignore[misc, valid-type]
        def __enter__(self) -> Any:
            names.append(self.name)
            return super().__enter__()

    profiler.record_function = Watched
    return names


def tell(*, method: Any, owner: type, **found: Any) -> None:
    """Print what the script of an engine found, as one line of JSON."""
    found.update(method=method.__qualname__)
    found.update(wrapped=hasattr(method, "__wrapped__"), pickled=pickle.loads(pickle.dumps(owner)) is owner)
    print(json.dumps(found))
