"""Short labels for kernel names: what a person would call the kernel, from its mangled-looking signature.

PyTorch's own kernels all start alike (`void at::native::elementwise_kernel<128, 4, ...`), and what tells them apart is
the functor somewhere inside. The label is the kernel's own name without return type, namespaces and arguments, plus
that functor where the name is one of the general ones. It only ever shortens: the whole name is shown beside it.

Names of one list that would read the same get the words they differ in behind the label. What could be wrong: names of
the same words in another order are numbered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from traceanalyzer.report.text_safety import shorten, visible

SHOWN = 56
"""Characters of a label in a list."""

LOOKED_AT = 2000
"""Characters of a name that are searched; what tells kernels apart stands within the first few hundred."""

_GENERAL = re.compile(
    r"^(?:(?:vectorized_|unrolled_|legacy_|index_)?elementwise_kernel\w*|reduce_kernel|gpu_\w*kernel"
    r"|multi_tensor_apply_kernel|device_kernel|Kernel2?|kernel|kentry|CatArrayBatchedCopy\w*|_scatter_gather\w*)$"
)
_FUNCTOR = re.compile(
    r"\b(?P<kernel>\w+?)_kernel(?:_cuda|_impl)?\b"
    r"|\bCUDAFunctor(?:OnSelf|OnOther)?_(?P<cuda>\w+)"
    r"|\b(?P<functor>(?!AUnary|BUnary|Binary|Unary)\w+?)Functor\b"
    r"|\b(?P<ops>\w+)Ops<"
    r"|\b(?P<flash>FlashAttn\w+)"
    r"|(?P<gemm>\bGemmUniversal\b|\bcutlass_\w+)"
)
_NAMELESS = frozenset({"kernel", "kernel2", "kentry", "device_kernel"})
_GENERIC_WORDS = frozenset({"gpu", "index", "elementwise", "vectorized_elementwise", "unrolled_elementwise"})
_TENSILE = re.compile(r"^Cijk_\w*?_(MT\d+x\d+x\d+)\w*")
_RETURN = re.compile(r"^(?:typename )?std::enable_if(?:_t)?<.*?>::type ")
_MANGLED = re.compile(r"^_ZN?")


_MARK = 28  # characters of what tells two names apart
_MOST_WORDS = 3
_WORD = re.compile(r"[A-Za-z]\w+|\d+")


def labels(names: Sequence[str], limit: int) -> list[str]:
    """What to call each kernel of one list, in at most `limit` visible characters; different names read differently."""
    shown = {name: shorten(visible(label(name)), limit) for name in names}
    alike: dict[str, list[str]] = {}
    for name, text in shown.items():
        alike.setdefault(text, []).append(name)
    for text, group in alike.items():
        if len(group) > 1:
            for name, mark in zip(group, _marks(group), strict=True):
                shown[name] = f"{shorten(text, limit - len(mark) - 3)} [{mark}]" if mark else text
    return [shown[name] for name in names]


def _marks(group: Sequence[str]) -> list[str]:
    """What tells each of several names apart: its first words that not all of them hold; else their numbers."""
    words = [list(dict.fromkeys(_WORD.findall(name[:LOOKED_AT]))) for name in group]
    common = set.intersection(*map(set, words))
    own = [[word for word in each if word not in common] for each in words]
    for many in range(1, _MOST_WORDS + 1):
        marks = [shorten(visible(", ".join(each[:many])), _MARK) for each in own]
        if len(set(marks)) == len(marks):
            return marks
    return [f"#{number}" for number in range(1, len(group) + 1)]


@lru_cache(maxsize=4096)
def label(name: str) -> str:
    """What to call the kernel in a list; the name itself where it is no C++ signature."""
    head = name[:LOOKED_AT]
    tensile = _TENSILE.match(head)
    if tensile:
        return f"Tensile GEMM {tensile.group(1)}"
    signature = "::" in head and ("<" in head or "(" in head)
    if _MANGLED.match(head) or not (signature or head.startswith("void ")):
        return head
    head = _RETURN.sub("", head)
    space, base = _base(head)
    if not _GENERAL.match(base):
        return base or head
    inside = head[head.find(base) + len(base) :]
    functor = _functor(inside)
    if not functor and space and base.lower() in _NAMELESS:
        return f"{space}::{base}"
    return functor if functor.startswith("cutlass") else f"{base} {functor}".rstrip()


def _base(name: str) -> tuple[str, str]:
    """The innermost namespace and the name of the function, without return type, template and call arguments."""
    plain = name.replace("(anonymous namespace)::", "").replace("{lambda", "")
    end = min((place for place in (plain.find("<"), plain.find("(")) if place > 0), default=len(plain))
    words = plain[:end].split()
    space, _, base = words[-1].rpartition("::") if words else ("", "", name)
    return space.rsplit("::", 1)[-1], base


def _functor(inside: str) -> str:
    for match in _FUNCTOR.finditer(inside):
        word = next(group for group in match.groups() if group)
        if word not in _GENERIC_WORDS:
            return word
    return ""
