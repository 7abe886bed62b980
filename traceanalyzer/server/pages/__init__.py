"""The pages that people read."""
