"""Redacts traces and sends them: what runs where a sample was taken."""
