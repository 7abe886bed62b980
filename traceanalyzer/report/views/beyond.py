"""What a decode step spends beyond its floor: which kernels, and waiting.

The floor is what the bytes of weights and KV cache take. Matrix products take longer than the weights' bytes, attention
longer than the cache's; everything else is beyond the floor altogether.

What could be wrong: the parts are means over the steps and kernels that overlap count in full, while the step is set
against its median; so they are listed, and not drawn as parts that add up.
"""

from __future__ import annotations

from traceanalyzer.report import format as fmt
from traceanalyzer.report import rows
from traceanalyzer.report.document import Report
from traceanalyzer.report.strings.page import text

_MATRIX = ("gemm", "gemv", "moe", "conv")
_WORTH_SAYING = 0.02
"""Parts below this share of the step are left out."""


def beyond_floor(report: Report) -> str:
    """A sentence that lists the parts, longest first; empty where the floor or the steps are not known."""
    floor, device = report.decode_floor, rows.slowest_device(report)
    steps = rows.step_count(report, "decode")
    if floor is None or floor.floor_us is None or not steps or device is None or not device.bandwidth_gbs:
        return ""
    kernels = [row for row in rows.kernels_of(report, device) if row.phase == "decode" and row.category != "comm"]
    ledger = [row for row in rows.ledger_of(report, device) if row.phase == "decode"]
    by_role = {"matrix": 0.0, "attention": 0.0, "other": 0.0}
    for row in kernels:
        role = "matrix" if row.category in _MATRIX else "attention" if row.category == "attention" else "other"
        by_role[role] += row.total_us / steps
    parts = {
        "matrix": by_role["matrix"] - (floor.weight_bytes_read or 0.0) / device.bandwidth_gbs / 1e3,
        "attention": by_role["attention"] - (floor.kv_bytes or 0.0) / device.bandwidth_gbs / 1e3,
        "other": by_role["other"],
        "communication": sum(row.us for row in ledger if row.bucket == "communication") / steps,
        "idle": sum(row.us for row in ledger if row.group == "idle" and row.bucket != rows.NOT_RECORDED) / steps,
    }
    listed = sorted((-us, name) for name, us in parts.items() if us >= _WORTH_SAYING * floor.measured_us)
    if not listed or floor.measured_us <= floor.floor_us:
        return ""
    said = ", ".join(text(f"floor.beyond_{name}", time=fmt.duration(-us)) for us, name in listed)
    return text("floor.beyond", parts=said)
