"""Reads recordings into columnar traces."""
