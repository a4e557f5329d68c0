"""A connection between two processes of a run: whole messages, in order, from any thread, and their values as bytes."""

from __future__ import annotations

import contextlib
import dataclasses
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np

_LENGTH = struct.Struct("!Q")
MOST_BYTES = 1 << 40
PIECE_BYTES = 1 << 20
"""What is sent or read in one call, which may take the whole of a link's patience."""

ARRAY, TUPLE, RECORD = 1, 2, 3
"""MessagePack's extension types."""


class Codec:
    """Values as bytes: what MessagePack knows, tuples, NumPy arrays, and the dataclasses that both sides were told of.

    Nothing that is read runs code, as a pickle would. `records` are dataclasses that may travel, known by their names;
    their fields travel one by one.
    """

    def __init__(self, records: Sequence[type] = ()):
        self._records = {kind.__name__: kind for kind in records}
        self._fields = {kind: [field.name for field in dataclasses.fields(kind)] for kind in records}

    def encode(self, value: Any) -> bytes:
        """The bytes of a value. Raises TypeError: it holds something else."""
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


class ClosedError(ConnectionError):
    """The other side is gone."""


class Link:
    """Sends and receives messages: a topic and a value each. One thread receives; any may send.

    Args:
      connection: to the other process.
      codec: of both.
      name: of the other process.
      patience_s: a call that moves no byte for so long fails.
    """

    def __init__(self, connection: socket.socket, codec: Codec, name: str, patience_s: float):
        self.name = name
        self.heard = time.monotonic()  # when a byte last came from it
        self.place = 0  # places of the program that it has come to, as far as it has said (see `Team.arrive`)
        self.flag = False  # what it last said of its flag (see `Team.flagged`)
        self._socket = connection
        self._codec = codec
        self._sending = threading.Lock()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(patience_s)

    def become(self, name: str, codec: Codec, patience_s: float) -> Link:
        """The same connection, now that it is known whose it is."""
        return Link(self._socket, codec, name, patience_s)

    def send(self, topic: str, value: Any = None) -> None:
        """Sends a message. Raises ClosedError: the other side is gone, or takes nothing."""
        self.send_encoded(self._codec.encode([topic, value]))

    def send_encoded(self, data: bytes) -> None:
        """The same of a message that was encoded already, for several links at once."""
        message = memoryview(data)
        try:
            with self._sending:
                self._socket.sendall(_LENGTH.pack(len(data)))
                for start in range(0, len(data), PIECE_BYTES):
                    self._socket.sendall(message[start : start + PIECE_BYTES])
        except OSError as error:
            raise ClosedError(str(error)) from error

    def readable(self, timeout: float) -> bool:
        """Whether something, or the end, has come within `timeout` seconds."""
        try:
            return bool(select.select([self._socket], [], [], timeout)[0])
        except (OSError, ValueError):  # closed here
            return True

    def receive(self) -> tuple[str, Any]:
        """The next message, topic and value.

        Raises:
          ClosedError: the other side is gone, or says nothing that can be understood.
        """
        try:
            (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
            if length > MOST_BYTES:
                raise ClosedError("it says what is no message")
            topic, value = self._codec.decode(self._read(length))
        except ClosedError:
            raise
        except OSError as error:
            raise ClosedError(str(error)) from error
        except Exception as error:  # whatever msgpack makes of what is none of ours
            raise ClosedError(f"it says what is no message: {error!r}") from error
        return topic, value

    def _read(self, size: int) -> bytearray:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(min(size - len(data), PIECE_BYTES))
            if not piece:
                raise ClosedError("the connection was closed")
            data += piece
            self.heard = time.monotonic()
        return data

    def close(self) -> None:
        """Closes it; whoever receives meets the end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
