"""Convolutions as PyTorch records them, against PyTorch's own counter and the tensors it made."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.work.calls import FP32, call, freeze, known
from traceanalyzer.analysis.shapes import Signature
from traceanalyzer.analysis.work import OpWork, op_work

torch = pytest.importorskip("torch", reason="torch records the calls")

OUTER = ("aten::convolution", "aten::_convolution")
INNER = ("aten::mkldnn_convolution", "aten::_slow_conv2d_forward", "aten::slow_conv3d_forward", "aten::thnn_conv2d")


def recorded(function: Callable[[], Any], path: Path) -> tuple[Any, float, list[tuple[str, OpWork]]]:
    """Run a function: its result, the FLOPs that PyTorch counts, and the work of every convolution recorded."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        result = function()
    with torch.no_grad(), torch.profiler.profile(record_shapes=True) as profiler:
        function()
    profiler.export_chrome_trace(str(path))
    found = []
    for event in json.loads(path.read_text())["traceEvents"]:
        if event.get("name") in (*OUTER, *INNER):
            args = event["args"]
            shapes = (freeze(args["Input Dims"]), tuple(args["Input type"]), tuple(args["Concrete Inputs"]))
            work = op_work(event["name"], Signature(*shapes, ()))
            assert work is not None, event
            found.append((event["name"], work))
    return result, float(counter.get_total_flops()), found


CASES: list[tuple[Any, ...]] = [
    # name, input, filters, bias, arguments
    ("conv1d", (2, 6, 31), (4, 3, 5), True, {"stride": 3, "padding": 2, "dilation": 2, "groups": 2}),
    ("conv1d", (3, 20), (4, 3, 3), False, {"padding": "same"}),
    ("conv2d", (2, 6, 17, 11), (4, 3, 3, 2), True, {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2),
                                                    "groups": 2}),
    ("conv2d", (1, 8, 9, 7), (8, 1, 3, 3), True, {"padding": 1, "groups": 8}),
    ("conv2d", (1, 3, 32, 32), (16, 3, 8, 8), False, {"stride": 8}),
    ("conv3d", (1, 2, 5, 6, 7), (3, 2, 2, 2, 2), True, {"padding": (0, 1, 1)}),
    ("conv_transpose1d", (2, 4, 9), (4, 3, 4), True, {"stride": 2, "padding": 1}),
    ("conv_transpose2d", (2, 6, 17, 11), (6, 5, 3, 2), False, {"stride": (2, 3), "padding": (1, 0),
                                                               "output_padding": (1, 1), "groups": 2}),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_convolution_counts_what_pytorch_counts_and_moves_what_it_made(case: tuple[Any, ...], tmp_path: Path) -> None:
    name, size, kernel, has_bias, arguments = case
    x, filters = torch.randn(size), torch.randn(kernel)
    channels = kernel[1] * arguments.get("groups", 1) if "transpose" in name else kernel[0]
    bias = torch.randn(channels) if has_bias else None
    function = getattr(torch.nn.functional, name)
    result, counted, works = recorded(lambda: function(x, filters, bias, **arguments), tmp_path / "conv.json")
    outputs = result.numel()
    assert {op for op, _ in works} & set(OUTER)
    for _, work in works:
        assert work.flops == counted + (outputs if has_bias else 0)
        assert work.bytes == 4 * (prod(size) + prod(kernel) + outputs + (channels if has_bias else 0))
        assert (work.weight_bytes, work.m) == (4 * prod(kernel), outputs // channels)


def test_every_library_has_its_own_order_of_arguments() -> None:
    """The patch embedding of a vision tower: 14 x 14 patches of 16 x 16 pixels."""
    dims = [[1, 3, 224, 224], [768, 3, 16, 16], *[[]] * 7]
    types = ["c10::Half", "c10::Half", *["ScalarList"] * 3, *["Scalar"] * 4]
    cudnn = known("aten::cudnn_convolution", dims, types, ["", "", "[0, 0]", "[16, 16]", "[1, 1]", "1", *["False"] * 3])
    miopen = known("aten::miopen_convolution", [*dims[:2], [], *dims[2:]], [*types[:2], "", *types[2:]],
                   ["", "", "", "[0, 0]", "[16, 16]", "[1, 1]", "1", "False", "False"])  # fmt: skip
    assert cudnn.flops == miopen.flops == 2 * 14 * 14 * 768 * 3 * 256
    assert cudnn.bytes == miopen.bytes == 2 * (3 * 224 * 224 + 768 * 3 * 256 + 768 * 14 * 14)


@pytest.mark.parametrize(
    "concrete",
    [
        (),
        ("", "", "", "[1, 1]", "", "[1, 1]", "False", "[0, 0]", "1"),
        ("", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "3"),
        ("", "", "", "[0, 0]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"),
        ("", "", "", "[1, 1]", "[0, 0]", "[9, 9]", "False", "[0, 0]", "1"),
    ],
)
def test_without_arguments_that_fit_nothing_is_known(concrete: tuple[str, ...]) -> None:
    dims = [[1, 4, 8, 8], [6, 4, 3, 3], [], [], [], [], [], [], []]
    types = [FP32, FP32, "", *["ScalarList"] * 3, "Scalar", "ScalarList", "Scalar"]
    assert call("aten::convolution", dims, types, concrete) is None
