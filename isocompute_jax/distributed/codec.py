"""Values as bytes: what MessagePack knows, tuples, NumPy arrays, and the dataclasses that both sides were told of.

Nothing that is read runs code, as a pickle would.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np

ARRAY, TUPLE, RECORD = 1, 2, 3
"""Extension types."""


class Codec:
    """Encodes and decodes.

    Args:
      records: dataclasses that may travel, known by their names; their fields travel one by one.
    """

    def __init__(self, records: Sequence[type] = ()):
        self._records = {kind.__name__: kind for kind in records}
        self._fields = {kind: [field.name for field in dataclasses.fields(kind)] for kind in records}

    def encode(self, value: Any) -> bytes:
        """The bytes of a value.

        Raises:
          TypeError: it holds something else.
        """
        return msgpack.Packer(default=self._extension, strict_types=True).pack(value)

    def decode(self, data: bytes | bytearray) -> Any:
        """The value of `encode`'s bytes; its arrays are their own, and may be written to."""
        return msgpack.unpackb(data, ext_hook=self._value, strict_map_key=False)

    def _extension(self, value: Any) -> msgpack.ExtType | Any:
        if isinstance(value, np.ndarray):
            return msgpack.ExtType(ARRAY, msgpack.packb([value.dtype.str, value.shape, value.tobytes()]))
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, tuple):
            return msgpack.ExtType(TUPLE, self.encode(list(value)))
        if type(value) in self._fields:
            content = [getattr(value, name) for name in self._fields[type(value)]]
            return msgpack.ExtType(RECORD, self.encode([type(value).__name__, content]))
        raise TypeError(f"a {type(value).__name__} does not travel between processes")

    def _value(self, code: int, data: bytes) -> Any:
        if code == ARRAY:
            dtype, shape, content = msgpack.unpackb(data)
            return np.frombuffer(bytearray(content), dtype).reshape(shape)
        content = self.decode(data)
        if code == TUPLE:
            return tuple(content)
        name, fields = content
        return self._records[name](*fields)
