"""What `site` loads first in every process of a recorded command: waits for torch, and lets everything else pass.

A finder in front of `sys.meta_path` looks at the names of modules that are imported. When one of its table is, it has
the other finders look for it, and calls back when the module has been executed; the module then has its own loader
again. The table holds torch alone until torch arrives: only then is the package `_traceanalyzer_inside` beside this
file loaded. This folder leaves `sys.path`, and the `sitecustomize` that it shadows is run in its place.

What could be wrong: a script that replaces `sys.meta_path`, or puts a finder of its own that knows torch before this
one, is not seen. A finder of the old kind (`find_module` only, Python before 3.12) ends the search, so that it keeps
its turn. Where no other `sitecustomize` exists, `import sitecustomize` in the script finds this one.
"""

import _thread
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # no import that the interpreter has not made anyway, `__future__` included
    from types import ModuleType
    from typing import Any, Callable

FOLDER = os.path.dirname(os.path.abspath(__file__))
PACKAGE = "_traceanalyzer_inside"


class Loader:
    """A module's own loader, with a call after it has done its work."""

    def __init__(self, own: "Any", finder: "Finder") -> None:
        """Stand in for `own`."""
        self._own = own
        self._finder = finder

    def __getattr__(self, name: str) -> "Any":
        """Whatever else is asked of the loader."""
        return getattr(self._own, name)

    def create_module(self, spec: "Any") -> "ModuleType | None":
        """As the module's own loader does."""
        made: ModuleType | None = self._own.create_module(spec)
        return made

    def exec_module(self, module: "Any") -> None:
        """Execute the module under its own loader, then call back."""
        module.__loader__ = module.__spec__.loader = self._own
        self._own.exec_module(module)
        self._finder.arrived(module)


class Finder:
    """Waits for modules.

    table: name of a module -> what to call with the module once it is imported.
    """

    def __init__(self) -> None:
        """Wait for nothing yet."""
        self.table: dict[str, Callable[[ModuleType], object]] = {}
        self._asking: set[tuple[str, int]] = set()

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """What the other finders say, with a loader that calls back; None for what is not waited for."""
        asking = (name, _thread.get_ident())  # finders that ask all others again come back here
        if name not in self.table or asking in self._asking:
            return None
        self._asking.add(asking)
        try:
            for finder in list(sys.meta_path):
                if finder is self:
                    continue
                find = getattr(finder, "find_spec", None)
                if find is None:
                    return None
                spec = find(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module") and hasattr(spec.loader, "create_module"):
                        spec.loader = Loader(spec.loader, self)
                    return spec
            return None
        finally:
            self._asking.discard(asking)

    def arrived(self, module: "ModuleType") -> None:
        """Call back, once."""
        call = self.table.pop(module.__name__, None)
        try:
            if call is not None:
                call(module)
        except Exception as error:
            say(error)


def say(error: Exception) -> None:
    """Tell an error of ours, only if asked to: the script's output is its own."""
    if os.environ.get("TRACEANALYZER_DEBUG"):
        sys.stderr.write(f"traceanalyzer: {error!r}\n")


def load(_: "ModuleType") -> None:
    """Torch is there: load the package beside this file, which then waits for the engines."""
    import importlib
    from importlib.util import module_from_spec, spec_from_file_location

    if PACKAGE not in sys.modules:
        home = os.path.join(FOLDER, PACKAGE)
        spec = spec_from_file_location(PACKAGE, os.path.join(home, "__init__.py"), submodule_search_locations=[home])
        if spec is None or spec.loader is None:
            return
        package = module_from_spec(spec)
        spec.loader.exec_module(package)  # fails where the folder is gone: the recording is over
        sys.modules[PACKAGE] = package
    importlib.import_module(PACKAGE + ".hooks").start(finder, os.environ["TRACEANALYZER_RUN"])


def chain() -> None:
    """Run the `sitecustomize` that would have run without this one. Its errors are its own and pass."""
    own = sys.modules.pop(__name__, None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault(__name__, own)


finder = Finder()
sys.path[:] = [entry for entry in sys.path if entry != FOLDER]
if os.environ.get("TRACEANALYZER_RUN"):
    finder.table["torch"] = load
    sys.meta_path.insert(0, finder)
    if "torch" in sys.modules:  # imported by a .pth file
        finder.arrived(sys.modules["torch"])
if __name__ == "sitecustomize":
    chain()
