"""Finds the Python that a command will run, also behind a shell or a launcher, to ask it before the run.

What could be wrong: a launcher that is no Python script may start any Python; of those only what stands on the command
line itself is seen. Where nothing is found, that says nothing about the run.
"""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import PurePath
from typing import Sequence

from .launch import read_python

_SHELLS = ("sh", "bash", "dash", "zsh")
_SCRUBBING = ("sudo", "doas", "su")
"""Programs that drop the environment by default."""


@dataclass(frozen=True)
class Interpreter:
    """What will run.

    path: the executable. isolated: the letter, of -I, -E and -S, that keeps PYTHONPATH from it, if one does.
    scrubbed_by: a program before it that drops the environment.
    """

    path: str
    isolated: str = ""
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
        if PurePath(word).name in _SCRUBBING:
            scrubbed_by = PurePath(word).name
        executable = shutil.which(word)
        python = read_python(words[at:], executable) if executable else None
        path = shutil.which(python.before[-1]) if python else None
        if python and path:
            return Interpreter(path, python.isolated, scrubbed_by)
    return None
