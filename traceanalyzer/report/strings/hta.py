"""What the appendix says around the figures of Holistic Trace Analysis."""

from __future__ import annotations

from collections.abc import Mapping

HTA: Mapping[str, str] = {
    "hta.title": "The same trace in Holistic Trace Analysis",
    "hta.lead": "Figures of {source}, a tool many know, made from the events as read here, in whole nanoseconds. "
    "Its own loader rounds to whole microseconds by default, so run by itself it may say otherwise. Nothing else "
    "in this report rests on them.",
    "hta.times": "Temporal breakdown",
    "hta.part": "Part",
    "hta.whole": "Whole device",
    "hta.pieces": "Pieces",
    "hta.kernel": "First to last kernel",
    "hta.idle": "Idle",
    "hta.idle_ours": "Idle, ours",
    "hta.compute": "Compute",
    "hta.compute_ours": "Kernels, ours",
    "hta.non_compute": "Non-compute",
    "hta.overlap": "Communication overlapped",
    "hta.times_note": "The whole device agrees by definition. A phase is cut into contiguous pieces for it: gaps "
    "between pieces are in none of its phases, here they belong to the step that follows, and what was not "
    "recorded is no idle time here. It takes every kernel for computation whose name is not NCCL's or a copy's; "
    "ours are all kernels but communication, each instant once.",
    "hta.pieces_omitted": "The phases alternate too often to be asked about one by one ({count} pieces).",
    "hta.types": "Kernel types",
    "hta.type": "Type",
    "hta.time": "Time",
    "hta.share": "Share",
    "hta.type.COMPUTATION": "computation",
    "hta.type.COMMUNICATION": "communication",
    "hta.type.MEMORY": "memory",
    "hta.type.with": " with ",
    "hta.types_note": "A type follows from a name's beginning alone, and time in which two types run is a row of "
    "its own; the ledger has kernel classes, and every instant once.",
    "hta.streams": "Idle time and queue by stream",
    "hta.device": "Device",
    "hta.stream": "Stream",
    "hta.host_wait": "Host wait",
    "hta.kernel_wait": "Kernel wait",
    "hta.other": "Other",
    "hta.queue_coverage": "Queue: known",
    "hta.queue_mean": "mean",
    "hta.queue_p50": "median",
    "hta.queue_max": "longest",
    "hta.streams_note": "These gaps are a stream's, whatever the others do, and negative where its kernels "
    "overlap; the ledger's are the device's. Host wait: the launch call began after the previous kernel's end. "
    "Kernel wait: any other gap below 30 µs. A kernel launched before the recording, or by a graph whose launch "
    "call still runs, is never host wait. Queue lengths are means over changes, not over time.",
    "hta.launches": "Launches",
    "hta.count": "Launches",
    "hta.coverage": "Of all activity",
    "hta.cpu": "Call, mean",
    "hta.gpu": "Kernel, mean",
    "hta.delay": "Delay, mean",
    "hta.delay_p50": "Delay, median",
    "hta.delay_p99": "Delay, 99th percentile",
    "hta.launches_note": "Of cudaLaunchKernel, cudaLaunchKernelExC and asynchronous copies and fills only. The "
    "delay runs from the call's return to the kernel's start, so in a full queue it is waiting for earlier "
    "kernels.",
}
