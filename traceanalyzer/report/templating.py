"""The templates, for every page of the product: the folder they lie in and how what they print is made safe.

Every text that comes out of a template passes `visible` and then HTML escaping, without the template's doing, and a
name that a template was not given is an error. What could be wrong: a template that marks a text as safe itself goes
past both, so none does, and the tests render hostile names through every page.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from traceanalyzer.report.text_safety import shorten, visible

_BEFORE_UNIT = re.compile(r"(?<=\d) (?=[%\N{MULTIPLICATION SIGN}]|(?:[mn\N{MICRO SIGN}]?s|[kMGT]?B|tokens)\b)")
_PACKAGE = Path(__file__).resolve().parent.parent


def folder() -> Path:
    """The templates: packaged ones in a wheel, the project's own folder in an editable installation."""
    packaged = _PACKAGE / "_templates"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "templates"


def environment() -> Environment:
    """A new environment; whoever asks adds the globals of its own pages."""
    made = Environment(
        loader=FileSystemLoader(folder()),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["shorten"] = lambda value, limit: shorten(visible(value), limit)
    made.filters["unbroken"] = lambda value: _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", value)
    made.filters["lines"] = lambda value: Markup("\n").join(visible(line) for line in value.splitlines())
    made.filters["svg"] = Markup  # only for what views.svg made, which escapes what it draws
    return made


def _finalize(value: Any) -> Any:
    """What every expression of every template prints: text made visible, everything else as it is."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return visible(value)


@functools.cache
def asset(name: str) -> str:
    """A style sheet or script of the templates' folder, with the line ends of the repository."""
    return (folder() / name).read_text(encoding="utf-8").replace("\r\n", "\n")
