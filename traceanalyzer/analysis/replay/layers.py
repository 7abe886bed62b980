"""Splits a forward pass into what stands before its layers, the layers, and what stands after them; gives out roles.

Every layer has one attention kernel, so attention says where the layers are; the products around it get their roles by
their order, in one of the ways of `roles` that fits all layers at once. Layers differ only in what a model lets differ:
windows (other attention kernels) and where its experts begin (other MLPs). Everything else that carries a part has to
be the same kernel in the same place of every layer.

What could be wrong: kernels exchanged in the same way in every layer of every replay look like another order.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from traceanalyzer.analysis.replay.align import Refused
from traceanalyzer.analysis.replay.roles import Roles, attentions, kind, mlps
from traceanalyzer.analysis.replay.sequence import (
    ACTIVATION,
    ATTENTION,
    COMBINE,
    COMM,
    EMBEDDING,
    HEAVY,
    KV_WRITE,
    NORM,
    QUANTISE,
    ROPE,
    Carriers,
)
from traceanalyzer.catalog.models import ModelConfig

OUTSIDE = -1
Key = tuple[str, int, int]


@dataclass(frozen=True)
class Layer:
    """Where a layer stands: half-open ranges of carriers. `lead`: before its first product; `mlp` follows attention."""

    lead: range
    attention: range
    mlp: range


@dataclass(frozen=True)
class Pass:
    """A forward pass taken apart. `roles`: of each product by its place among the carriers; `after`: what follows the
    layers up to the output layer `head` (None where there is none)."""

    layers: tuple[Layer, ...]
    roles: dict[int, tuple[str, int]]
    after: range
    head: int | None


def arrange(carriers: Carriers, config: ModelConfig, decodes: bool) -> Pass | Refused:
    """The layers of a sequence.

    Args:
        carriers: the kernels that carry a part.
        config: the model that ran.
        decodes: whether the step decodes, so that it has to end with the output layer.
    """
    attention = [i for i, part in enumerate(carriers.parts) if part == ATTENTION]
    if len(attention) != config.layers:
        return Refused(f"{len(attention)} attention kernels, and the model has {config.layers} layers")
    products = _between([i for i, part in enumerate(carriers.parts) if part in HEAVY], attention)
    found = _fitting(carriers, config, products, decodes)
    if found is None:
        return Refused(_odd_products(carriers, config, products))
    before, after, chosen, headed = found
    taken = _ranges(products, attention, len(before), len(after), headed)
    roles: dict[int, tuple[str, int]] = {}
    for layer, mlp in enumerate(chosen):
        own = products[layer][-len(before) :], products[layer + 1][: len(after) + len(mlp)]
        for place, role in zip((*own[0], *own[1]), (*before, *after, *mlp), strict=True):
            roles[place] = role, layer
    head = products[-1][-1] if headed else None
    last = taken[-1].mlp.stop
    if head is not None:
        roles[head] = "lm_head", OUTSIDE
    passed = Pass(taken, roles, range(last, len(carriers.parts) if head is None else head), head)
    why = _unlike(carriers, config, passed)
    return passed if why is None else Refused(why)


def _between(products: Sequence[int], attention: Sequence[int]) -> list[list[int]]:
    """The products before the first attention, between each two, and after the last."""
    edges = (-1, *attention, 1 << 62)
    return [[i for i in products if low < i < high] for low, high in itertools.pairwise(edges)]


def _fitting(
    carriers: Carriers, config: ModelConfig, products: Sequence[Sequence[int]], decodes: bool
) -> tuple[Roles, Roles, list[Roles], bool] | None:
    """The first way that accounts for every product: before and after attention, each MLP, a head or none."""
    seen = [tuple(carriers.parts[i] for i in some) for some in products]
    for (before, after), chosen in itertools.product(attentions(config), _mlps(config)):
        wanted = [tuple(map(kind, roles)) for roles in _wanted(before, after, chosen)]
        if seen[:-1] != wanted[:-1]:
            continue
        if seen[-1] == (*wanted[-1], kind("lm_head")):
            return before, after, chosen, True
        if seen[-1] == wanted[-1] and not decodes:
            return before, after, chosen, False
    return None


def _mlps(config: ModelConfig) -> Iterator[list[Roles]]:
    """The MLPs of all layers, in every way that is known: one for dense layers, one for those with experts."""
    mixed = [config.has_experts(layer) for layer in range(config.layers)]
    examples = {routed: mixed.index(routed) for routed in sorted(set(mixed))}
    for chosen in itertools.product(*(mlps(config, layer) for layer in examples.values())):
        plain = {role.removeprefix("shared_") for roles in chosen for role in roles}
        by_kind = dict(zip(examples, chosen, strict=True))
        if not {"gate", "gate_up"} <= plain:  # dense MLPs and shared experts run the same code
            yield [by_kind[routed] for routed in mixed]


def _wanted(before: Roles, after: Roles, chosen: Sequence[Roles]) -> list[Roles]:
    return [before, *((*after, *mlp, *before) for mlp in chosen[:-1]), (*after, *chosen[-1])]


def _ranges(
    products: Sequence[Sequence[int]], attention: Sequence[int], before: int, after: int, headed: bool
) -> tuple[Layer, ...]:
    layers, start = [], 0
    for layer in range(len(attention)):
        following = products[layer + 1]
        end = following[-before - 1 if layer + 1 < len(attention) else -2 if headed else -1] + 1
        first, projected = products[layer][-before], following[after - 1] + 1
        layers.append(Layer(range(start, first), range(first, projected), range(projected, end)))
        start = end
    return tuple(layers)


def _odd_products(carriers: Carriers, config: ModelConfig, products: Sequence[Sequence[int]]) -> str:
    """Where the products stop being alike."""
    for routed in (False, True):
        layers = [i for i in range(config.layers - 1) if config.has_experts(i) == routed]
        counts = [tuple(carriers.parts[i] for i in products[layer + 1]) for layer in layers]
        odd = _odd(counts)
        if odd is not None:
            usual = Counter(counts).most_common(1)[0][0]
            return f"layer {layers[odd]}: {len(counts[odd])} products after attention, {len(usual)} in most others"
    each = {len(some) for some in products[1:-1]}
    last = len(products[-1])
    return (
        f"{len(products[0])} products before the first attention, {min(each, default=0)} between two, {last} after the "
        "last: no known way to merge projections has these"
    )


def _odd(keys: Sequence[object]) -> int | None:
    """The first that is not like most."""
    if not keys:
        return None
    usual = Counter(keys).most_common(1)[0][0]
    return next((i for i, key in enumerate(keys) if key != usual), None)


def _unlike(carriers: Carriers, config: ModelConfig, passed: Pass) -> str | None:
    """What is not the same in all layers, or stands in no possible order; None where everything fits."""
    layers = passed.layers
    keys = [_keys(carriers, layer.attention) for layer in layers]
    plain = [tuple(key for key in some if key[0] not in (ATTENTION, COMBINE)) for some in keys]
    windows = [config.window(i) for i in range(len(layers))]
    mlp = [_keys(carriers, layer.mlp) for layer in layers]
    ahead = [tuple(itertools.takewhile(lambda key: key[0] not in HEAVY, some)) for some in mlp]
    routed = [config.has_experts(i) for i in range(len(layers))]
    leads = [_keys(carriers, layer.lead) for layer in layers]
    why = None
    for window in dict.fromkeys(windows):
        why = why or _first_unlike(keys, [i for i, own in enumerate(windows) if own == window])
    for expert in dict.fromkeys(routed):
        why = why or _first_unlike(mlp, [i for i, own in enumerate(routed) if own == expert])
    for some in (plain, ahead):
        why = why or _first_unlike(some, range(len(layers)))
    why = why or _first_unlike(leads, range(1, len(layers)))
    return why or _impossible(carriers, passed) or _edges(carriers, passed, leads)


def _keys(carriers: Carriers, places: range) -> tuple[Key, ...]:
    found = ((carriers.parts[i], carriers.names[i], carriers.grids[i]) for i in places)
    return tuple(key for key in found if key[0] != EMBEDDING)


def _first_unlike(keys: Sequence[tuple[Key, ...]], which: Sequence[int]) -> str | None:
    own = [keys[i] for i in which]
    odd = _odd(own)
    if odd is None:
        return None
    usual = Counter(own).most_common(1)[0][0]
    pairs = itertools.zip_longest(own[odd], usual, fillvalue=("nothing", 0, 0))
    (here, *_), (there, *_) = next((a, b) for a, b in pairs if a != b)
    words = f"another {here}" if here == there else f"{here} where most others have {there}"
    return f"layer {which[odd]}: {words}"


def _impossible(carriers: Carriers, passed: Pass) -> str | None:
    """A kernel on the wrong side of attention."""
    mlps = [[carriers.parts[i] for i in layer.mlp] for layer in passed.layers]
    for number, layer in enumerate(passed.layers):
        if any(ACTIVATION in parts for parts in mlps) and not _activates(mlps[number]):
            return f"layer {number}: its MLP without one activation between its products"
        parts = [carriers.parts[i] for i in layer.attention]
        at = parts.index(ATTENTION)
        for part in (ROPE, KV_WRITE, NORM):
            if part in parts[at:]:
                return f"layer {number}: {part} after attention"
        if COMBINE in parts[:at]:
            return f"layer {number}: parts of attention joined before it"
    return None


def _activates(parts: Sequence[str]) -> bool:
    """Whether an activation stands in front of a product, and none beside another one."""
    places = [i for i, part in enumerate(parts) if part == ACTIVATION]
    heavy = [i for i, part in enumerate(parts) if part in HEAVY]
    between = [sum(i < place for i in heavy) for place in places]
    return bool(places) and len(set(between)) == len(between) and between[0] > 0 and between[-1] < len(heavy)


def _edges(carriers: Carriers, passed: Pass, leads: Sequence[tuple[Key, ...]]) -> str | None:
    """Whether the first layer begins, and the last one ends, as the others do.

    The first has no layer before it that would leave a reduction or a norm of its own to it; behind the last stands the
    model's last norm where another layer would have its first one.
    """
    usual = [key[0] for key in (leads[1] if len(leads) > 1 else leads[0])]
    first = [key[0] for key in leads[0]]
    ending = _keys(carriers, passed.after)
    last = [key[0] for key in ending]
    norms = first.count(NORM)
    begins = usual[_last_norm(usual) :] if norms else [part for part in usual[-1:] if part == QUANTISE]
    if norms > 1 or first[len(first) - len(begins) :] != begins:
        return f"layer 0: begins with {_listed(first)}, others with {_listed(usual)}"
    rest = first[: len(first) - len(begins)]
    if any(part != COMM for part in rest) or len(rest) > 1:
        return f"{_listed(rest)} before the first layer"
    while usual and usual[-1] == QUANTISE:
        usual = usual[:-1]
    ends = [usual] if norms else [[*usual, NORM]] if NORM in usual else [usual, [*usual, NORM]]
    if passed.head is not None and last not in ends:
        return f"after the last layer: {_listed(last)}, where {_listed(ends[0])} was expected"
    same = zip(ending[:-1], leads[1] if len(leads) > 1 else (), strict=False)
    if passed.head is not None and any(here[1] != there[1] for here, there in same):
        return "after the last layer: other kernels than after the layers before"
    return None


def _last_norm(parts: Sequence[str]) -> int:
    return max((i for i, part in enumerate(parts) if part == NORM), default=len(parts))


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(parts) or "nothing"
