"""Merges what the recorder said beside each window of a process to one block of the same form.

    model, sampling, steplog    the last window's: they are totals, or known better the later they are asked
    gpu                         means weighted by the seconds they were taken over; the most of what should be none
    overhead                    the step under the profiler weighted by steps; the step without it from the last window
    service                     means of what was read at opening; what was read at closing from the last window
    window                      the last window's, with sums of steps and the worse answer to each question

What could be wrong: windows that say nothing of a fact do not weigh in its mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traceanalyzer.trace.collector import Section, number

_WHOLE = ("sm_mhz_max", "power_limit_w", "memory_bytes", "other_processes", "count")
_SUMS = ("samples", "seconds")
_CLOSE = "_close"


def merged_blocks(blocks: Sequence[Mapping[str, object]]) -> Mapping[str, object] | None:
    """One block for several, given in order of time; None for none."""
    if not blocks:
        return None
    merged: dict[str, object] = dict(blocks[-1])
    for name, merge in (("gpu", _gpu), ("overhead", _overhead), ("service", _service), ("window", _window)):
        sections = [section for block in blocks if isinstance(section := block.get(name), dict)]
        if sections:
            merged[name] = merge(sections)
    for name in ("model", "sampling", "steplog"):
        found = next((block[name] for block in reversed(blocks) if block.get(name)), None)
        if found is not None:
            merged[name] = found
    sampling = [section for block in blocks if isinstance(section := block.get("sampling"), dict)]
    if sampling:
        merged["sampling"] = {**sampling[-1], **_summed(sampling, ("weight_s",))}
    return merged


def _gpu(sections: Sequence[Section]) -> Section:
    merged: dict[str, object] = {}
    weights = [number(section, "seconds") or 1.0 for section in sections]
    for key in dict.fromkeys(key for section in sections for key in section):
        values = [section.get(key) for section in sections]
        lists = [value for value in values if isinstance(value, list)]
        read = [(number(section, key), weight) for section, weight in zip(sections, weights, strict=True)]
        known = [(value, weight) for value, weight in read if value is not None]
        if key in ("throttle_reasons", "throttle_shares"):
            continue
        if lists:
            merged[key] = list(dict.fromkeys(item for value in lists for item in value))
        elif not known:
            merged[key] = next((value for value in reversed(values) if value is not None), None)
        elif key in _WHOLE:
            merged[key] = max(value for value in values if isinstance(value, int | float))
        elif key in _SUMS:
            merged[key] = sum(value for value, _ in known)
        else:
            merged[key] = sum(value * weight for value, weight in known) / sum(weight for _, weight in known)
    return merged | _throttling(sections, weights)


def _throttling(sections: Sequence[Section], weights: Sequence[float]) -> dict[str, object]:
    """Each reason with its share of all windows' time, most frequent first; nothing where no window knows of any."""
    shares: dict[str, float] = {}
    known = 0.0
    for gpu, weight in zip(sections, weights, strict=True):
        reasons, parts = gpu.get("throttle_reasons"), gpu.get("throttle_shares")
        if number(gpu, "throttle_share") is None and not isinstance(reasons, list):
            continue
        known += weight
        listed = [str(reason) for reason in reasons] if isinstance(reasons, list) else []
        for place, reason in enumerate(listed):
            part = parts[place] if isinstance(parts, list) and place < len(parts) else None
            shares[reason] = shares.get(reason, 0.0) + (part if isinstance(part, int | float) else 0.0) * weight
    if not known:
        return {}
    ranked = sorted(shares, key=lambda reason: (-shares[reason], reason))
    return {"throttle_reasons": ranked, "throttle_shares": [shares[reason] / known for reason in ranked]}


def _overhead(sections: Sequence[Section]) -> Section:
    """Of the phase that most windows measured: a decode step and a prefill have no common mean."""
    phases = [section.get("phase") for section in sections]
    phase = max(phases, key=lambda name: (phases.count(name), name == "decode"))
    own = [section for section in sections if section.get("phase") == phase]
    merged = dict(own[-1])
    steps = [number(section, "profiled_steps") or 0.0 for section in own]
    known = [(us, n) for section, n in zip(own, steps, strict=True) if (us := number(section, "step_us")) and n > 0]
    if known:
        merged["step_us"] = sum(us * n for us, n in known) / sum(n for _, n in known)
        merged["profiled_steps"] = sum(n for _, n in known)
    unprofiled = [section for section in own if number(section, "unprofiled_step_us") is not None]
    if unprofiled:
        merged |= {key: unprofiled[-1].get(key) for key in ("unprofiled_step_us", "unprofiled_steps")}
    return merged


def _service(sections: Sequence[Section]) -> Section:
    merged = dict(sections[-1])
    for key in dict.fromkeys(key for section in sections for key in section):
        values = [n for section in sections if (n := number(section, key)) is not None]
        if values and not key.endswith(_CLOSE):
            merged[key] = sum(values) / len(values)
    return merged


def _window(sections: Sequence[Section]) -> Section:
    merged = {**sections[-1], **_summed(sections, ("steps",))}
    reasons = dict.fromkeys(str(section["reason"]) for section in sections if section.get("reason"))
    if reasons:
        merged["reason"] = ", ".join(reasons)
    stable = [section.get("stable_batch") for section in sections]
    merged["stable_batch"] = False if False in stable else True if True in stable else None
    merged["cold_start"] = any(section.get("cold_start") is True for section in sections)
    merged |= {key: sections[0].get(key) for key in ("opened_ns", "requested_ns", "number") if key in sections[0]}
    return merged


def _summed(sections: Sequence[Section], keys: Sequence[str]) -> dict[str, object]:
    sums: dict[str, object] = {}
    for key in keys:
        known = [n for section in sections if (n := number(section, key)) is not None]
        if known:
            sums[key] = sum(known)
    return sums
