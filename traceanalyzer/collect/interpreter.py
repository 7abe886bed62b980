"""Finds the Python that a command will run, and whether it was told to ignore what we put on its path.

What could be wrong: a launcher that is no Python script (a shell script, a binary) may start any Python; of those only
what stands on the command line itself is seen. Where nothing is found, that says nothing about the run.
"""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Sequence

_PYTHON = re.compile(r"(?:python|pypy)(?:\d(?:\.\d+)?)?t?")
_SHELLS = ("sh", "bash", "dash", "zsh")
_SCRUBBING = ("sudo", "doas", "su")
"""Programs that drop the environment by default."""
_IGNORES = "IES"
_TAKES_VALUE = "WX"
_ENDS = "cm"
_FIRST_BYTES = 512


@dataclass(frozen=True)
class Interpreter:
    """What will run.

    path: the executable. ignores: which of -I, -E and -S it is given. via: the script whose first line names it.
    scrubbed_by: a program before it that drops the environment.
    """

    path: str
    ignores: str = ""
    via: str | None = None
    scrubbed_by: str | None = None


def unwrapped(command: Sequence[str]) -> list[str]:
    """The words of a shell's script in place of the shell that is to run it; empty where its quotes do not match."""
    words = list(command)
    if len(words) >= 3 and PurePath(words[0]).name in _SHELLS and re.fullmatch(r"-[a-z]*c", words[1]):
        try:
            return shlex.split(words[2])
        except ValueError:
            return []
    return words


def find(command: Sequence[str]) -> Interpreter | None:
    """The first Python that a command names, itself or in the first line of a script; None where none is seen."""
    scrubbed_by = None
    words = unwrapped(command)
    for at, word in enumerate(words):
        name = PurePath(word).name
        if name in _SCRUBBING:
            scrubbed_by = name
        if _PYTHON.fullmatch(name):
            path = shutil.which(word)
            return Interpreter(path, _ignored(words[at + 1 :]), None, scrubbed_by) if path else None
        script = shutil.which(word) if not word.startswith("-") else None
        named = _of_script(script) if script else None
        if named is not None:
            path = shutil.which(named[0])
            return Interpreter(path, _ignored(named[1:]), script, scrubbed_by) if path else None
    return None


def _ignored(words: Sequence[str]) -> str:
    """Which of -I, -E and -S stand among an interpreter's own options, each once."""
    found = ""
    words = list(words)
    while words and words[0].startswith("-") and words[0] != "-" and not words[0].startswith("--"):
        letters = words.pop(0)[1:]
        for at, letter in enumerate(letters):
            if letter in _IGNORES and letter not in found:
                found += letter
            elif letter in _ENDS:
                return found
            elif letter in _TAKES_VALUE:
                if at == len(letters) - 1 and words:
                    words.pop(0)
                break
    return found


def _of_script(path: str) -> list[str] | None:
    """The interpreter and its options that a Python script's first lines name."""
    try:
        with Path(path).open("rb") as stream:
            head = stream.read(_FIRST_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    if not head.startswith("#!"):
        return None
    first, _, rest = head[2:].partition("\n")
    words = first.split()
    if words and PurePath(words[0]).name == "env":
        words = [word for word in words[1:] if word != "-S"]
    if words and PurePath(words[0]).name in _SHELLS:
        # What installers write where the path is too long for a first line, or has spaces.
        found = re.match(r"\s*'''exec' (\"[^\"]+\"|\S+)", rest)
        words = [found.group(1).strip('"')] if found else []
    return words if words and _PYTHON.fullmatch(PurePath(words[0]).name) and not words[0].startswith("-") else None
