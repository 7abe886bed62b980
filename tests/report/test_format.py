"""Numbers as people read them, against figures written by hand."""

from __future__ import annotations

import math

import pytest

from traceanalyzer.report import format as fmt
from traceanalyzer.report import text_safety


@pytest.mark.parametrize(
    ("us", "printed"),
    [(0.0, "0 \u00b5s"), (0.5, "0.500 \u00b5s"), (812.0, "812 \u00b5s"), (999.9, "1.00 ms"), (20_360.0, "20.4 ms"),
     (9_996.0, "10.0 ms"), (1_250_000.0, "1.25 s"), (7_200_000_000.0, "7,200 s"), (None, "unknown"),
     (math.nan, "unknown"), (math.inf, "unknown")],
)  # fmt: skip
def test_durations(us: float | None, printed: str) -> None:
    assert fmt.duration(us) == printed


@pytest.mark.parametrize(
    ("share", "printed"),
    [(0.0, "0 %"), (0.0004, "< 0.1 %"), (0.0025, "0.2 %"), (0.081, "8.1 %"), (0.0997, "10 %"), (0.612, "61 %"),
     (0.99, "99 %"), (0.998, "99.8 %"), (0.99999, "99.9 %"), (1.0, "100 %"),
     (0.9999999999, "100 %"), (1.37, "137 %"), (None, "unknown")],
)  # fmt: skip
def test_a_small_share_is_not_none_and_a_nearly_full_one_is_not_all(share: float | None, printed: str) -> None:
    assert fmt.percent(share) == printed


def test_other_units() -> None:
    assert fmt.size(15.01e9) == "15.0 GB"
    assert fmt.size(131_072) == "131 kB"
    assert fmt.size(3) == "3.00 B"
    assert fmt.work(8.22e12) == "8.22 TFLOP"
    assert fmt.work(438_256) == "438 kFLOP"
    assert fmt.flop_rate(0.787) == "787 GFLOP/s"
    assert fmt.flop_rate(1307.0) == "1.31 PFLOP/s"
    assert fmt.byte_rate(2039.0) == "2.04 TB/s"
    assert fmt.count(15_360) == "15,360"
    assert fmt.count(32.5) == "32.5"
    assert fmt.factor(2.752) == "2.8 \u00d7"
    assert fmt.factor(173.4) == "173 \u00d7"
    assert fmt.percent_range(0.117, 0.221) == "12 % \u2013 22 %"
    assert fmt.percent_range(0.117, 0.1171) == "12 %"
    assert fmt.intensity(340.9) == "341 FLOP/B"
    assert fmt.money(0.1852, "CNY") == "0.185 CNY"
    for printer in (fmt.size, fmt.work, fmt.flop_rate, fmt.byte_rate, fmt.count, fmt.factor, fmt.intensity):
        assert printer(None) == "unknown"


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [("plain <name> & \u00e9", "plain <name> & \u00e9"), ("a\0b", "a\u27eaU+0000\u27ebb"),
     ("\x1b[31m", "\u27eaU+001B\u27eb[31m"), ("a\nb\tc", "a\u27eaU+000A\u27ebb\u27eaU+0009\u27ebc"),
     ("x\u202ey", "x\u27eaU+202E\u27eby"), ("x\u2028y", "x\u27eaU+2028\u27eby"), ("\ud800", "\u27eaU+D800\u27eb"),
     ("\u200bz", "\u27eaU+200B\u27ebz"), ("\x9bm", "\u27eaU+009B\u27ebm"), ("\U000e0041", "\u27eaU+E0041\u27eb")],
)  # fmt: skip
def test_what_cannot_be_seen_is_written_out(hostile: str, shown: str) -> None:
    assert text_safety.visible(hostile) == shown


def test_shortened_names_keep_both_ends() -> None:
    assert text_safety.shorten("a" * 5 + "z" * 5, 10) == "a" * 5 + "z" * 5
    short = text_safety.shorten("head" + "x" * 100 + "tail", 16)
    assert len(short) == 16
    assert short.startswith("head")
    assert short.endswith("tail")
