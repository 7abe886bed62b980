"""What `--check` finds out, on this machine and on pretended ones."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from traceanalyzer.collect import check, interpreter, nvml, probe
from traceanalyzer.collect.interpreter import Interpreter
from traceanalyzer.collect.options import parse

from .fake_nvml import FakeNvml


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str, str], str]:
    """Write an executable file and return its path."""

    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    return write


@pytest.fixture
def python(script: Callable[[str, str], str]) -> Callable[..., str]:
    """An executable that answers as a Python in which something is installed."""

    def make(**said: Any) -> str:
        answer = {
            "python": [3, 11, 7], "ours": True, "engines": [], "torch": "2.13.0+cu129", "cuda": "12.9", "hip": None,
            "kineto": True, **said,
        }  # fmt: skip
        return script("python3.11", f"#!/bin/sh\necho noise\ncat <<'END'\n{json.dumps(answer)}\nEND\n")

    return make


def found(*words: str) -> dict[str, check.Line]:
    """Subject -> the answer; without a command, for one that is no Python."""
    words = words if "--" in words else (*words, "--", "sleep", "1")
    return {line.subject: line for line in check.lines(parse(["--check", *words], "1"))}


# Which Python


def test_the_python_of_a_command_is_found(script: Callable[[str, str], str]) -> None:
    ours = Interpreter(sys.executable)
    assert interpreter.find([sys.executable, "x.py", "-I"]) == ours
    assert interpreter.find([sys.executable, "-u", "-E", "-m", "x"]) == Interpreter(sys.executable, "E")
    named = script("serve-it", f"#!{sys.executable} -sE\nimport x\n")
    assert interpreter.find([named, "serve"]) == Interpreter(sys.executable, "E")
    for other in (script("shell", "#!/bin/sh\necho\n"), script("binary", "\x7fELF")):
        assert interpreter.find([other]) is None


def test_the_python_behind_a_launcher_is_found() -> None:
    ours = Interpreter(sys.executable)
    assert interpreter.find(["bash", "-c", f"cd /tmp && exec {sys.executable} 'a b.py'"]) == ours
    assert interpreter.find(["nice", "-n", "5", sys.executable, "x.py"]) == ours
    assert interpreter.find(["env", "A=1", sys.executable, "-I", "x.py"]) == Interpreter(sys.executable, "I")
    assert interpreter.find(["/usr/bin/sudo", "-E", sys.executable, "x.py"]) == Interpreter(sys.executable, "", "sudo")
    for nothing in ([], ["bash", "-c", "python 'x"], ["sleep", "1"], ["/no/such/python3", "x.py"]):
        assert interpreter.find(nothing) is None


# This machine


@pytest.fixture(scope="module")
def here() -> probe.Probed:
    return probe.probe(Interpreter(sys.executable))


def test_this_python_is_asked(here: probe.Probed) -> None:
    assert here.problem is None
    assert here.python == sys.version_info[:3] and here.loads_ours
    assert here.torch == torch.__version__ and here.cuda == torch.version.cuda and here.kineto
    engines = {name: (version, there) for name, version, _, there in here.engines}
    import transformers

    assert engines["transformers"] == (transformers.__version__, True)


def test_a_flag_that_hides_us_is_found_by_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_SCRIPT", probe._SCRIPT.replace("import torch", "import not_torch"))  # that takes long
    assert probe.probe(Interpreter(sys.executable)).loads_ours
    for flag in "IES":
        assert not probe.probe(Interpreter(sys.executable, flag)).loads_ours, flag


def test_another_sitecustomize_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit(3)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert probe.probe(Interpreter(sys.executable, "S")).problem is None


def test_the_whole_check_runs_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, here: probe.Probed
) -> None:
    monkeypatch.setattr(check, "probe", lambda _: here)
    options = parse(["--check", "-o", str(tmp_path / "out"), "--disk", "1MB", "--", sys.executable, "x.py"], "1")
    assert check.run(options) == 0
    shown = capsys.readouterr()
    assert shown.err == "" and shown.out.endswith("\nrecording would work here\n")
    for line in shown.out.splitlines()[:-1]:
        assert line.split()[0] in ("ok", "no", "unknown"), line
    assert not (tmp_path / "out").exists(), "a check leaves nothing behind"


# Pretended machines


def test_what_is_not_there_is_said_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = parse(["--check", "-o", str(tmp_path), "--", "no-such-program"], "1")
    assert check.run(options) == 1
    assert "no      command             no-such-program: not found" in capsys.readouterr().out


def test_a_python_that_says_nothing(script: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    line = found("--", script("python3", "#!/bin/sh\necho broken >&2\nexit 7\n"), "x.py")["python"]
    assert line.ok is False and line.needed and line.text.endswith("exit code 7: broken")
    slow = script("python3.9", "#!/bin/sh\nexec sleep 60\n")
    assert probe.probe(Interpreter(slow), 0.2).problem == "did not answer within 0.2 s"


def test_flags_and_sudo_hide_us(python: Callable[..., str]) -> None:
    hidden = python(ours=False)
    line = found("--", hidden, "-I", "x.py")["PYTHONPATH"]
    assert line.ok is False and line.needed and "-I" in line.text and "--inject runpy" in line.text
    assert found("--inject", "runpy", "--", hidden, "-I", "x.py")["PYTHONPATH"].ok is True
    assert found("--", "sudo", python(), "x.py")["PYTHONPATH"].ok is False
    assert found("--", python(), "x.py")["PYTHONPATH"].ok is True


@pytest.mark.parametrize(
    ("said", "words", "ok"),
    [
        ({}, ["--every", "5m"], True),
        ({"torch": "2.6.0+cu124"}, ["--every", "5m"], False),
        ({"torch": "2.7.0"}, ["--every", "5m"], True),
        ({"torch": "2.10.0"}, ["--every", "5m"], True),
        ({"torch": "2.6.0"}, [], True),  # the whole run is recorded by `python`
        ({"torch": "1.9.0"}, [], False),
        ({"torch": None}, [], False),
        ({"kineto": False}, [], False),
        ({"python": [3, 7, 9]}, [], False),
    ],
)
def test_versions_decide(said: dict[str, Any], words: list[str], ok: bool, python: Callable[..., str]) -> None:
    lines = found(*words, "--", python(**said), "x.py").values()
    assert all(line.ok is not False for line in lines if line.needed) is ok


def test_torch_is_unknown_where_packages_are_hidden(python: Callable[..., str]) -> None:
    assert found("--", python(torch=None, ours=False), "-S", "x.py")["torch"].ok is None


def test_torch_says_why_it_cannot_be_imported(python: Callable[..., str]) -> None:
    line = found("--", python(torch=None, torch_problem="ImportError: libcudart.so.12"), "x.py")["torch"]
    assert line.ok is False and "libcudart" in line.text
    absent = python(torch=None, torch_problem="ModuleNotFoundError: No module named 'torch'")
    assert found("--", absent, "x.py")["torch"].text == "not installed in this Python"


def test_hook_targets(python: Callable[..., str]) -> None:
    engines = [["vLLM", "0.33.0", "v1/worker/gpu_worker.py", True], ["SGLang", "9.9", "srt/x.py", False]]
    lines = found("--", python(engines=engines), "x.py")
    assert (lines["vLLM"].ok, lines["vLLM"].text) == (True, "0.33.0")
    assert lines["SGLang"].ok is False and "srt/x.py" in lines["SGLang"].text and not lines["SGLang"].needed
    assert found("--", python(), "x.py")["engines"].ok is None


def test_hook_targets_are_found_without_importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "vllm" / "v1" / "worker" / "gpu_worker.py"
    target.parent.mkdir(parents=True)
    target.touch()
    (tmp_path / "vllm" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "vllm-0.33.0.dist-info").mkdir()
    (tmp_path / "vllm-0.33.0.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.33.0\n")
    (tmp_path / "torch.py").write_text("raise ImportError('not now')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    asked = probe.probe(Interpreter(sys.executable))
    assert ("vLLM", "0.33.0", "v1/worker/gpu_worker.py", True) in asked.engines
    assert (asked.torch, asked.torch_problem) == (None, "ImportError: not now")


def test_the_hook_targets_are_what_is_hooked() -> None:
    inside = Path(check.__file__).parent / "inside"
    text = "".join(path.read_text(encoding="utf-8") for path in inside.glob("*.py"))
    for module in (
        "transformers.modeling_utils",
        "vllm.v1.worker.gpu_worker",
        "sglang.srt.model_executor.model_runner",
    ):
        assert f'"{module}"' in text, module
        assert f'"{module.partition(".")[2].replace(".", "/")}.py"' in probe._SCRIPT


def test_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found("-o", str(tmp_path / "a" / "b"), "--disk", "1MB")["space"].ok is True
    assert found("-o", str(tmp_path), "--disk", "9999TB")["space"].ok is False
    (tmp_path / "file").touch()
    line = found("-o", str(tmp_path / "file" / "x"))["output"]
    assert line.ok is False and line.needed


def test_a_temporary_folder_is_needed(python: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert found("--every", "5m")["temporary folder"].ok is True

    def nowhere(*_: object, **__: object) -> str:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "mkdtemp", nowhere)
    lines = found("--", python(), "x.py")
    assert lines["temporary folder"].ok is False and lines["temporary folder"].needed
    assert "TMPDIR" in lines["temporary folder"].text
    assert "Read-only file system" in lines["python"].text


def test_no_command_means_this_shells_python3(python: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    (Path(python()).parent / "python3").symlink_to(python())
    monkeypatch.setenv("PATH", f"{Path(python()).parent}:{os.environ['PATH']}")
    lines = {line.subject: line for line in check.lines(parse(["--check"], "1"))}
    assert lines["command"].ok is None and lines["torch"].text == "2.13.0+cu129, CUDA 12.9"


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml({}, {"name": "NVIDIA A100-SXM4-40GB", "gpm": 0, "mig": [1, 1]})
    monkeypatch.setattr(nvml, "load", lambda: fake)
    lines = found()
    assert lines["GPU 0"].text == "NVIDIA H100 80GB HBM3, driver 580.65.06; tensor and memory activity too"
    assert "MIG" in lines["GPU 1"].text and "no tensor" in lines["GPU 1"].text
    assert fake.allocated == 0
    fake.gpus = []
    assert found()["GPU counters"].ok is False


@pytest.mark.parametrize(
    ("parameters", "capabilities", "ok"),
    [
        ("RmProfilingAdminOnly: 0\n", 0, True),
        ("Other: 3\nRmProfilingAdminOnly: 1\n", 1 << 21, True),
        ("RmProfilingAdminOnly: 1\n", (1 << 21) - 1, False),
        ("Other: 3\n", 0, None),
        (None, 0, None),
    ],
)
def test_who_may_profile(
    parameters: str | None, capabilities: int, ok: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if parameters is not None:
        (tmp_path / "params").write_text(parameters)
    (tmp_path / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities:016x}\n")
    monkeypatch.setattr(check, "_PARAMETERS", tmp_path / "params")
    monkeypatch.setattr(check, "_STATUS", tmp_path / "status")
    assert found()["GPU profiling"].ok is ok


def test_engine_metrics() -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"vllm:num_requests_running 1\n")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        line = found("--metrics", f"http://127.0.0.1:{server.server_port}")["engine metrics"]
        server.shutdown()
        thread.join()
    assert line.ok is True and line.text.endswith("answers: vllm")
    silent = found("--metrics", "http://127.0.0.1:1")["engine metrics"]
    assert silent.ok is None and "does not answer now" in silent.text


def test_what_an_engine_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_WORKER_MULTIPROC_METHOD", raising=False)
    sglang = found("--", "python3-of-nowhere", "-m", "sglang.launch_server", "--model", "m")
    assert sglang["engine metrics"].ok is False and "--enable-metrics" in sglang["engine metrics"].text
    serve = ("--every", "5m", "--", "vllm", "serve", "m", "--distributed-executor-backend", "ray")
    assert found(*serve)["Ray"].ok is False and found(*serve)["vLLM workers"].ok is True
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    line = found(*serve)["vLLM workers"]
    assert line.ok is False and line.needed


def test_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_CONTAINER_MARKS", ())
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert found()["container"].ok is None
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert found()["container"].ok is True


def test_no_argument_and_no_environment_is_shown(
    python: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    os.environ["HARMLESS_MARK"] = "value-in-environment"
    try:
        check.run(parse(["--check", "--", python(), "generate.py", "--prompt", "a-secret-prompt"], "1"))
    finally:
        del os.environ["HARMLESS_MARK"]
    out = capsys.readouterr().out
    assert "a-secret-prompt" not in out and "value-in-environment" not in out
