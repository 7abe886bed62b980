"""Tests of the trace reader."""
