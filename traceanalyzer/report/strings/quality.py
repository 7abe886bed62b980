"""What a reader must know about the data: one sentence per code of a `Note`.

A sentence may use {count} and {detail}; {s}, {es}, {v}, {are}, {were}, {have} and {them} agree with the count. It says
what the loss means for the figures, not only what happened.
"""

from __future__ import annotations

from collections.abc import Mapping

from traceanalyzer.report import format as fmt

QUALITY: Mapping[str, str] = {
    # what reading the file met
    "truncated_compression": "The compressed file ends too early; what could be unpacked was analysed, the end is "
    "missing.",
    "damaged_compression": "The compressed data is damaged; what came before the damage was analysed.",
    "truncated_json": "The file ends in the middle of the data; what came before the cut was analysed, the end is "
    "missing.",
    "damaged_events": "{count} event{s} could not be read and {were} left out.",
    "control_characters": "{count} control character{s} inside text {were} replaced.",
    "invalid_utf8": "{count} piece{s} of text that {are} no valid UTF-8 {were} replaced.",
    "non_finite_numbers": "{count} value{s} that {are} no finite number {were} read as not known.",
    "invalid_escapes": "{count} invalid escape{s} in text {were} replaced.",
    "odd_fields": "{count} field{s} of an unexpected kind {were} read as not known.",
    "damaged_metadata": "Part of the metadata could not be read and is not known.",
    "events_without_time": "{count} event{s} without a usable time {were} left out: {detail}.",
    "negative_duration": "{count} event{s} with a negative duration {were} left out: {detail}.",
    "absurd_duration": "{count} event{s} of more than 24 hours {were} left out: {detail}.",
    "out_of_range": "{count} event{s} more than 24 hours away from the rest {were} left out: {detail}.",
    "duplicate_kernels": "{count} kernel{s} {were} recorded twice and counted once.",
    "overlapping_kernels": "{count} kernel{s} overlap{v} another one on the same stream; overlapping time is counted "
    "once.",
    "kernels_without_launch": "{count} kernel{s} {have} no launch in the recording, so what they belong to is less "
    "certain.",
    "kernels_without_correlation": "{count} kernel{s} cannot be tied to a launch, so steps and shapes are less "
    "certain.",
    "begin_end_events": "{count} event{s} recorded as begin or end {were} left out; PyTorch writes none.",
    "whole_microseconds": "Times are recorded in whole microseconds: figures on short kernels are coarse.",
    # what Holistic Trace Analysis made of it
    "hta_failed": "Holistic Trace Analysis failed on this trace ({detail}), so the appendix has no figures of it.",
    "hta_left_out": "The appendix has no figures of Holistic Trace Analysis: {detail} would take it too long.",
    # what a recording holds
    "windows_joined": "{count} windows of the run were joined; the {detail} s between them were not recorded, and "
    "count neither as idle nor as busy.",
    "windows_left_out": "{detail} windows were read; the other {count} would take more memory than one large trace. "
    "Give their files to read them.",
    "after_window": "{count} kernel{s} launched after the recorder had closed its window {were} left out.",
    "windows_overlap": "{count} window{s} overlap{v} another one in time and {were} left out.",
    "windows_without_ranks": "{count} window{s} {have} no file of some ranks ({detail}): a slower one may be missing "
    "there.",
    "recording_unreadable": "The recording's manifest could not be read; the traces beside it were read one by one.",
    "recording_files_missing": "{count} file{s} that the recording names {are} not there: deleted for room, or not "
    "copied along.",
    "empty_files_left_out": "{count} file{s} {are} empty and {were} left out ({detail}): a slower rank may be missing.",
    "recording_files_unreadable": "{count} file{s} of the recording could not be read and {were} left out.",
    "recording_files_changed": "{count} file{s} {are} not what was recorded: changed since.",
    "recording_unfinished": "The recording was not closed: it is still running, or its supervisor was killed. Windows "
    "that were open then are not in it.",
    "recording_dropped": "The recorder dropped {count} of what it was asked for ({detail}).",
    "recording_failures": "{count} part{s} of the recorder failed and {were} left out; the steps may be described less "
    "fully.",
    "recording_steps_lost": "{count} step{s} of the run {are} not in the step log, as the recorder came too late to "
    "read them: totals of steps and tokens are too low.",
    "recording_steplog_short": "The step log holds less than the last ten minutes: {count} step{s} had no room in it.",
    "other_processes_left_out": "{count} window{s} of other processes {were} left out: they are no ranks of this run.",
    "cold_start": "The process' first steps are in the recording: they include warming up, so the prefill takes longer "
    "than later ones do.",
    # what was recorded beside the trace
    "gpu_throttled": "The GPU's clock was held down ({detail}): kernels take longer than the sheet allows for.",
    "gpu_shared": "{count} other process{es} used the GPU during the recording: it took time that no trace shows.",
    "window_not_typical": "A decode step in the recorded windows differs by {detail} from those without the profiler: "
    "take the kernels' times from here, and rates from the step log.",
    "replay_refused": "The kernels of {count} step{s} do not fit the known model (most often: {detail}): their work is "
    "not taken from it.",
    "capture_used": "The work of replayed kernels in {count} step{s} is taken from {detail}, whose kernels run in the "
    "same order.",
    "capture_not_aligned": "A capture does not fit the replayed steps, so nothing is taken from it: {detail}.",
    # what contradicts the description of the model
    "given_model_contradicted": "The model that was given does not fit ({detail}): figures that depend on this are "
    "not taken from it.",
    "known_model_stored_otherwise": "The shape is that of {detail}, but its kernels multiply weights that are stored "
    "otherwise than published; what its public config says of that is not used. Give the config of what ran with "
    "--model.",
    "model_ranks_unknown": "How the ranks divide the model that was given is not seen: figures of one rank are not "
    "taken from it.",
    # what the steps do
    "no_kv_cache": "{count} forward pass{es} computed the whole sequence again: generation ran without a KV cache.",
    # what cannot be all that ran
    "launches_without_kernels": "{count} launch call{s} ({detail} of the recorded ones) {have} no kernel although "
    "later ones have: the profiler lost records. Steps that lost many of theirs are left out of averages.",
    "steps_without_kernels": "{count} step{s} launched work of which nothing was recorded, and {are} not counted: "
    "totals of steps and tokens are too low.",
    "replays_with_holes": "{count} graph replay{s} lack{v} kernels that the others of the graph ran: the profiler lost "
    "records. Their steps are left out of averages.",
    "steps_cut": "{count} step{s} {were} recorded in part and {are} left out of averages: the window's edges cut "
    "{them}, or records were lost.",
    # what is counted less exactly than the rest
    "estimated_work": "{count} kernel{s} {have} estimated work: sequence lengths of a packed batch are taken as equal, "
    "compiled kernels to move each of their tensors once, partial sums to be in fp32.",
    # why the device was idle
    "gaps_without_launch": "{count} gap{s} ({detail} of the time) end{v} with work whose launch call was not recorded: "
    "why the device was idle in {them} is not known. The launches lie before the window, or were not recorded at all.",
    "kernels_before_launch": "{count} kernel{s} began before the launch call, by up to {detail} us: the clocks "
    "of host and device differ, and causes of idle time are off by as much.",
    "frames_left_out": "{count} Python frames beyond the first 500,000 were not kept: later idle time is named by its "
    "operators only.",
    # what contradicts the limits
    "kernel_beats_compute_peak": "{count} kernel{s} ran faster than the peak of the sheet: the GPU, its clocks or the "
    "counted work must be wrong.",
    "unknown_work_in_graphs": "The work of {count} kernel{s} is not known: replayed from a graph, they carry no "
    "shapes. Shares of the kernel time: in all {detail}. Record a few steps without graphs, with record_shapes=True, "
    "to see it.",
    "unknown_work_without_shapes": "The work of {count} kernel{s} is not known: shapes were not recorded. Shares of "
    "the kernel time: in all {detail}. Record with record_shapes=True.",
    "unknown_work_of_ops": "The work of {count} kernel{s} is not known: their operators were called outside the "
    "recording, or have no work model here. Shares of the kernel time: in all {detail}.",
    "kernel_beats_bandwidth": "{count} kernel{s} moved bytes faster than the memory can: caches served them, or the "
    "bytes are counted too high.",
    # which ranks there are
    "ranks_not_given": "{count} other rank{s} of this run {were} not given ({detail}): a slower one may be among them.",
    "rank_given_twice": "{count} file{s} {are} a copy of another one and {were} left out: {detail}.",
    "front_end_left_out": "{count} trace{s} without a rank and without any work of a GPU {were} left out: {detail}. "
    "Servers write one of their front end.",
    "empty_rank_left_out": "{count} rank{s} ({detail}) {were} left out, as nothing was recorded of what ran on the "
    "device: a slower one may be missing.",
    "ranks_from_names": "No trace says which rank it is, so their names do.",
    "ranks_not_aligned": "The clock{s} of {count} rank{s} ({detail}) cannot be aligned with the first one's: too few "
    "collectives match, or they end too far apart. Who waits for whom is not known there.",
    "no_device_activity": "Nothing that ran on the GPU survived in this file: there are no times to analyse.",
    "stacks_slow_the_host": "Python stacks were recorded, which slows the host: idle time and step times are longer "
    "than without the profiler.",
    "gpu_unknown": "The GPU is not in the catalogue: times and FLOPs hold, shares of a peak are not known. Supply "
    "--peak-tflops and --bandwidth-gbs, or --gpu.",
    "unrecorded_device_time": "{detail} ms of the span were not recorded; they count neither as idle nor as busy.",
}
"""Code of a note -> sentence."""


_AGREEMENT: Mapping[bool, Mapping[str, str]] = {
    True: {"s": "", "es": "", "v": "s", "are": "is", "were": "was", "have": "has", "them": "it"},
    False: {"s": "s", "es": "es", "v": "", "are": "are", "were": "were", "have": "have", "them": "them"},
}


def quality_message(code: str, count: int = 1, detail: str = "") -> str:
    """The sentence of a quality note.

    Args:
        code: the note's code, as `Note.code`.
        count: how many events (or whatever the sentence counts) it concerns.
        detail: the specific the sentence quotes, shown as it is.

    Returns:
        The sentence; for a code that is not in the catalogue the code itself with its detail and count.
    """
    template = QUALITY.get(code)
    if template is None:
        suffix = f": {detail}" if detail else ""
        return f"{code.replace('_', ' ')}{suffix} ({fmt.count(count)})"
    return template.format(count=fmt.count(count), detail=detail, **_AGREEMENT[count == 1])
