"""Which kind of work a GPU kernel does, judged by its name: ordered rules kept as data in `kernel_rules.yaml`.

What could be wrong: a name is a convention, not a fact. Fused kernels carry the names of neighbouring ops, libraries
rename kernels between versions, and the rules were written against the names of some forty traces, so they show
coverage rather than accuracy on names never seen. A name that no rule knows gets the rule `UNKNOWN`: category `other`,
tensor core `maybe`, so that its time ends as unknown and not as useful. Only the first 2048 characters of a name are
read: what decides stands early in real names, and the time to match a hostile one stays bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from traceanalyzer.catalog import data

TensorCore = Literal["yes", "no", "maybe"]

_FILE = "kernel_rules.yaml"
#: How much of a name is matched. Matching is quadratic in this at worst.
NAME_LIMIT = 2048


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what kernels do whose name (lower-cased under `ignore_case`) `pattern` finds.

    The fields are those of the data file, described at its head.
    """

    id: str
    category: str
    role: str
    tensor_core: TensorCore
    pattern: re.Pattern[str]
    ignore_case: bool
    dtypes: tuple[tuple[str, re.Pattern[str]], ...]
    phase_hint: str | None
    example: str
    source: str
    note: str | None

    def dtype(self, name: str) -> str | None:
        """The type a kernel of this name computes in (fp64 fp32 tf32 bf16 fp16 fp8 int8 fp4 int4), None if unsaid."""
        text = name[:NAME_LIMIT]
        return next((dtype for dtype, pattern in self.dtypes if pattern.search(text)), None)


UNKNOWN = Rule("unknown", "other", "unknown", "maybe", re.compile(""), False, (), None, "", "none", None)


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule in the order in which they are tried, compiled once."""
    content = data.load(_FILE)
    tokens = _dtypes(content["dtype_tokens"])
    return tuple(_rule(entry, tokens) for entry in content["rules"])


@cache
def categories() -> tuple[str, ...]:
    """Every category a rule may give."""
    return tuple(data.load(_FILE)["categories"])


def match(name: str) -> Rule:
    """The first rule that knows the kernel's raw name, else `UNKNOWN`."""
    text = name[:NAME_LIMIT]
    lower = text.lower()
    return next((rule for rule in rules() if rule.pattern.search(lower if rule.ignore_case else text)), UNKNOWN)


def _dtypes(entry: Mapping[str, str]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((dtype, re.compile(pattern)) for dtype, pattern in entry.items())


def _rule(entry: Mapping[str, Any], tokens: tuple[tuple[str, re.Pattern[str]], ...]) -> Rule:
    return Rule(
        id=entry["id"],
        category=entry["category"],
        role=entry["role"],
        tensor_core=entry["tensor_core"],
        pattern=re.compile("|".join(entry["match"])),
        ignore_case=entry.get("ignore_case", False),
        dtypes=_dtypes(entry["dtypes"]) if "dtypes" in entry else tokens,
        phase_hint=entry.get("phase_hint"),
        example=entry["example"],
        source=entry["source"],
        note=entry.get("note"),
    )
