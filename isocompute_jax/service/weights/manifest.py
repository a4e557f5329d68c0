"""Weights in files that the server reads itself."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

import numpy as np
import xxhash

from isocompute_jax.records.tensors import DTYPE_BYTES, Box, TensorSpec
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.refusal import Refusal, invalid, lost
from isocompute_jax.service.weights.coverage import checked_box, most_boxes
from isocompute_jax.service.weights.finite import FiniteSpans
from isocompute_jax.service.weights.weight_file import WeightWriter

LARGEST_PADDING = 64 << 20
READ_BYTES = 4 << 20
"""How much of a manifest's file is read at a time: it stays in the processor's cache between reading and hashing."""


def manifest_boxes(manifest: pb.Manifest, listed: Sequence[TensorSpec]) -> list[Box]:
    """The boxes of a manifest, checked to lie in their tensors and in the file.

    Args:
      manifest: as it was sent.
      listed: the tensors of the header, in its order.

    Raises:
      Refusal: they do not.
    """
    most = sum(map(most_boxes, listed))
    if len(manifest.boxes) > most:
        raise invalid(f"{manifest.path!r}: it has {len(manifest.boxes)} boxes; {most} are the most for this model")
    largest = 2 * sum(tensor.nbytes for tensor in listed) + LARGEST_PADDING
    if manifest.size > largest:
        raise invalid(f"{manifest.path!r}: a file of {manifest.size} bytes; {largest} are the most for this model")
    if len(manifest.starts) != len(manifest.boxes):
        raise invalid(f"{manifest.path!r}: {len(manifest.boxes)} boxes have {len(manifest.starts)} starts")
    boxes = [checked_box(box, listed) for box in manifest.boxes]
    for box, start in zip(boxes, manifest.starts, strict=True):
        if start < 0 or start % DTYPE_BYTES[box.dtype] or start + box.nbytes > manifest.size:
            raise invalid(
                f"{manifest.path!r}: a part of tensor {box.name!r} starts at byte {start}, which is not a multiple of "
                f"its dtype's size, or leaves the file of {manifest.size} bytes"
            )
    return boxes


def whole_starts(manifest: pb.Manifest, boxes: Sequence[Box], tensors: Sequence[TensorSpec]) -> tuple[int, ...] | None:
    """Where each tensor begins, if the manifest's file holds every one whole and can be used as it is; else None."""
    starts = dict(zip(boxes, manifest.starts, strict=True))
    if len(boxes) != len(starts) or starts.keys() != {tensor.box for tensor in tensors if tensor.nbytes}:
        return None
    return tuple(starts.get(tensor.box, 0) for tensor in tensors)


def read_manifest(manifest: pb.Manifest, directory: str, boxes: Sequence[Box], to: WeightWriter | None) -> ManifestFile:
    """Checks a manifest's file, and copies its boxes if there is a file to copy them to. It blocks.

    Args:
      manifest: as it was sent.
      directory: real path of the folder that its file must lie in.
      boxes: of `manifest_boxes`.
      to: where they go; None leaves them in their file.

    Returns:
      the file, checked; still open when `to` is None.

    Raises:
      Refusal: it lies elsewhere, cannot be read, has another size or checksum, or numbers that are not finite.
    """
    file = ManifestFile(manifest, directory)
    try:
        file.check(boxes)
        if to is not None:
            file.copy(boxes, to)
            file.close()
        return file
    except OSError as error:  # of shared storage, say
        file.close()
        raise lost(f"{manifest.path!r} cannot be read: {error}") from error
    except BaseException:
        file.close()
        raise


class ManifestFile:
    """A manifest's file, opened. What was checked is what is read later, whatever becomes of its name."""

    def __init__(self, manifest: pb.Manifest, directory: str):
        self._manifest = manifest
        try:
            self.path = os.path.realpath(manifest.path)
            if "\0" in manifest.path or os.path.commonpath([self.path, directory]) != directory:
                raise invalid(f"{manifest.path!r} does not lie in the server's --weights_dir, {directory}")
            self._file = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            raise invalid(f"{manifest.path!r} cannot be read: {error}") from error
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode) or found.st_size != manifest.size:
            self.close()
            raise lost(f"{manifest.path!r} is not a file of {manifest.size} bytes; it has {found.st_size}")

    @property
    def held_path(self) -> str:
        """A path by which this process, and its children, open this very file until it is closed."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def close(self) -> None:
        """Lets it go."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def check(self, boxes: Sequence[Box]) -> None:
        """Reads the whole file; refuses it without its checksum, or with numbers in the boxes that are not finite."""
        digest, size = xxhash.xxh3_64(), self._manifest.size
        spans, not_finite = FiniteSpans(boxes, self._manifest.starts), None
        memory = memoryview(bytearray(min(READ_BYTES, max(size, 1))))
        for start in range(0, size, READ_BYTES):
            block = memory[: min(READ_BYTES, size - start)]
            self._fill(block, start)
            digest.update(block)
            try:
                if not_finite is None:
                    spans.check(start, block)
            except Refusal as refusal:
                not_finite = refusal
        if digest.intdigest() != self._manifest.checksum:
            raise lost(f"{self.path!r} does not have its checksum")
        if not_finite is not None:
            raise not_finite

    def _fill(self, block: memoryview, start: int) -> None:
        """Reads the file's bytes from `start` on until the block is full."""
        done = 0
        while done < len(block):
            got = os.preadv(self._file, [block[done:]], start + done)
            if not got:
                raise lost(f"{self.path!r} became shorter while it was read")
            done += got

    def copy(self, boxes: Sequence[Box], to: WeightWriter) -> None:
        """Copies the manifest's boxes to their places, a few rows at a time."""
        for box, start in zip(boxes, self._manifest.starts, strict=True):
            for rows, inside in box.cut(READ_BYTES):
                data = os.pread(self._file, rows.nbytes, start + inside)
                if len(data) != rows.nbytes:
                    raise lost(f"{self.path!r} became shorter while it was read")
                to.write(rows, np.frombuffer(data, np.uint8))
