"""`python -I RUNTIME/boot/run.py TARGET...`: runs a script, `-m MODULE` or `-c CODE` as if this file were not there.

For interpreters that ignore PYTHONPATH (`-I`, `-E`, `-S`) and so never see our `sitecustomize`: it is loaded from
beside this file, then the target runs as `__main__` with its own `sys.argv` and `sys.path[0]`. A traceback starts with
the target's first line: the frame of this file is taken off.

What could be wrong: `sys.orig_argv` and /proc/self/cmdline name this file, `sys.flags` are the interpreter's own, and
children that are started with the same flags are not recorded.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from types import ModuleType
from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))


def isolated() -> bool:
    """Whether the interpreter leaves the script's folder out of `sys.path`: -I, or -P and its variable."""
    return bool(sys.flags.isolated or getattr(sys.flags, "safe_path", False))


def install() -> None:
    """Load our `sitecustomize` where `site` has not; under another name, so that it chains no other one."""
    from importlib.util import module_from_spec, spec_from_file_location

    seen = [type(finder).__module__ for finder in sys.meta_path]
    if any(getattr(sys.modules.get(name), "PACKAGE", "") == "_traceanalyzer_inside" for name in seen):
        return
    name = "_traceanalyzer_boot"
    spec = spec_from_file_location(name, os.path.join(FOLDER, "sitecustomize.py"))
    if spec is None or spec.loader is None:
        return
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError, SyntaxError) as error:  # the script runs, with or without us
        if os.environ.get("TRACEANALYZER_DEBUG"):
            sys.stderr.write(f"traceanalyzer: {error!r}\n")


def run(words: list[str]) -> None:
    """Run the target that `words` name: a script, or what follows -m or -c, and its arguments."""
    if not isolated() and sys.path and os.path.abspath(sys.path[0] or ".") == FOLDER:
        del sys.path[0]  # this file's folder, where the target's own belongs
    own = sys.modules["__main__"].__dict__
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update({name: own[name] for name in own if name in ("__builtins__", "__annotations__")})
    try:
        if words[0] == "-m":
            _module(words[1:])
        elif words[0] == "-c":
            main.__dict__["__loader__"] = importlib.machinery.BuiltinImporter
            _execute(compile(words[1], "<string>", "exec"), main, ["-c", *words[2:]], "")
        else:
            _script(words, main)
    except SystemExit:
        raise
    except BaseException:
        _hide_this_file()
        raise


def _module(words: list[str]) -> None:
    import runpy

    sys.argv[:] = ["-m", *words[1:]]
    if not isolated():
        sys.path.insert(0, os.getcwd())
    # What the interpreter itself calls for -m: it runs in `sys.modules["__main__"]`, as pickling needs it.
    runpy._run_module_as_main(words[0])  # type: ignore[attr-defined]


def _script(words: list[str], main: ModuleType) -> None:
    path = os.path.abspath(words[0]) if sys.version_info >= (3, 9) else words[0]  # as `__file__` says there
    if os.path.isdir(path) or _is_archive(path):
        import runpy

        sys.argv[:] = words
        sys.path.insert(0, path)
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        return
    try:
        with open(path, "rb") as stream:
            source = stream.read()
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
        raise SystemExit(2) from None

    main.__dict__.update(
        __file__=path, __cached__=None, __loader__=importlib.machinery.SourceFileLoader("__main__", path)
    )
    _execute(compile(source, path, "exec"), main, words, os.path.dirname(os.path.realpath(path)))


def _is_archive(path: str) -> bool:
    import zipfile

    return zipfile.is_zipfile(path)


def _execute(code: Any, main: ModuleType, argv: list[str], folder: str) -> None:
    sys.argv[:] = argv
    if not isolated():
        sys.path.insert(0, folder)
    exec(code, main.__dict__)  # noqa: S102


def _hide_this_file() -> None:
    """Have whatever reports the error that comes now begin where the target begins."""
    report = sys.excepthook

    def shortened(kind: type[BaseException], value: BaseException, trace: Any) -> None:
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        report(kind, value.with_traceback(trace), trace)

    sys.excepthook = shortened


if __name__ == "__main__":
    install()
    run(sys.argv[1:])
