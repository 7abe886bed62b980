"""`traceanalyzer gpus`: the GPUs that the catalogue knows, with the peaks that reports measure against."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from traceanalyzer.commands.output import write_stdout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceanalyzer.catalog.gpus import Gpu

_HEADER = ("id", "architecture", "memory GB", "GB/s", "bf16 TFLOP/s", "fp32 TFLOP/s", "confidence")


def gpus(
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON, with every precision.")] = False,
) -> None:
    """List the known GPUs with their peaks."""
    from traceanalyzer.catalog.gpus import gpus as known

    table = known()
    write_stdout(_json(table) if as_json else _text(table))


def _json(table: Iterable[Gpu]) -> str:
    rows = [
        {
            "id": gpu.id,
            "names": list(gpu.names),
            "vendor": gpu.vendor,
            "arch": gpu.arch,
            "compute_capability": gpu.compute_capability,
            "num_sms": gpu.num_sms,
            "memory_bytes": gpu.memory_bytes,
            "bandwidth_gbs": gpu.bandwidth_gbs,
            "tensor_tflops": dict(gpu.tensor_tflops),
            "vector_tflops": dict(gpu.vector_tflops),
            "achievable_tflops": dict(gpu.achievable_tflops),
            "achievable_gbs": gpu.achievable_gbs,
            "confidence": gpu.confidence,
            "note": gpu.note,
        }
        for gpu in table
    ]
    return json.dumps(rows, indent=2, allow_nan=False) + "\n"


def _text(table: Iterable[Gpu]) -> str:
    rows = [_HEADER, *(_cells(gpu) for gpu in table)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    lines = ("  ".join(_aligned(row, widths)).rstrip() for row in rows)
    return "\n".join(lines) + "\n"


def _cells(gpu: Gpu) -> tuple[str, ...]:
    return (
        gpu.id,
        gpu.arch,
        _number(None if gpu.memory_bytes is None else gpu.memory_bytes / 1e9),
        _number(gpu.bandwidth_gbs),
        # Both as the ordinary GEMM runs them: bf16 on tensor cores where there are any, fp32 outside them.
        _number(gpu.peak_tflops("bf16", gpu.has_tensor_cores)),
        _number(gpu.peak_tflops("fp32", False)),
        gpu.confidence,
    )


def _aligned(row: tuple[str, ...], widths: list[int]) -> list[str]:
    numeric = range(2, 6)
    return [
        cell.rjust(width) if column in numeric else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}" if value < 1000 else f"{value:.0f}"
