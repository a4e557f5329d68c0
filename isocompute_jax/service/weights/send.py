"""Weights on their way out: laid down in a file once, sent from there as often as needed.

The learner may overwrite its parameters as soon as they are laid down. An endpoint that comes back late is served from
the file. Two files are used in turn, because fresh pages cost more than what they hold, and because the older one may
still be on its way.

`UpdateWeights` is sent a manifest of the file, or the file in chunks over several streams. Senders are numbered over
all learner hosts: host h of H with s calls each has the numbers h * s .. h * s + s - 1 of H * s. A host that sends a
manifest while others stream fills its other calls with nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import xxhash

from isocompute_jax.records.errors import CONFIG, InputError, RunError
from isocompute_jax.records.tensors import Box, TensorSpec
from isocompute_jax.service.proto import convert
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.convert import write_chunk
from isocompute_jax.service.weights.files import SharedFile, SharedFolder, WeightWriter, aligned, sweep

PREFIX = "isocompute-outbox-"
LOCAL = "/dev/shm"
"""Only this host's processes use it, so that what no process of it has locked is nobody's."""

CHUNK_BYTES = 1 << 20
"""Of a streamed push: smaller ones cost more calls, larger ones no longer fit the processor's cache."""


@dataclasses.dataclass(frozen=True, eq=False)
class Parcel:
    """One version of the weights, or this host's share of it, in a finished file.

    Attributes:
      version: policy version.
      tensors: every tensor of the model.
      path: the file.
      checksum: xxh3_64 of all of it.
      boxes: what it holds.
      starts: the byte at which each box begins.
      data: the file, mapped.
    """

    version: int
    tensors: tuple[TensorSpec, ...]
    path: str
    checksum: int
    boxes: tuple[Box, ...]
    starts: tuple[int, ...]
    data: memoryview


class Outbox:
    """The two files, in a folder that a restart of the same run finds again, empties and uses on.

    Args:
      directory: where the folder is made.
      run: names the run (with the process, where several share the directory).
      tensors: every tensor of the model, all that a server expects.
      whole: all of the model comes from this process: the file holds every tensor whole, and a server can use it as
        it is. Else boxes stand one behind the other.

    Raises:
      InputError: the folder cannot be made.
      RunError: another live process uses it.
    """

    def __init__(self, directory: str, *, run: str, tensors: Sequence[TensorSpec], whole: bool):
        self.tensors = tuple(tensors)
        self._whole = whole
        own = f"{PREFIX}{os.getuid()}-"
        if os.path.realpath(directory) == LOCAL:
            sweep(directory, own)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", run)[-40:]
        digest = hashlib.blake2b(run.encode(), digest_size=6).hexdigest()
        path = pathlib.Path(directory) / f"{own}{name}-{digest}"
        try:
            self._folder = SharedFolder(path)
        except BlockingIOError:
            raise RunError(f"{path} is in use: another learner of the run {run!r} is alive") from None
        except OSError as error:
            raise InputError(f"{CONFIG.service.shared_dir} = {directory!r}: {error}") from error
        self._files = [self._folder.new_file() for _ in range(2)]

    def write(self, boxes: Iterable[tuple[Box, np.ndarray]], *, version: int) -> Parcel:
        """Lays weights down. The parcel before this one stays whole; the one before that is gone.

        Args:
          boxes: each with its numbers, C-contiguous; all that this process has.
          version: theirs.

        Raises:
          RunError: there is no room.
        """
        self._files.reverse()
        file = self._files[0]
        try:
            written, starts = (self._write_whole if self._whole else self._write_packed)(file, boxes)
        except OSError as error:
            raise RunError(f"weights of version {version} cannot be written to {file.path}: {error}") from error
        data = file.map()
        return Parcel(version, self.tensors, file.path, xxhash.xxh3_64_intdigest(data), written, starts, data)

    def close(self) -> None:
        """Removes the folder; parcels keep what they have mapped."""
        self._folder.remove()

    def _write_whole(
        self, file: SharedFile, boxes: Iterable[tuple[Box, np.ndarray]]
    ) -> tuple[tuple[Box, ...], tuple[int, ...]]:
        """Every box at its place in its tensor; what the file then holds, and where."""
        writer = WeightWriter(file, self.tensors)
        for box, numbers in boxes:
            writer.write(box, numbers)
        return tuple(tensor.box for tensor in self.tensors), writer.weights.starts

    def _write_packed(
        self, file: SharedFile, boxes: Iterable[tuple[Box, np.ndarray]]
    ) -> tuple[tuple[Box, ...], tuple[int, ...]]:
        """One box behind the other; which, and where."""
        written, starts, end = [], [], 0
        for box, numbers in boxes:
            written.append(box)
            starts.append(aligned(end))
            file.write(numbers, starts[-1])
            end = starts[-1] + box.nbytes
        file.truncate(end)
        return tuple(written), tuple(starts)


@dataclasses.dataclass(frozen=True)
class Push:
    """One version of the weights for one endpoint.

    Attributes:
      parcel: this host's share.
      session: names the learner.
      in_flight: what becomes of groups that are being sampled.
      shared: by manifest; else streamed.
      streams: parallel calls of a streamed push.
      process_index: this learner host.
      process_count: learner hosts.
    """

    parcel: Parcel
    session: str
    in_flight: pb.InFlight
    shared: bool
    streams: int
    process_index: int = 0
    process_count: int = 1

    @property
    def calls(self) -> int:
        """Calls of this host. All hosts make the same number, whichever way each of them sends."""
        return 1 if self.shared and self.process_count == 1 else self.streams

    def messages(self, call: int) -> Iterator[bytes]:
        """The serialised messages of one call, from its header to its end."""
        parcel = self.parcel
        index = {tensor.name: i for i, tensor in enumerate(parcel.tensors)}
        header = pb.WeightsHeader(
            session=self.session,
            version=parcel.version,
            tensors=convert.tensors_to_messages(parcel.tensors),
            in_flight=self.in_flight,
            sender=self.process_index * self.calls + call,
            senders=self.process_count * self.calls,
        )
        yield pb.UpdateWeightsRequest(header=header).SerializeToString()
        sent = 0
        if self.shared and call == 0:
            sent = sum(box.nbytes for box in parcel.boxes)
            yield pb.UpdateWeightsRequest(manifest=manifest(parcel, index)).SerializeToString()
        elif not self.shared:
            for box, start in share(chunks(parcel), call, self.calls):
                data = parcel.data[start : start + box.nbytes]
                sent += len(data)
                yield write_chunk(convert.box_to_message(box, index), data, xxhash.xxh3_64_intdigest(data))
        yield pb.UpdateWeightsRequest(end=pb.WeightsEnd(bytes=sent)).SerializeToString()


def manifest(parcel: Parcel, index: Mapping[str, int]) -> pb.Manifest:
    """Names a parcel's file; `index` is that of each tensor in the header."""
    return pb.Manifest(
        path=parcel.path,
        size=len(parcel.data),
        checksum=parcel.checksum,
        boxes=[convert.box_to_message(box, index) for box in parcel.boxes],
        starts=parcel.starts,
    )


def chunks(parcel: Parcel) -> list[tuple[Box, int]]:
    """The boxes of a parcel, cut to at most `CHUNK_BYTES` each, and the byte of its file at which each begins."""
    return [
        (chunk, start + inside)
        for box, start in zip(parcel.boxes, parcel.starts, strict=True)
        for chunk, inside in box.cut(CHUNK_BYTES)
    ]


def share(chunks: list[tuple[Box, int]], call: int, calls: int) -> list[tuple[Box, int]]:
    """The chunks that one of several calls sends: a run of consecutive ones, so that it reads the file in order."""
    return chunks[len(chunks) * call // calls : len(chunks) * (call + 1) // calls]
