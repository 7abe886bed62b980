"""The start of a process: what `sitecustomize` does to a script that uses torch, and to one that does not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
import zipapp
from pathlib import Path

import pytest

from tests.collect.runtime import INSIDE, Runtime
from tests.collect.test_spool import tmpfs
from tests.conftest import require
from traceanalyzer.collect.inside import layout

USES_TORCH = "import torch; print('ran', torch.__version__, __name__)"


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(tmp_path / "run")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder with a module named torch, which is enough for the start and takes no time."""
    torch = tmp_path / "library" / "torch"
    (torch / "nn").mkdir(parents=True)
    (torch / "__init__.py").write_text("from . import version\n__version__ = '0.0'\n")
    (torch / "version.py").write_text("cuda = hip = None\n")
    return tmp_path / "library"


def script(folder: Path, text: str, name: str = "script.py") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(textwrap.dedent(text))
    return str(folder / name)


def test_each_way_of_starting_python_is_seen(runtime: Runtime, library: Path, tmp_path: Path) -> None:
    script(tmp_path / "work" / "package", USES_TORCH, "__main__.py")
    script(tmp_path / "work" / "app", USES_TORCH, "__main__.py")
    zipapp.create_archive(tmp_path / "work" / "app", tmp_path / "app.pyz")
    ways = {
        "script": [script(tmp_path / "work", USES_TORCH)],
        "-c": ["-c", USES_TORCH],
        "-m": ["-m", "package"],
        "zip": [str(tmp_path / "app.pyz")],
        "-X": ["-X", "utf8", "-O", "-c", USES_TORCH],
    }
    for count, (way, arguments) in enumerate(ways.items(), start=1):
        done = runtime.run(*arguments, cwd=tmp_path / "work", PYTHONPATH=str(library))
        assert (done.stdout, done.stderr) == ("ran 0.0 __main__\n", ""), way
        assert len(runtime.processes()) == count, way
    safe = runtime.run("-c", USES_TORCH, cwd=tmp_path, PYTHONPATH=str(library), PYTHONSAFEPATH="1")
    assert safe.stdout and len(runtime.processes()) == len(ways) + 1


def test_children_are_seen_from_another_folder(runtime: Runtime, library: Path, tmp_path: Path) -> None:
    parent = f"""
        import os, subprocess, sys
        os.mkdir("else")
        subprocess.run([sys.executable, "-c", {USES_TORCH!r}], cwd="else", check=True)
    """
    done = runtime.run(script(tmp_path / "work", parent), cwd=tmp_path / "work", PYTHONPATH=str(library))
    assert done.returncode == 0, done.stderr
    found = runtime.process()
    assert found["torch"] == "0.0" and found["device"] == "cpu" and found["rank"] is None


LEFT = """
    import json, sys, threading
    print(json.dumps({
        "path": sys.path, "modules": sorted(sys.modules), "threads": threading.active_count(), "argv": sys.argv[1:],
        "finders": [str(getattr(each, "__name__", type(each).__name__)) for each in sys.meta_path],
    }))
"""


def test_a_process_without_torch_notices_nothing(runtime: Runtime, tmp_path: Path) -> None:
    """It has the same path and modules as without us, opens no file of ours and writes none."""
    command = [script(tmp_path / "work", LEFT), "argument"]
    environment = runtime.environment()
    plain = {name: value for name, value in environment.items() if name not in ("PYTHONPATH", layout.ENVIRONMENT)}
    before = {path: path.stat().st_mtime_ns for path in runtime.folder.rglob("*") if path.is_file()}
    ours, without = (
        json.loads(
            subprocess.run(
                [sys.executable, *command], env=env, capture_output=True, text=True, check=True, timeout=60
            ).stdout
        )
        for env in ({**environment, "PYTHONDONTWRITEBYTECODE": "1"}, plain)
    )
    assert ours.pop("finders") == ["Finder", *without.pop("finders")]
    assert set(ours.pop("modules")) - set(without.pop("modules")) <= {"sitecustomize"}
    assert ours == without
    assert before == {path: path.stat().st_mtime_ns for path in runtime.folder.rglob("*") if path.is_file()}


def test_the_start_imports_nothing_that_is_not_there_anyway(runtime: Runtime) -> None:
    done = runtime.run("-X", "importtime", "-c", "")
    lines = done.stderr.splitlines()
    names = [line.rpartition("|")[2] for line in lines]
    own = next(index for index, name in enumerate(names) if name.strip() == "sitecustomize" and "  " not in name[2:])
    # What a module imports stands before it, further to the right: there is at most a sitecustomize that is chained.
    depth = len(names[own]) - len(names[own].lstrip())
    nested = []
    for name in reversed(names[:own]):
        if len(name) - len(name.lstrip()) <= depth:
            break
        nested.append(name.strip())
    assert "importlib.abc" not in nested and "importlib.util" not in nested and "json" not in nested


def test_no_module_of_the_scripts_folder_is_loaded_for_us(runtime: Runtime, library: Path, tmp_path: Path) -> None:
    for name in ("types", "json", "struct", "inspect", "_traceanalyzer_inside", "hooks"):
        script(tmp_path / "work", f"print('{name} was imported')", f"{name}.py")
    done = runtime.run(script(tmp_path / "work", "print('alone')"), cwd=tmp_path / "work")
    assert (done.stdout, done.stderr) == ("alone\n", "")


def test_a_script_that_shadows_what_we_need_runs_on(runtime: Runtime, library: Path, tmp_path: Path) -> None:
    """Torch itself would not survive this; the module that stands for it here does."""
    script(tmp_path / "work", "value = 1", "json.py")
    done = runtime.run(
        script(tmp_path / "work", "import torch, json; print(json.value)"),
        cwd=tmp_path / "work", PYTHONPATH=str(library),
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)


def test_another_sitecustomize_runs_as_it_would_without_us(runtime: Runtime, library: Path, tmp_path: Path) -> None:
    text = "import sys; sys.path.append('/added'); sys.chained = (__name__, __file__)"
    theirs = script(tmp_path / "theirs", text, "sitecustomize.py")
    code = "import sys, sitecustomize; print(*sys.chained, sitecustomize.__file__, '/added' in sys.path); import torch"
    done = runtime.run("-c", code, PYTHONPATH=f"{tmp_path / 'theirs'}:{library}")
    assert done.stdout.split() == ["sitecustomize", theirs, theirs, "True"]
    assert len(runtime.processes()) == 1


@pytest.mark.parametrize("fails", ["import missing_module", "raise ValueError('theirs')", "1 / 0"])
def test_another_sitecustomize_fails_as_it_would_without_us(runtime: Runtime, tmp_path: Path, fails: str) -> None:
    script(tmp_path / "theirs", fails, "sitecustomize.py")
    plain = {**runtime.environment(), "PYTHONPATH": str(tmp_path / "theirs")}
    plain.pop(layout.ENVIRONMENT)
    command = [sys.executable, "-c", "import sys; print('sitecustomize' in sys.modules)"]
    without = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=60)
    ours = runtime.run(*command[1:], PYTHONPATH=str(tmp_path / "theirs"))
    assert (ours.stdout, ours.stderr, ours.returncode) == (without.stdout, without.stderr, without.returncode)
    assert "Error in sitecustomize" in ours.stderr or "missing_module" in ours.stderr


def test_an_older_usercustomize_still_runs(runtime: Runtime, tmp_path: Path) -> None:
    script(tmp_path / "theirs", "import sys; sys.user = 1", "usercustomize.py")
    done = runtime.run("-s", "-c", "import sys; print(hasattr(sys, 'user'))", PYTHONPATH=str(tmp_path / "theirs"))
    with_users = runtime.run("-c", "import sys, site; print(site.ENABLE_USER_SITE, hasattr(sys, 'user'))",
                             PYTHONPATH=str(tmp_path / "theirs"))  # fmt: skip
    enabled, ran = with_users.stdout.split()
    assert done.stdout == "False\n" and ran == enabled


@pytest.mark.parametrize(
    "change",
    [
        "sys.meta_path = list(sys.meta_path)",
        "sys.meta_path[:] = [each for each in sys.meta_path if type(each).__name__ != 'Finder']",
        "sys.meta_path.reverse()",
        "sys.meta_path.insert(0, object())" if sys.version_info >= (3, 12) else "pass",
        "import importlib.util; importlib.util.find_spec('torch')",
    ],
)
def test_a_script_may_do_with_the_finders_what_it_likes(
    runtime: Runtime, library: Path, tmp_path: Path, change: str
) -> None:
    show = "print(type(torch.__loader__).__name__, torch.__spec__.loader is torch.__loader__)"
    text = f"import sys\n{change}\nimport torch\n{show}"
    done = runtime.run(script(tmp_path / "work", text), PYTHONPATH=str(library))
    assert (done.stdout, done.stderr) == ("SourceFileLoader True\n", "")


def test_a_finder_that_asks_all_others_does_not_recurse(runtime: Runtime, library: Path, tmp_path: Path) -> None:
    text = """
        import importlib.util, sys
        class Asks:
            busy = False
            def find_spec(self, name, path=None, target=None):
                if name != "torch" or self.busy:
                    return None
                self.busy = True
                try:
                    return importlib.util.find_spec(name)
                finally:
                    self.busy = False
        sys.meta_path.insert(int(sys.argv[1]), Asks())
        import torch
        print(type(torch.__loader__).__name__)
    """
    path = script(tmp_path / "work", text)
    for place in ("0", "1"):
        done = runtime.run(path, place, PYTHONPATH=str(library))
        assert (done.stdout, done.stderr) == ("SourceFileLoader\n", "")
    assert len(runtime.processes()) == 2


def test_a_torch_that_fails_to_import_may_be_tried_again(runtime: Runtime, library: Path, tmp_path: Path) -> None:
    init = library / "torch" / "__init__.py"
    text = f"""
        import pathlib
        good = pathlib.Path({str(init)!r}).read_text()
        pathlib.Path({str(init)!r}).write_text("raise ImportError('broken')")
        try:
            import torch
        except ImportError as error:
            print(error)
        pathlib.Path({str(init)!r}).write_text(good)
        import importlib; importlib.invalidate_caches()
        import torch
        print(torch.__version__)
    """
    done = runtime.run(script(tmp_path / "work", text), PYTHONPATH=str(library), PYTHONDONTWRITEBYTECODE="1")
    assert (done.stdout, done.stderr) == ("broken\n0.0\n", "")
    assert len(runtime.processes()) == 1


def test_without_torch_installed_nothing_is_attached(runtime: Runtime, tmp_path: Path) -> None:
    text = """
        try:
            import torch.nothing_like_this
        except ImportError as error:
            print(error.name)
        import sys; print([name for name in sys.modules if "traceanalyzer" in name])
    """
    script(tmp_path / "without", "raise ModuleNotFoundError(name='torch')", "torch.py")
    done = runtime.run(script(tmp_path / "work", text), PYTHONPATH=str(tmp_path / "without"))
    assert (done.stdout, done.stderr) == ("torch\n[]\n", "")
    assert not runtime.processes() and not runtime.rings()


@pytest.mark.parametrize("gone", ["everything", "config", "control", "boot", "rings"])
def test_a_supervisor_that_is_gone_is_met_with_silence(
    runtime: Runtime, library: Path, tmp_path: Path, gone: str
) -> None:
    names = {"everything": ".", "config": "config.json", "boot": "boot/_traceanalyzer_inside"}
    target = runtime.folder / names.get(gone, gone)
    text = f"""
        import shutil, os
        path = {str(target)!r}
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
        import torch
        print(torch.__version__)
    """
    done = runtime.run(script(tmp_path / "work", text), PYTHONPATH=str(library))
    assert (done.stdout, done.stderr, done.returncode) == ("0.0\n", "", 0)


def test_a_folder_that_never_was_or_no_variable(runtime: Runtime, library: Path, tmp_path: Path) -> None:
    for folder in (str(tmp_path / "never"), ""):
        done = runtime.run("-c", USES_TORCH, PYTHONPATH=str(library), **{layout.ENVIRONMENT: folder})
        assert (done.stdout, done.stderr) == ("ran 0.0 __main__\n", "")
    assert not runtime.processes()


def oldest_python() -> str:
    """The oldest Python from 3.8 that this machine has, else the one that runs this."""
    places = [shutil.which(f"python3.{minor}") for minor in range(8, 11)]
    places += sorted(map(str, Path.home().glob(".pyenv/versions/3.[89]*/bin/python3")))
    for place in filter(None, places):
        if subprocess.run([place, "-c", ""], capture_output=True, timeout=60).returncode == 0:
            return place
    return sys.executable


def test_an_old_python_loads_every_module_that_runs_in_a_process(tmp_path: Path) -> None:
    names = sorted(path.stem for path in INSIDE.glob("*.py") if path.stem not in ("__init__", "sitecustomize", "run"))
    code = f"""
        import importlib, sys
        sys.path.insert(0, {str(INSIDE.parent)!r})
        for name in {names}:
            importlib.import_module("inside." + name)
        print(len(sys.modules["inside"].__dict__) > 0)
    """
    done = subprocess.run(
        [oldest_python(), script(tmp_path, code)], capture_output=True, text=True, timeout=60,
        env={"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_full_disk_costs_the_recording_and_not_the_process(tmp_path: Path) -> None:
    """A page of the ring that finds no room would kill it by SIGBUS, at the first step or hours later."""
    disk = tmp_path / "disk"
    disk.mkdir()
    require(tmpfs(disk, 4 << 20), "a disk of its own cannot be mounted")
    try:
        runtime = Runtime(disk / "r", mode="sample")
        done = runtime.run("-c", "import torch; torch.ones(1) + 1; print('ran')")
        assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
        assert list((disk / "r" / "rings").iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", str(disk)], timeout=20, check=True)
