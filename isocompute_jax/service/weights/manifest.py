"""Weights in files that the server reads itself."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Sequence

import xxhash

from isocompute_jax.records.tensors import DTYPE_BYTES, TensorSpec
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.refusal import invalid, lost
from isocompute_jax.service.weights.staging import READ_BYTES, Part, StagingFile, part_bytes, part_of


def manifest_parts(manifest: pb.Manifest, order: Sequence[int], tensors: Sequence[TensorSpec]) -> list[Part]:
    """The boxes of a manifest, checked to lie in their tensors and in the file.

    Args:
      manifest: as it was sent.
      order: of `staging.tensor_order`.
      tensors: the engine's.

    Raises:
      Refusal: they do not.
    """
    if len(manifest.starts) != len(manifest.boxes):
        raise invalid(f"{manifest.path}: {len(manifest.boxes)} boxes have {len(manifest.starts)} starts")
    parts = [part_of(box, order, tensors) for box in manifest.boxes]
    for part, start in zip(parts, manifest.starts, strict=True):
        tensor = tensors[part.tensor]
        if start < 0 or start % DTYPE_BYTES[tensor.dtype] or start + part_bytes(part, tensors) > manifest.size:
            raise invalid(
                f"{manifest.path}: a part of tensor {tensor.name!r} starts at byte {start}, which is not a multiple of "
                f"its dtype's size, or leaves the file of {manifest.size} bytes"
            )
    return parts


def whole_starts(manifest: pb.Manifest, parts: Sequence[Part], tensors: Sequence[TensorSpec]) -> tuple[int, ...] | None:
    """Where each tensor begins, if the manifest's file holds every one whole and can be used as it is; else None."""
    starts = {part.tensor: start for part, start in zip(parts, manifest.starts, strict=True)}
    if len(parts) != len(starts) or len(starts) != sum(1 for tensor in tensors if math.prod(tensor.shape)):
        return None
    if any(part.shape != tensors[part.tensor].shape for part in parts):
        return None
    return tuple(starts.get(i, 0) for i in range(len(tensors)))


def read_manifest(manifest: pb.Manifest, directory: str, parts: Sequence[Part], to: StagingFile | None) -> ManifestFile:
    """Checks a manifest's file, and copies its boxes if there is a file to copy them to. It blocks.

    Args:
      manifest: as it was sent.
      directory: real path of the folder that its file must lie in.
      parts: of `manifest_parts`.
      to: where they go; None leaves them in their file.

    Returns:
      the file, checked; still open when `to` is None.

    Raises:
      Refusal: it lies elsewhere, cannot be read, or has another size or checksum.
    """
    file = ManifestFile(manifest, directory)
    try:
        file.check()
        if to is not None:
            file.copy(parts, to)
            file.close()
        return file
    except OSError as error:  # of shared storage, say
        file.close()
        raise lost(f"{manifest.path} cannot be read: {error}") from error
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
            raise lost(f"{manifest.path} is not a file of {manifest.size} bytes; it has {found.st_size}")

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

    def check(self) -> None:
        """Reads the whole file and refuses it when it does not have its checksum."""
        digest, left = xxhash.xxh3_64(), self._manifest.size
        block = memoryview(bytearray(min(READ_BYTES, max(left, 1))))
        os.lseek(self._file, 0, os.SEEK_SET)
        while left:
            got = os.readv(self._file, [block[: min(left, len(block))]])
            if not got:
                raise lost(f"{self.path} became shorter while it was read")
            digest.update(block[:got])
            left -= got
        if digest.intdigest() != self._manifest.checksum:
            raise lost(f"{self.path} does not have its checksum")

    def copy(self, parts: Sequence[Part], to: StagingFile) -> None:
        """Copies the manifest's boxes into a staging file, a few rows at a time."""
        for part, start in zip(parts, self._manifest.starts, strict=True):
            itemsize = DTYPE_BYTES[to.tensors[part.tensor].dtype]
            for rows, first in _row_blocks(part, READ_BYTES // itemsize):
                size = math.prod(rows.shape) * itemsize
                data = os.pread(self._file, size, start + first * itemsize)
                if len(data) != size:
                    raise lost(f"{self.path} became shorter while it was read")
                to.write(rows, data)


def _row_blocks(part: Part, numbers: int):
    """Cuts a box along its first axis into boxes of about `numbers` numbers: (box, numbers before it)."""
    if not part.shape:
        yield part, 0
        return
    row = math.prod(part.shape[1:])
    step = max(1, numbers // row)
    for low in range(0, part.shape[0], step):
        offset = (part.offset[0] + low, *part.offset[1:])
        yield Part(part.tensor, offset, (min(step, part.shape[0] - low), *part.shape[1:])), low * row
