"""How a command that starts Python is read, and how the script it names runs without our being seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from traceanalyzer.collect.launch import LaunchError, injected, read_python

BOOT = Path("/boot")
INSIDE = Path(__file__).resolve().parents[2] / "traceanalyzer" / "collect" / "inside"


@pytest.mark.parametrize(
    ("line", "isolated"),
    [
        ("python x.py -I", ""), ("python3.11 -I x.py", "I"), ("python -uIB x.py", "I"), ("python -Es x.py", "E"),
        ("python -c -I", ""), ("python -W -I x.py", ""), ("python -WI x.py", ""), ("python -X dev -S x.py", "S"),
        ("python -mE", ""), ("python -Im mod", "I"), ("env -u A B=1 python -I x.py", "I"), ("env python x.py -E", ""),
        ("python --check-hash-based-pycs never -I x.py", "I"), ("python -", ""), ("pypy3 -E x", "E"),
    ],
)  # fmt: skip
def test_flags_that_hide_us_are_seen_and_arguments_are_not(line: str, isolated: str) -> None:
    found = read_python(line.split(), "/usr/bin/python")
    assert found is not None
    assert found.isolated == isolated


@pytest.mark.parametrize("line", ["bash -c 'python -I x'", "echo python -I", "pythonic -I", "env", "env A=1"])
def test_other_commands_are_left_alone(line: str) -> None:
    assert read_python(line.split(), "/bin/true") is None
    assert injected(line.split(), "/bin/true", "pythonpath", BOOT) == line.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python -I x.py a -I", "python -I /boot/run.py x.py a -I"),
        ("python -uIm mod a", "python -uI /boot/run.py -m mod a"),
        ("python -X dev -cpass", "python -X dev /boot/run.py -c pass"),
        ("env A=1 python x.py", "env A=1 python /boot/run.py x.py"),
    ],
)
def test_runpy_stands_between_the_flags_and_the_target(line: str, expected: str) -> None:
    assert injected(line.split(), "/usr/bin/python", "runpy", BOOT) == expected.split()


@pytest.mark.parametrize("line", ["bash x.sh", "python", "python -", "python -i"])
def test_runpy_refuses_what_it_cannot_run(line: str) -> None:
    with pytest.raises(LaunchError) as error:
        injected(line.split(), "/bin/true", "runpy", BOOT)
    assert error.value.code == 2


@pytest.mark.parametrize("first", ["#!/usr/bin/python3 -I", "#!/usr/bin/env -S python3 -I", "#! /usr/bin/python3 -I "])
def test_a_script_s_first_line_counts(first: str, tmp_path: Path) -> None:
    script = tmp_path / "tool"
    script.write_text(f"{first}\npass\n")
    found = read_python(["tool", "-S"], str(script))
    assert found is not None
    assert found.isolated == "I"
    assert found.target == (str(script), "-S")
    with pytest.raises(LaunchError, match="--inject runpy"):
        injected(["tool"], str(script), "pythonpath", BOOT)


PROGRAM = """\
import sys, pickle
class Thing: pass
print(__name__, sys.argv, sys.path[0], globals().get("__file__"), __spec__ and __spec__.name)
print(sys.modules["__main__"].Thing is Thing, pickle.loads(pickle.dumps(Thing())).__class__ is Thing, sorted(globals()))
def fail(): raise LookupError("the script's own")
if sys.argv[1:] == ["fail"]: fail()
if sys.argv[1:] == ["interrupt"]: raise KeyboardInterrupt
if sys.argv[1:] == ["leave"]: sys.exit("bye")
"""


def _outcome(words: list[str], folder: Path) -> tuple[int, str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRACEANALYZER")}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("flags", [[], ["-I"], ["-E"], ["-P"]])
@pytest.mark.parametrize(
    "target",
    [
        ["program.py"], ["program.py", "fail"], ["program.py", "interrupt"], ["program.py", "leave"], ["-c", PROGRAM],
        ["-c", PROGRAM, "fail"], ["-m", "program", "fail"], ["-m", "missing"], ["missing.py"], ["-c", "("], ["folder"],
    ],
)  # fmt: skip
def test_under_runpy_a_program_sees_and_says_what_it_would_alone(
    flags: list[str], target: list[str], tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(PROGRAM)
    alone = _outcome([sys.executable, *flags, *target], tmp_path)
    ours = _outcome([sys.executable, *flags, str(INSIDE / "run.py"), *target], tmp_path)
    assert ours == alone
