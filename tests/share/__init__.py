"""Tests of redaction and the upload client."""
