"""`collect` around one script in every way that scripts start and end: exit codes kept, traces whole, phases right.

Each case runs torch in processes of its own. From collector.pyz a script, a child, and an open window at the end run:
what is loaded from it, by whom, differs in nothing else. How a command's end becomes its own is in test_supervisor.py.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import traceanalyzer
from tests.collect import generation, running
from tests.collect.running import INSTALLED, ROOT, SCRIPT, Recorded

PYTHON = sys.executable
ONE = {"prefill": 1, "decode": generation.NEW - 1}
"""Steps of one generation: the prompt's gives the first token."""


@pytest.fixture(scope="session")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    target = tmp_path_factory.mktemp("pyz") / "collector.pyz"
    subprocess.run([PYTHON, ROOT / "scripts" / "collector.py", target], check=True, timeout=60, capture_output=True)
    return (PYTHON, str(target), "collect")


def _times(number: int) -> dict[str, int]:
    return {phase: count * number for phase, count in ONE.items()}


def _check_labels(recorded: Recorded) -> None:
    """Every label says the batch's tokens and contexts as they follow from prompt and position."""
    batch, prompt = generation.BATCH, generation.PROMPT
    for trace in recorded.traces:
        for phase, numbers in trace.labels():
            if phase == "prefill":
                expected = {"tokens": batch * prompt, "seqs": batch, "ctx": batch * prompt}
            else:
                expected = {"tokens": batch, "seqs": batch}
                assert numbers["ctx"] % batch == 0
                assert prompt < numbers["ctx"] // batch < prompt + generation.NEW
            assert {key: numbers[key] for key in expected} == expected


def _recorded(output: Path, phases: dict[str, int]) -> Recorded:
    found = running.read(output)
    assert found.phases() == phases
    _check_labels(found)
    return found


WAYS = {
    "script": ([PYTHON, str(SCRIPT)], 0, 1),
    "module": ([PYTHON, "-m", "generation"], 0, 1),
    "code": ([PYTHON, "-c", "import generation; generation.main()"], 0, 1),
    "shell": (["bash", "-c", f"'{PYTHON}' '{SCRIPT}'; exit 5"], 5, 1),
    "spawn": ([PYTHON, str(SCRIPT), "spawn"], 0, 1),
    "fork": ([PYTHON, str(SCRIPT), "fork"], 0, 1),
    "forkserver": ([PYTHON, str(SCRIPT), "forkserver"], 0, 1),
    "forked with a model": ([PYTHON, str(SCRIPT), "forked_with_model"], 0, 2),
    "exception": ([PYTHON, str(SCRIPT), "fails"], 1, 1),
    "exit": ([PYTHON, str(SCRIPT), "leaves"], 5, 1),
    "exit at once": ([PYTHON, str(SCRIPT), "leaves_at_once"], 3, 1),
    "late": ([PYTHON, str(SCRIPT), "late"], 0, 1),
    "server": ([PYTHON, str(SCRIPT), "server"], 0, 6),
    "compiled": ([PYTHON, str(SCRIPT), "compiled"], 0, 1),
    "torchrun": ([PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2", str(SCRIPT), "ranks"], 0, 2),
}
"""Name -> the command, its exit code, and how many times it generates."""
FROM_PYZ = ("script", "spawn")


def _run_way(way: str, collect: Sequence[str], tmp_path: Path) -> tuple[subprocess.CompletedProcess[str], Recorded]:
    command, code, generations = WAYS[way]
    done = running.run(command, tmp_path / "out", collect=collect, cwd=SCRIPT.parent)
    assert done.returncode == code, done.stderr
    assert done.stdout.split() == f"generated {generation.NEW} ".split() * generations
    return done, _recorded(tmp_path / "out", _times(generations))


@pytest.mark.parametrize("way", WAYS)
def test_a_run_is_recorded_as_it_is(way: str, tmp_path: Path) -> None:
    done, recorded = _run_way(way, INSTALLED, tmp_path)
    assert ("the script's own error" in done.stderr) == (way == "exception")
    if way == "torchrun":
        assert sorted(trace.entry["rank"] for trace in recorded.traces) == [0, 1]
        assert len({trace.entry["pid"] for trace in recorded.traces}) == 2
    if way == "forked with a model":
        assert len({trace.entry["pid"] for trace in recorded.traces}) == 2


@pytest.mark.parametrize("way", FROM_PYZ)
def test_a_run_is_recorded_by_the_one_file(way: str, pyz: Sequence[str], tmp_path: Path) -> None:
    _run_way(way, pyz, tmp_path)


def test_a_console_script_is_recorded_and_reported(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "generate"
    tool.parent.mkdir()
    tool.write_text(f"#!{PYTHON}\nimport sys\nsys.path.insert(0, {str(SCRIPT.parent)!r})\n"
                    "from generation import main\nmain()\n")  # fmt: skip
    tool.chmod(0o755)
    path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"
    done = running.run(["generate"], tmp_path / "out", env={**running.environment(), "PATH": path})
    assert done.returncode == 0, done.stderr
    recorded = _recorded(tmp_path / "out", ONE)
    assert f"traceanalyzer report {recorded.folder}" in done.stderr
    report = traceanalyzer.analyze(traceanalyzer.read_traces([recorded.folder]))
    assert {phase.phase: phase.steps for phase in report.phases if phase.steps} == ONE
    assert all("collector" in step.evidence for step in report.steps)


@pytest.mark.parametrize(("way", "source"), [("idle", "installed"), ("busy", "installed"), ("idle", "pyz")])
def test_a_termination_lets_the_open_window_be_written_first(
    way: str, source: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    collect: Sequence[str] = INSTALLED if source == "installed" else request.getfixturevalue("pyz")
    with running.started([PYTHON, str(SCRIPT), way], tmp_path / "out", collect=collect) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"generated {generation.NEW}\n"
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=running.TIMEOUT_S)
    assert process.returncode == -signal.SIGTERM, told
    recorded = running.read(tmp_path / "out")
    if way == "idle":
        assert recorded.phases() == ONE
        assert [trace.entry["closed_by"] for trace in recorded.traces] == ["flush"]
    else:
        phases = recorded.phases()
        assert phases["prefill"] >= 1
        assert phases["decode"] >= generation.NEW - 1
        assert set(phases) == {"prefill", "decode"}
    assert recorded.manifest["signal"] == signal.SIGTERM
    assert recorded.manifest["exit_code"] is None


def test_ctrl_c_reaches_the_script_once_and_keeps_the_window(tmp_path: Path) -> None:
    import pty

    master, slave = pty.openpty()
    # The terminal becomes that of the session which `started` makes.
    code = "import os, sys, fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    command = [PYTHON, str(SCRIPT), "idle"]
    try:
        with running.started(
            command, tmp_path / "out", collect=[PYTHON, "-c", code, *INSTALLED], stdin=slave
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == f"generated {generation.NEW}\n"
            os.write(master, b"\x03")
            _, told = process.communicate(timeout=running.TIMEOUT_S)
    finally:
        os.close(master)
        os.close(slave)
    assert process.returncode == -signal.SIGINT, told
    assert told.count("KeyboardInterrupt") == 1
    _recorded(tmp_path / "out", ONE)


def test_the_script_s_own_profiler_wins_and_both_traces_are_whole(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    done = running.run([PYTHON, str(SCRIPT), "own_profiler", str(own)], tmp_path / "out")
    assert done.returncode == 0, done.stderr
    names = [event["name"] for event in json.loads(own.read_text())["traceEvents"]]
    assert not [name for name in names if name.startswith("ta.")]
    # Each of the 2 layers multiplies 7 times, the head once; a step more for each token.
    assert names.count("aten::mm") == (2 * 7 + 1) * generation.NEW
    recorded = _recorded(tmp_path / "out", _times(2))
    assert [trace.entry["closed_by"] for trace in recorded.traces] == ["user_profiler", "exit"]


def test_an_isolated_python_is_refused_or_run_by_runpy(tmp_path: Path) -> None:
    command = [PYTHON, "-I", str(SCRIPT)]
    refused = running.run(command, tmp_path / "refused")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "--inject runpy" in refused.stderr
    assert not (tmp_path / "refused").exists()
    done = running.run(command, tmp_path / "out", "--inject", "runpy")
    assert (done.returncode, done.stdout) == (0, f"generated {generation.NEW}\n"), done.stderr
    _recorded(tmp_path / "out", ONE)


def test_the_one_file_runs_from_a_folder_without_write_bits(pyz: Sequence[str], tmp_path: Path) -> None:
    folder = Path(pyz[1]).parent
    before = sorted(path.name for path in folder.iterdir())
    done = running.run(["sh", "-c", "exit 4"], tmp_path / "out", collect=pyz)
    assert done.returncode == 4
    assert sorted(path.name for path in folder.iterdir()) == before
    assert Path(pyz[1]).stat().st_mode & stat.S_IXUSR
