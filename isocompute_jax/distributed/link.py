"""A connection between two processes of a run: whole messages, in order, from any thread."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from typing import Any

from isocompute_jax.distributed.codec import Codec

_LENGTH = struct.Struct("!Q")
MOST_BYTES = 1 << 40
PIECE_BYTES = 1 << 20
"""What is sent or read in one call, which may take the whole of a link's patience."""


class ClosedError(ConnectionError):
    """The other side is gone."""


class Link:
    """Sends and receives messages: a topic and a value each. One thread receives; any may send.

    Args:
      connection: to the other process.
      codec: of both.
      name: of the other process.
      patience_s: a call that moves no byte for so long fails.

    Attributes:
      heard: when a byte last came from it (`time.monotonic`).
      place: how many places of the program it has come to, as far as it has said (see `Team.arrive`).
      flag: what it last said of its flag (see `Team.flagged`).
    """

    def __init__(self, connection: socket.socket, codec: Codec, name: str, patience_s: float):
        self.name = name
        self.heard = time.monotonic()
        self.place = 0
        self.flag = False
        self._socket = connection
        self._codec = codec
        self._sending = threading.Lock()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(patience_s)

    def become(self, name: str, codec: Codec, patience_s: float) -> Link:
        """The same connection, now that it is known whose it is."""
        return Link(self._socket, codec, name, patience_s)

    def send(self, topic: str, value: Any = None) -> None:
        """Sends a message.

        Raises:
          ClosedError: the other side is gone, or takes nothing.
        """
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
