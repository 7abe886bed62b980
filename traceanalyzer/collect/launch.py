"""What is started: the command as it is, found as a shell would find it, with a few variables in its environment.

What could be wrong: only Python's own command line, `env` in front of it and a script's first line are read. A Python
that is started with -I by a shell script, or by a launcher that scrubs the environment, is not recorded; it shows as
"no process with torch reported".
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Sequence

from .inside import layout

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes, as a shell's."""
_PYTHON = re.compile(r"(python|pypy)(\d(\.\d+)?t?)?(\.exe)?")
_WITH_VALUE = "cmWX"
"""Python's short options that take a value; after c and m what follows is the program's."""
_ISOLATING = "IES"


class LaunchError(Exception):
    """The command cannot be started; `code` is the exit code to leave with."""

    def __init__(self, message: str, code: int) -> None:
        """Say why in one line."""
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class PythonCommand:
    """A command line that starts Python.

    before: the words up to the interpreter, which is the last of them. flags: its own options. target: a script, or -c
    or -m with what follows. isolated: the letter that keeps PYTHONPATH from it, if one does.
    """

    before: tuple[str, ...]
    flags: tuple[str, ...]
    target: tuple[str, ...]
    isolated: str


def resolve(command: Sequence[str], search: str | None) -> str:
    """The file to execute for a command's first word, by the rules of a shell. Raises `LaunchError`.

    Args:
        command: the words.
        search: the value of PATH.
    """
    word = command[0]
    found = shutil.which(word, path=search)
    if found:
        return found
    if os.sep in word:
        path = Path(word)
        if path.is_dir():
            raise LaunchError(f"{word}: is a directory", NOT_EXECUTABLE)
        if path.exists():
            raise LaunchError(f"{word}: permission denied", NOT_EXECUTABLE)
        raise LaunchError(f"{word}: no such file or directory", NOT_FOUND)
    if word and any((Path(folder) / word).is_file() for folder in (search or os.defpath).split(os.pathsep) if folder):
        raise LaunchError(f"{word}: permission denied", NOT_EXECUTABLE)
    raise LaunchError(f"{word or repr(word)}: command not found", NOT_FOUND)


def injected(command: Sequence[str], executable: str, inject: str, boot: Path) -> list[str]:
    """The words to execute. Raises `LaunchError` where the command would not be recorded that way.

    Args:
        command: as it was given.
        executable: the file that its first word names.
        inject: pythonpath (the words stay as they are) or runpy.
        boot: holds run.py.
    """
    python = read_python(command, executable)
    if inject == "pythonpath":
        if python and python.isolated:
            raise LaunchError(f"python -{python.isolated} ignores PYTHONPATH: add --inject runpy before the command", 2)
        return list(command)
    if python is None:
        raise LaunchError(f"--inject runpy needs a command that is Python or a Python script, not {command[0]}", 2)
    if not python.target:
        raise LaunchError("--inject runpy needs a script, -m or -c: it cannot run what comes from standard input", 2)
    return [*python.before, *python.flags, str(boot / "run.py"), *python.target]


def read_python(command: Sequence[str], executable: str) -> PythonCommand | None:
    """How a command starts Python, if it does: itself, by `env`, or by a script's first line."""
    at = _after_env(command)
    if at >= len(command):
        return None
    if _PYTHON.fullmatch(Path(command[at]).name):
        return _split_python(command[: at + 1], command[at + 1 :])
    if at:
        return None
    line = _first_line(executable)
    start = _after_env(line)
    if start >= len(line) or not _PYTHON.fullmatch(Path(line[start]).name):
        return None
    return _split_python(line[: start + 1], [*line[start + 1 :], executable, *command[1:]])


def _after_env(words: Sequence[str]) -> int:
    """Where the program stands behind `env`, its options and its variables; 0 where there is none."""
    if not words or Path(words[0]).name != "env":
        return 0
    at = 1
    while at < len(words) and (words[at].startswith("-") or "=" in words[at]):
        at += 2 if words[at] in ("-u", "--unset", "-C", "--chdir") else 1
    return at


def _first_line(executable: str) -> list[str]:
    """The words behind #!, as the kernel reads them; of `env -S` each word by itself."""
    try:
        if not Path(executable).is_file():  # a pipe would wait
            return []
        with Path(executable).open("rb") as stream:
            line = stream.readline(4096)
    except OSError:
        return []
    if not line.startswith(b"#!"):
        return []
    return os.fsdecode(line[2:]).split()


def _split_python(before: Sequence[str], words: Sequence[str]) -> PythonCommand:
    isolated = ""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        if word.startswith("--"):
            at += 2 if word == "--check-hash-based-pycs" else 1
            continue
        value = next((i for i, c in enumerate(word) if i and c in _WITH_VALUE), None)
        isolated = isolated or next((c for c in word[1:value] if c in _ISOLATING), "")
        if value is not None and word[value] in "cm":
            flags = [*words[:at], *([word[:value]] if value > 1 else [])]
            code = [word[value + 1 :]] if word[value + 1 :] else []
            return PythonCommand(
                tuple(before), tuple(flags), ("-" + word[value], *code, *words[at + 1 :]), isolated
            )  # fmt: skip
        at += 2 if value == len(word) - 1 else 1
    target = () if words[at : at + 1] in ([], ["-"]) else words[at:]
    return PythonCommand(tuple(before), tuple(words[:at]), tuple(target), isolated)


def environment(given: Mapping[str, str], runtime: Path, boot: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """The command's environment: as given, with our folder in front of PYTHONPATH.

    Args:
        given: the environment it would have had.
        extra: what the recorder needs.
    """
    found = dict(given, **extra)
    kept = given.get("PYTHONPATH", "")
    # An empty entry means the current folder: it stays where it stands, and none is added.
    found["PYTHONPATH"] = str(boot) + (os.pathsep + kept if kept else "")
    found[layout.ENVIRONMENT] = str(runtime)
    return found
