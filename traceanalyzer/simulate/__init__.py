"""Writes traces whose truth is known exactly, from closed forms of its own.

Nothing here knows how the analysis works: it imports no rule, no work model and no formula from it, so that both can
only agree by being right. The GPU table and the public model configs are shared, being data.
"""
