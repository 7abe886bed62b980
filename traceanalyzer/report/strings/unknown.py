"""What the page says of kernels whose work is not known."""

from __future__ import annotations

from collections.abc import Mapping

UNKNOWN: Mapping[str, str] = {
    "unknown.title": "Kernels whose work is not known, by time",
    "unknown.lead": "FLOPs or bytes of these kernels follow from nothing that was recorded. They count in every time, "
    "and in no rate.",
    "unknown.by_phase": "{phase}: FLOPs of {flops} and bytes of {bytes} of the time are known.",
    "unknown.no_rule": "no rule knows this name",
    "unknown.op": "Operator",
    "unknown.lacks": "Not known",
    "unknown.share": "Share of the phase",
    "unknown.flops": "FLOPs",
    "unknown.bytes": "bytes",
    "unknown.both": "FLOPs and bytes",
}
