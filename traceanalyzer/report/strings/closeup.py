"""What the page says around the picture of one step."""

from __future__ import annotations

from collections.abc import Mapping

CLOSEUP: Mapping[str, str] = {
    "closeup.title": "One step, close up",
    "closeup.lead": "The median complete step of each phase: what the host called, what the device ran, and when it "
    "ran nothing.",
    "closeup.keys": "Point at a piece to see what it is; with the picture focused, the arrow keys walk through it, "
    "+ and - zoom, 0 shows the whole step.",
    "closeup.step": "{phase}: step {index}, {duration} on the device",
    "closeup.description": "One {phase} step in time: {lanes} rows of host calls, device streams and gaps",
    "closeup.row.op": "Host thread {number}: ops",
    "closeup.row.call": "Host thread {number}: calls",
    "closeup.row.cpu": "CPU",
    "closeup.row.stream": "Stream {number}",
    "closeup.gaps": "Device idle",
    "closeup.joined": "{count} short ones",
    "closeup.group.p": "Matrix products and experts",
    "closeup.group.a": "Attention",
    "closeup.group.o": "Other kernels",
    "closeup.group.m": "Copies, cache writes, communication",
    "closeup.group.h": "Host",
    "closeup.group.l": "Idle: launching",
    "closeup.group.s": "Idle: the host waited for the device",
    "closeup.group.w": "Idle: host work",
    "closeup.group.k": "Idle: from kernel to kernel",
    "closeup.group.r": "Idle: waiting for others",
    "closeup.group.u": "Idle: cause not known",
    "closeup.zoom_in": "Zoom in",
    "closeup.zoom_out": "Zoom out",
    "closeup.whole": "Whole step",
    "closeup.left_out": "{count} less busy streams and threads are not drawn.",
    "closeup.longest": "The longest of them",
    "closeup.where": "Row",
    "closeup.what": "What",
    "closeup.start": "Start",
    "closeup.duration": "Duration",
    "closeup.trace": "To see the whole trace, open ui.perfetto.dev, choose {open} and pick {name}: it is read by the "
    "browser and not sent anywhere.",
    "closeup.begins": "The {phase} step begins {start} after the first activity.",
    "closeup.trace_open": "Open trace file",
    "closeup.trace_window": "the file of the step's window",
}
