"""Named steps, late and early imports, children and threads: real processes, with torch where it matters."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.collect.runtime import Runtime
from traceanalyzer.collect.inside import guard, hooks, mainscript

ENGINE = """
    import torch

    class Engine:
        def __init__(self):
            self.layer = torch.nn.Linear(2, 2)

        def step(self, count):
            for _ in range(count):
                self.layer(torch.ones(1, 2))
            return self.inner()

        def inner(self):
            return "done"

        @staticmethod
        def fixed(value):
            return value

        @classmethod
        def made(cls, value):
            return cls.__name__, value

    def function(value=0):
        return value
"""
GENERATES = """
    import multiprocessing, os, sys, threading
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    def generate(batch):
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
            eos_token_id=None, pad_token_id=0,
        )).eval()
        model.generate(torch.full((batch, 5), 3), max_new_tokens=4, do_sample=False)
"""


def write(folder: Path, name: str, text: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(textwrap.dedent(text))
    return str(folder / name)


def after(definitions: str, more: str) -> str:
    return textwrap.dedent(definitions) + textwrap.dedent(more)


def phases(batch: int) -> list[tuple[str, int]]:
    return [("prefill", 5 * batch), *[("decode", batch)] * 3]


def test_named_steps_of_a_module_and_of_the_script(tmp_path: Path) -> None:
    """Imported before torch, after it, and defined by the script itself."""
    names = ["early:Engine.step", "late:Engine.inner", "late:Engine.fixed", "late:Engine.made", "late:function",
             "late:Engine.missing", "__main__:Engine.step", "__main__:function", "__main__:nothing"]  # fmt: skip
    runtime = Runtime(tmp_path / "run", step=names)
    write(tmp_path / "work", "early.py", "class Engine:\n    def step(self, value):\n        return value\n")
    write(tmp_path / "work", "late.py", ENGINE)
    script = after(
        f"    import early{ENGINE}",
        """
        import late
        from _traceanalyzer_inside.runtime import process

        def count(call):
            before = process.steps
            return call(), process.steps - before

        print([
            count(lambda: early.Engine().step(1)), count(late.Engine().inner), count(lambda: late.Engine.fixed(2)),
            count(lambda: late.Engine.made(3)), count(lambda: late.function(4)), count(late.function),
            count(lambda: Engine().step(2)), count(lambda: function(value=6)), count(lambda: late.Engine().step(1)),
        ])
        """,
    )
    done = runtime.run(write(tmp_path / "work", "script.py", script))
    assert done.returncode == 0, done.stderr
    results = [1, "done", 2, ("Engine", 3), 4, 0, "done", 6, "done"]
    assert done.stdout == repr([(result, 1) for result in results]) + "\n"
    told = {each["where"]: each["error"] for each in runtime.process()["failures"]}
    assert told == {
        "hook late": told.get("hook late"), "step __main__:nothing": "not defined yet",
    }  # fmt: skip
    assert told["hook late"].startswith("LookupError")


def test_a_module_that_runs_as_the_script_is_found_by_its_own_name(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "run", step=["package.work:Engine.step"])
    write(tmp_path / "work" / "package", "__init__.py", "")
    write(tmp_path / "work" / "package", "work.py", after(ENGINE, "for _ in range(3): Engine().step(1)"))
    done = runtime.run("-m", "package.work", cwd=tmp_path / "work")
    assert done.returncode == 0, done.stderr
    assert len(runtime.steps()) == 3 and runtime.process()["failures"] == []


def test_children_and_threads_generate_side_by_side(tmp_path: Path) -> None:
    """A fork after torch, a spawned process, two threads at once: each process has its own ring."""
    runtime = Runtime(tmp_path / "run")
    script = after(
        GENERATES,
        """
        if __name__ == "__main__":
            torch.set_num_threads(1)
            for method, batch in (("fork", 2), ("spawn", 3)):
                child = multiprocessing.get_context(method).Process(target=generate, args=(batch,))
                child.start()
                child.join(100)
                print(method, child.pid, child.exitcode)
            threads = [threading.Thread(target=generate, args=(1,)) for _ in range(2)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            print("self", os.getpid(), 0)
        """,
    )
    done = runtime.run(write(tmp_path / "work", "script.py", script))
    assert done.returncode == 0, done.stderr
    pids = {name: int(pid) for name, pid, code in (line.split() for line in done.stdout.splitlines()) if code == "0"}
    rings = runtime.rings()
    found = {name: [(step.phase, step.tokens) for step in rings[pid]] for name, pid in pids.items()}
    assert found["fork"] == phases(2) and found["spawn"] == phases(3)
    assert sorted(found["self"]) == sorted(phases(1) * 2)
    for thread in {step.thread for step in rings[pids["self"]]}:
        assert [(s.phase, s.tokens) for s in rings[pids["self"]] if s.thread == thread] == phases(1)
    hello = runtime.processes()
    assert [hello[pids[name]]["forked"] for name in ("fork", "spawn", "self")] == [True, False, False]
    assert all(hello[pid]["failures"] == [] for pid in pids.values())
    assert hello[pids["self"]]["model"]["architecture"] == "LlamaForCausalLM"


def test_hello_says_who_and_nothing_private(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "run")
    script = after(GENERATES, "generate(1)")
    done = runtime.run(
        write(tmp_path / "work", "script.py", script), "--token=hunter2", RANK="1", LOCAL_RANK="0", WORLD_SIZE="2",
        SECRET_KEY="hunter2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    hello = runtime.process()
    assert (hello["rank"], hello["local_rank"], hello["world_size"], hello["device"]) == (1, 0, 2, "cpu")
    assert hello["torch"] == torch.__version__ and list(hello["engines"]) == ["transformers"]
    assert "transformers.modeling_utils" in hello["hooks"]
    text = (runtime.folder / "procs" / f"{hello['pid']}.json").read_text()
    assert "hunter2" not in text and str(tmp_path) not in text


def test_a_wrapped_class_can_be_sent_to_a_child(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "run", step=["__main__:Engine.step", "__main__:function"])
    script = after(
        ENGINE,
        """
        import pickle
        function(1)
        assert pickle.loads(pickle.dumps(function)) is function
        assert pickle.loads(pickle.dumps(Engine)) is Engine
        engine = Engine()
        assert pickle.loads(pickle.dumps(engine)).step(1) == "done"
        """,
    )
    done = runtime.run(write(tmp_path / "work", "script.py", script))
    assert done.returncode == 0, done.stderr


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that stands for the script."""
    made = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", made)
    monkeypatch.setattr(mainscript.process, "hello", lambda **_: None)
    guard.failures.clear()
    return made


@pytest.mark.parametrize("occasion", ["import", "build", "switch"])
def test_the_search_in_the_script_ends_when_all_is_found(script: ModuleType, occasion: str) -> None:
    plain = {name: vars(torch.nn.Module)[name] for name in ("__init__", "train")}
    finders, layer, found = list(sys.meta_path), torch.nn.Linear(1, 1), []

    def wrap(module: Any, name: str) -> bool:
        found.append((module, name))
        return True

    mainscript.Search(["first", "Second.method"], wrap).start()
    assert len(sys.meta_path) == len(finders) + 1 and len(guard.failures) == 2
    script.first = print  # type: ignore[attr-defined]
    script.Second = type("Second", (), {"method": print})  # type: ignore[attr-defined]
    assert found == []
    if occasion == "import":
        with pytest.raises(ImportError):
            __import__("a_module_that_is_not_there")
    elif occasion == "build":
        torch.nn.Linear(1, 1)
    else:
        layer.eval()
    assert found == [(script, "first"), (script, "Second.method")]
    assert sys.meta_path == finders and not guard.failures
    assert {name: vars(torch.nn.Module)[name] for name in plain} == plain


def test_a_hook_that_fails_stops_neither_the_others_nor_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(hooks.process, "hello", lambda **facts: called.append(facts["hooks"]))
    monkeypatch.setattr(hooks, "_hooked", [])
    guard.failures.clear()
    hooks._run("some.module", [lambda module: module.missing, called.append], sys)
    assert called == [sys, ["some.module"]]
    assert list(guard.failures) == ["hook some.module"]
    guard.failures.clear()
