"""Columns that grow block by block.

Thousands of small arrays between the short-lived objects of decoding would leave the heap full of holes, several times
the size of what they hold; one buffer per column, enlarged in place, does not. What could be wrong: a chunk brings a
column of another type, whose values are then cast.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Chunk = dict[str, Array]

_FIRST_ROWS = 1024


class Growing:
    """A table under construction: columns of equal length."""

    def __init__(self) -> None:
        """Start without columns; the first chunk names them and sets their types."""
        self.rows = 0
        self._capacity = 0
        self._columns: Chunk = {}

    def append(self, chunk: Chunk) -> None:
        """Add the rows of `chunk`, arrays of equal length under the names of the first chunk."""
        if not self._columns:
            self._columns = {name: np.empty(0, values.dtype) for name, values in chunk.items()}
        end = self.rows + len(next(iter(chunk.values())))
        if end > self._capacity:
            self._capacity = max(_FIRST_ROWS, self._capacity + self._capacity // 4, end)
            for column in self._columns.values():
                column.resize(self._capacity, refcheck=False)  # no view of a column is ever handed out
        for name, column in self._columns.items():
            column[self.rows : end] = chunk[name]
        self.rows = end

    def take(self) -> Chunk:
        """The finished columns; empty without a chunk. The table is empty afterwards."""
        columns = self._columns
        for column in columns.values():
            column.resize(self.rows, refcheck=False)
        self.rows, self._capacity, self._columns = 0, 0, {}
        return columns
