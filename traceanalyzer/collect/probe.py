"""Asks a Python what it is and what is installed in it, by starting it once with a small script.

Only torch is imported there; of the engines nothing is, so that no GPU is touched and it takes seconds, not minutes.
What could be wrong: a package that shows itself only after a start-up of its own (an editable install of some kinds)
may look as if it had no files, and then its hook target is reported as missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .interpreter import Interpreter

TIMEOUT_S = 120.0
"""Importing torch from a cold network disk takes a minute."""
_OURS = "sys._traceanalyzer_was_here = True"
_SCRIPT = r"""
import json, os, sys
import importlib.util
found = {"python": list(sys.version_info[:3]), "ours": hasattr(sys, "_traceanalyzer_was_here"), "engines": []}
targets = (
    ("transformers", "transformers", "modeling_utils.py"),
    ("vllm", "vLLM", "v1/worker/gpu_worker.py"),
    ("sglang", "SGLang", "srt/model_executor/model_runner.py"),
)
for package, name, target in targets:
    try:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            continue
        from importlib.metadata import version
        folders = list(spec.submodule_search_locations)
        there = any(os.path.exists(os.path.join(folder, target)) for folder in folders)
        found["engines"].append([name, version(package), target, there])
    except Exception as error:
        found["engines"].append([name, "version unknown", target, False])
try:
    import torch
    found["torch"] = str(torch.__version__)
    found["cuda"] = torch.version.cuda
    found["hip"] = getattr(torch.version, "hip", None)
    found["kineto"] = bool(torch.autograd.kineto_available())
except Exception as error:
    found["torch_problem"] = type(error).__name__ + ": " + str(error).split("\n")[0][:200]
print("\n" + json.dumps(found))
"""


@dataclass(frozen=True)
class Probed:
    """What a Python said.

    problem: why it said nothing. engines: (name, version, file that holds what we wrap, whether that is there).
    """

    problem: str | None = None
    python: tuple[int, ...] = ()
    loads_ours: bool = False
    torch: str | None = None
    torch_problem: str | None = None
    cuda: str | None = None
    hip: str | None = None
    kineto: bool = False
    engines: tuple[tuple[str, str, str, bool], ...] = ()


def probe(interpreter: Interpreter, timeout_s: float = TIMEOUT_S) -> Probed:
    """Start it, with the flags that the command gives it, and ask."""
    try:
        with tempfile.TemporaryDirectory(prefix="traceanalyzer-") as folder:
            done = _start(interpreter, folder, timeout_s)
    except subprocess.TimeoutExpired:
        return Probed(problem=f"did not answer within {timeout_s:g} s")
    except OSError as error:
        return Probed(problem=error.strerror or str(error))
    try:
        said = json.loads(done.stdout.decode("utf-8", "replace").strip().rpartition("\n")[2])
        return Probed(
            python=tuple(said["python"]), loads_ours=said["ours"],
            torch=said.get("torch"), torch_problem=_why(said.get("torch_problem")),
            cuda=said.get("cuda"), hip=said.get("hip"), kineto=said.get("kineto", False),
            engines=tuple((name, version, target, there) for name, version, target, there in said["engines"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError):
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return Probed(problem=f"exit code {done.returncode}" + (f": {lines[-1][:200]}" if lines else ""))


def _start(interpreter: Interpreter, folder: str, timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    (Path(folder) / "sitecustomize.py").write_text(f"import sys\n{_OURS}\n", "ascii")
    paths = [folder, os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [folder]
    flags = [f"-{interpreter.isolated}"] if interpreter.isolated else []
    return subprocess.run(  # noqa: S603 (the command that the user named)
        [interpreter.path, *flags, "-c", _SCRIPT],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(paths), PYTHONDONTWRITEBYTECODE="1"),
        stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False, cwd=folder,
    )  # fmt: skip


def _why(problem: str | None) -> str | None:
    """An absent torch is told in our words, any other failure in its own."""
    return None if problem is None or problem.startswith("ModuleNotFoundError: No module named 'torch'") else problem
