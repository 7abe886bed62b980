"""The work of experts behind an op that shows its input and the router's answer only (`vllm::moe_forward`).

Such an op hides the weights: how wide an expert is and how many a token takes are not among its arguments. Together the
following tell them, each checked against the others where several do:

    tokens T, hidden size, E            the op's arguments
    experts per token k                 the table of chosen experts, (T, k) integers, that a call within the op is given
                                        or allocates; else the model's config
    width f of an expert                the model's config, per rank; else the grid of TensorRT-LLM's generated kernels
    how values are stored               the names of those kernels, else the config

FLOPs are the model's own, 2 h f per matrix and assignment: padding is no work. Bytes are those of the weights as they
are stored, padded where the grid shows it, for they have to be read: 4.25 bits a value with mxfp4, 4.5 with nvfp4.
Which experts are active is not recorded, see `work.experts`. A layer whose kernels are not one product up and one down,
or whose grid contradicts the config, is left unknown.

What could be wrong: with experts spread over ranks the range of a rank is wider than that of its part of every expert,
which is assumed where no grid tells. Biases of experts are not counted (under a thousandth of the weights).

Names: `bmm_<output>_<weights><activations>_Fp32_t<rows>x<tokens>x<depth>_..._transOut_...`, where the kernel computes
the transposed product, so that the first operand is the weight and grid x counts tiles of its rows; types as in
TensorRT-LLM's batched GEMM (`trtllmGen_bmm_export`). `quantize_with_block_size<kind, ...>`: kind 0 is 16 bits to nvfp4,
1 fp8 to nvfp4, 2 16 bits to mxfp8 (`enum class BlockScaleQuantizationType` of the same library).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceanalyzer.analysis.activity import Activity
from traceanalyzer.analysis.shapes import signature
from traceanalyzer.analysis.work.chosen import chosen_experts
from traceanalyzer.analysis.work.columns import Ints, distinct, put
from traceanalyzer.analysis.work.experts import Routing
from traceanalyzer.analysis.work.opwork import Operand, OpWork, operand
from traceanalyzer.catalog.models import ModelConfig
from traceanalyzer.trace.tables import MISSING, Trace

LAYERS: Mapping[str, tuple[int, int]] = {
    "vllm::moe_forward": (0, 1),
    "vllm::moe_forward_shared": (0, 1),
    "sglang::moe_forward_piecewise_cuda_graph_impl": (0, 3),
    "sglang::fused_moe_bypassed_piecewise_cuda_graph_impl": (0, 1),
}
"""Where input and router logits are among the arguments, from the definitions in vLLM's `moe_runner.py` and SGLang's
`fused_moe_triton/layer.py`."""

_GENERATED = re.compile(r"^bmm_([A-Za-z0-9]+)_([A-Za-z0-9]+)_Fp32_(?:\w*?_)?t([1-9]\d{0,5})x\d+x\d+")
_TYPE = re.compile(r"(?:Mx)?(?:E4m3|E2m1)|Bfloat16|Fp16")
_BITS = {"Bfloat16": 16.0, "Fp16": 16.0, "E4m3": 8.0, "MxE4m3": 8.25, "E2m1": 4.5, "MxE2m1": 4.25}
_ACTIVATED = re.compile(r"(?i)swiglu|geglu|situglu|relu2|_act_")
_SUMS = re.compile(r"finalizeKernel|finalizeMoeRouting")
_QUANTISES = re.compile(r"quantize_with_block_size<\([^)]*\)([02]),")
_QUANTISED_BITS = {"0": _BITS["E2m1"], "2": _BITS["MxE4m3"]}
_PADDED = 1.25
"""A hidden size is padded by less than this factor."""
_TILE = 256


@dataclass(frozen=True)
class KnownModel:
    """What is known of the model: its sizes, the ranks that divide a layer, the bits of an expert's weights."""

    config: ModelConfig
    ranks: int
    expert_bits: float | None


@dataclass(frozen=True, slots=True)
class _Layer:
    """One call: tokens and hidden size as given, experts in all and per token, and what the model says of them."""

    x: Operand
    experts: int
    chosen: int
    known: KnownModel | None

    @property
    def tokens(self) -> int:
        return self.x.shape[0]

    @property
    def hidden(self) -> int:
        return self.x.shape[1]


@dataclass(frozen=True, slots=True)
class _Kernel:
    """How a product's kernel stores its values (bits), and the rows of the weight that its grid covers."""

    weight: float | None
    given: float | None
    result: float | None
    rows: int | None
    activated: bool


@dataclass(frozen=True, slots=True)
class _Found:
    """A call's products, and the token-expert pairs that fall to this device."""

    layer: _Layer
    assignments: float
    up: OpWork
    down: OpWork


def fill_experts(trace: Trace, activity: Activity, work: pd.DataFrame, known: KnownModel | None) -> pd.DataFrame:
    """The work table with the experts filled in whose op hides them.

    The source is "model-config" where the model's sizes were needed, else "grid".

    Args:
        trace, activity: what was read, and what ran.
        work: as `measure` returns it.
        known: the model, where it is known and nothing contradicts it.
    """
    calls = _calls(trace, activity.table, work)
    if calls is None:
        return work
    columns = ["name", "dims", "types", "chosen", "first", "first_grid", "second", "second_grid"]
    at, first = distinct([calls[column].to_numpy(np.int64) for column in columns])
    keys = calls[columns].to_numpy(np.int64)[first]
    alone = (trace.metadata.world_size or 1) == 1
    found = [_found(trace, key, known, alone) for key in keys.tolist()]
    works = [one for each in found for one in ((each.up, each.down) if each else (None, None))]
    source = "grid" if known is None else "model-config"
    for place, column in enumerate(("first_row", "second_row")):
        work = put(work, calls[column].to_numpy(np.int64), works, 2 * at + place, source)
    return _beside(trace, activity.table, work, calls, found, at)


def _calls(trace: Trace, table: pd.DataFrame, work: pd.DataFrame) -> pd.DataFrame | None:
    """The calls of such ops with one product up and one down: what tells them apart, and the rows of the two."""
    ops = trace.ops["name"].to_numpy(np.int64)
    wanted = [code for code in np.unique(ops).tolist() if trace.text(code) in LAYERS]
    op = table["op"].to_numpy(np.int64)
    product = (work["category"] == "moe").to_numpy() & (work["role"] == "expert-gemm").to_numpy()
    rows = np.flatnonzero(product & work["flops"].isna().to_numpy() & (op >= 0) & (table["kernel"].to_numpy() >= 0))
    rows = rows[np.isin(ops[op[rows]], wanted)]
    rows = rows[np.lexsort((table["start_ns"].to_numpy()[rows], op[rows]))]
    owner, first, count = np.unique(op[rows], return_index=True, return_counts=True)
    owner, first = owner[count == 2], first[count == 2]
    if not len(owner):
        return None
    found: pd.DataFrame = trace.ops[["name", "dims", "types"]].iloc[owner].reset_index(drop=True).astype(np.int64)
    found["op"] = owner
    found["chosen"] = chosen_experts(trace, owner)
    grid, kernel = trace.kernels["grid_x"].to_numpy(np.int64), table["kernel"].to_numpy(np.int64)
    for place, column in enumerate(("first", "second")):
        row = rows[first + place]
        found[f"{column}_row"], found[column] = row, table["name"].to_numpy(np.int64)[row]
        found[f"{column}_grid"] = grid[kernel[row]]
    return found


def _layer(trace: Trace, name: int, dims: int, types: int, chosen: int, known: KnownModel | None) -> _Layer | None:
    """A call, where its arguments, the chosen experts and the model agree."""
    sig = signature(trace.text(dims), trace.text(types), "", "")
    at, routed = LAYERS[trace.text(name)]
    x, logits = operand(sig, at), operand(sig, routed)
    if x is None or logits is None or len(x.shape) != 2 or len(logits.shape) != 2 or x.shape[0] != logits.shape[0]:
        return None
    experts = logits.shape[1]
    if known is not None:
        moe = known.config.moe
        padded = known.config.hidden <= x.shape[1] < _PADDED * known.config.hidden
        if moe is None or moe.experts != experts or not padded or chosen not in (MISSING, moe.experts_per_token):
            return None
        chosen = moe.experts_per_token
    return _Layer(x, experts, chosen, known) if 1 <= chosen <= experts and x.shape[0] else None


def _found(trace: Trace, key: list[int], known: KnownModel | None, alone: bool) -> _Found | None:
    """The work of one distinct call."""
    name, dims, types, chosen, first, first_grid, second, second_grid = key
    layer = _layer(trace, name, dims, types, chosen, known)
    if layer is None:
        return None
    up, down = _kernel(trace.text(first), first_grid), _kernel(trace.text(second), second_grid)
    return _products(layer, up, down, alone)


def _kernel(name: str, grid: int) -> _Kernel:
    activated = _ACTIVATED.search(name) is not None
    found = _GENERATED.search(name)
    types = _TYPE.findall(found[2]) if found else []
    if found is None or len(types) not in (1, 2):
        return _Kernel(None, None, None, None, activated)
    weight, given = (types * 2)[:2]
    transposed = "transOut" in name
    if not transposed:
        weight, given = given, weight
    rows = grid * int(found[3]) if transposed and grid > 0 else None
    return _Kernel(_BITS[weight], _BITS[given], _BITS.get(found[1]), rows, activated)


def _products(layer: _Layer, up: _Kernel, down: _Kernel, alone: bool) -> _Found | None:
    """The two products of a layer."""
    told = up.rows if down.rows == layer.hidden else None
    known = layer.known
    if known is None:
        if told is None or not alone:
            return None
        wide, inner, hidden, local = told, told // (2 if up.activated else 1), layer.hidden, layer.experts
    else:
        sizes = _sizes(known, told)
        if sizes is None:
            return None
        (wide, inner), local, hidden = sizes, layer.experts, known.config.hidden
        if told is not None and inner > known.config.moe.ffn // known.ranks:  # type: ignore[union-attr]
            local = max(layer.experts // known.ranks, 1)
    stored = told if told is not None else wide
    stored_inner = stored * inner // wide
    routing = Routing(layer.tokens, layer.chosen, local, layer.experts)
    bits = known.expert_bits if known else None
    plain = 8.0 * layer.x.dtype.bytes
    passed = stored_inner if up.activated else stored
    first = _product(
        layer, routing, up, bits, flops=2.0 * hidden * wide, weight=layer.hidden * stored,
        read=layer.tokens * layer.hidden * (up.given or plain),
        written=routing.assignments * passed * (up.result or plain),
    )  # fmt: skip
    second = _product(
        layer, routing, down, bits, flops=2.0 * hidden * inner, weight=layer.hidden * stored_inner,
        read=routing.assignments * stored_inner * (down.given or plain),
        written=routing.assignments * layer.hidden * (down.result or plain),
    )  # fmt: skip
    return _Found(layer, routing.assignments, first, second)


def _sizes(known: KnownModel, told: int | None) -> tuple[int, int] | None:
    """Rows of the product up and the width of an expert on one rank; None where the grid fits neither way to divide."""
    moe, matrices = known.config.moe, 2 if known.config.mlp_gated else 1
    if moe is None:
        return None
    divided = max(moe.ffn // known.ranks, 1)
    for width in dict.fromkeys((divided, moe.ffn)):
        rows = matrices * width
        if told is None or rows <= told < _PADDED * rows + matrices * _TILE:
            return rows, width
    return None


def _product(
    layer: _Layer, routing: Routing, kernel: _Kernel, bits: float | None, *, flops: float, weight: int, read: float,
    written: float,
) -> OpWork:  # fmt: skip
    """One product: FLOPs of an assignment, numbers of an expert's weight, bits of what is read and written beside."""
    size = kernel.weight or bits
    fewest, even, most = routing.active
    each = None if size is None else weight * size / 8
    beside = (read + written) / 8
    return OpWork(
        model="experts",
        category="moe",
        role="expert-gemm",
        flops=flops * routing.assignments,
        bytes=None if each is None else beside + even * each,
        m=routing.tokens,
        weight_bytes=None if each is None else even * each,
        weight_bytes_min=None if each is None else fewest * each,
        weight_bytes_max=None if each is None else most * each,
        bytes_min=None if each is None else beside + fewest * each,
        estimated=True,
    )


def _beside(
    trace: Trace, table: pd.DataFrame, work: pd.DataFrame, calls: pd.DataFrame, found: list[_Found | None], at: Ints
) -> pd.DataFrame:
    """The work table with what such an op does beside its products: quantised input, the sum over a token's experts."""
    op = table["op"].to_numpy(np.int64)
    unknown = (work["flops"].isna() & work["bytes"].isna()).to_numpy() & (table["kernel"].to_numpy() >= 0)
    rows = np.flatnonzero(np.isin(op, calls["op"].to_numpy()) & unknown)
    if not len(rows):
        return work
    place = pd.Series(at, index=calls["op"].to_numpy()).loc[op[rows]].to_numpy(np.int64)
    names = table["name"].to_numpy(np.int64)[rows]
    of, first = distinct([place, names])
    works = [_helper(found[layer], trace.text(name)) for layer, name in zip(place[first], names[first], strict=True)]
    source = "shapes" if (calls["chosen"] >= 0).all() else "model-config"
    return put(work, rows, works, of, source)


def _helper(found: _Found | None, name: str) -> OpWork | None:
    """The work of a kernel beside the products, by its name; None where it has none that is known."""
    if found is None:
        return None
    layer, size = found.layer, found.layer.x.dtype.bytes
    if _SUMS.search(name):
        moved = (found.assignments + layer.tokens) * layer.hidden * size
        return OpWork("finalize", "moe", "routing", 2.0 * found.assignments * layer.hidden, moved)
    kind = _QUANTISES.search(name)
    if kind is None or size != 2:
        return None
    numbers = float(layer.tokens * layer.hidden)
    return OpWork("quantise", "quant", "quantize", 2.0 * numbers, numbers * (size + _QUANTISED_BITS[kind[1]] / 8))
