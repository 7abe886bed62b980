"""Reads the catalogue's YAML files.

With libyaml where PyYAML was built with it: the parser in Python takes a second for what it takes a tenth of one for.
What could be wrong: nothing is checked here; each loader checks what it reads.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(name: str) -> Any:
    """The content of a data file of this package."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - both loaders are the safe one
