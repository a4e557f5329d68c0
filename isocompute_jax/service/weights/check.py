"""What a learner sends, checked: tensors, boxes, that they cover the model, files, and that all numbers are finite."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterable, Sequence

import numpy as np
import xxhash

from isocompute_jax.records.tensors import DTYPE_BYTES, Box, TensorSpec
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.proto.terms import NOT_FINITE, Refusal, invalid, lost
from isocompute_jax.service.weights.files import WeightFile, WeightWriter

MOST_BOXES = 1 << 14
"""Parts that a tensor may come in, and one more for each `BYTES_A_BOX` of it: those of a thousand devices are fewer."""
BYTES_A_BOX = 1 << 16

_EXPONENT = {"float32": 0x7F800000, "bfloat16": 0x7F80, "float16": 0x7C00}
"""Bits of the exponent: where all are set, the number is none. Larger patterns, without the sign, are not finite."""

LARGEST_PADDING = 64 << 20
READ_BYTES = 4 << 20
"""How much of a manifest's file is read at a time: it stays in the processor's cache between reading and hashing."""


def most_boxes(tensor: TensorSpec) -> int:
    """The most parts that a tensor may come in: looking for overlaps takes time with their square."""
    return MOST_BOXES + tensor.nbytes // BYTES_A_BOX


class Coverage:
    """Which boxes of which tensors have arrived."""

    def __init__(self, tensors: Sequence[TensorSpec]):
        self._sizes = {tensor.name: math.prod(tensor.shape) for tensor in tensors}
        self._most = {tensor.name: most_boxes(tensor) for tensor in tensors}
        self._boxes: dict[str, list[Box]] = {tensor.name: [] for tensor in tensors}
        self._counts = dict.fromkeys(self._sizes, 0)

    def add(self, box: Box) -> None:
        """Books a box; refuses it when more arrives than its tensor has."""
        self._boxes[box.name].append(box)
        self._counts[box.name] += math.prod(box.shape)
        if self._counts[box.name] > self._sizes[box.name]:
            raise invalid(f"tensor {box.name!r}: parts of it overlap; more numbers arrived than it has")
        if len(self._boxes[box.name]) > self._most[box.name]:
            raise invalid(f"tensor {box.name!r} comes in more than {self._most[box.name]} parts: send larger ones")

    def check_complete(self) -> None:
        """Refuses weights of which a number is missing, or was sent twice."""
        for name, boxes in self._boxes.items():
            if overlap(boxes):
                raise invalid(f"tensor {name!r}: parts of it overlap")
            if self._counts[name] < self._sizes[name]:
                raise lost(f"tensor {name!r}: {self._counts[name]} of its {self._sizes[name]} numbers arrived")


def overlap(boxes: Sequence[Box]) -> bool:
    """Whether any two boxes of one tensor share a number."""
    if len(boxes) < 2:
        return False
    low = np.array([box.offset for box in boxes], np.int64)
    high = low + np.array([box.shape for box in boxes], np.int64)
    return any(
        np.any(np.all((low[i] < high[i + 1 :]) & (low[i + 1 :] < high[i]), axis=1)) for i in range(len(boxes) - 1)
    )


def listed_tensors(given: Sequence[pb.Tensor], expected: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The tensors that a header lists: those that the engine expects, in any order.

    Raises:
      Refusal: names the first tensor that is wrong, unknown, repeated or missing.
    """
    if len(given) > 2 * len(expected):
        raise invalid(f"the header lists {len(given)} tensors; the model has {len(expected)}")
    missing = {tensor.name: tensor for tensor in expected}
    listed: dict[str, TensorSpec] = {}
    for tensor in given:
        ours = missing.pop(tensor.name, None)
        if ours is None:
            wrong = "is listed twice" if tensor.name in listed else "is not one of the model's"
            raise invalid(f"tensor {tensor.name!r} {wrong}")
        if tensor.dtype != ours.dtype:
            raise invalid(f"tensor {tensor.name!r} has dtype {tensor.dtype!r}; the model's is {ours.dtype!r}")
        if tuple(tensor.shape) != ours.shape:
            raise invalid(f"tensor {tensor.name!r} has shape {list(tensor.shape)}; the model's is {list(ours.shape)}")
        listed[tensor.name] = ours
    if missing:
        raise invalid(f"tensor {next(iter(missing))!r} is missing from the header")
    return tuple(listed.values())


def checked_box(box: pb.Box, listed: Sequence[TensorSpec]) -> Box:
    """A box as it was sent. Raises Refusal unless it holds something and lies in its tensor, one of the `listed`."""
    if box.tensor >= len(listed):
        raise invalid(f"a box names tensor {box.tensor}; the header lists {len(listed)}")
    tensor, offset, shape = listed[box.tensor], tuple(box.offset), tuple(box.shape)
    if not len(offset) == len(shape) == len(tensor.shape) or any(
        low < 0 or size < 1 or low + size > whole for low, size, whole in zip(offset, shape, tensor.shape, strict=True)
    ):
        raise invalid(
            f"tensor {tensor.name!r} of shape {list(tensor.shape)}: the box at {list(offset)} of shape {list(shape)} "
            "is empty or lies outside it"
        )
    return Box(tensor.name, tensor.dtype, shape, offset)


def is_finite(data: bytes | memoryview, dtype: str) -> bool:
    """Whether all numbers in `data` are, of a key of `DTYPE_BYTES`; it copies nothing, and reads them twice."""
    size, exponent = DTYPE_BYTES[dtype], _EXPONENT[dtype]
    signed = np.frombuffer(data, f"<i{size}")
    if not signed.size:
        return True
    # As a signed number a pattern of sign 0 is positive; as an unsigned one those of sign 1 are the largest.
    sign = 1 << (8 * size - 1)
    return int(signed.max()) < exponent and int(signed.view(f"<u{size}").max()) < sign | exponent


def not_finite(name: str) -> Refusal:
    """Of an update with such a tensor."""
    return invalid(f"tensor {name!r} {NOT_FINITE}: the weights were not taken")


class FiniteSpans:
    """The boxes of a file, looked at while the file is read from its beginning to its end.

    `bad` names the first tensor with a number that is not finite; it is empty as long as none was seen. Box i begins at
    byte `starts[i]`, a multiple of its dtype's size.
    """

    def __init__(self, boxes: Sequence[Box], starts: Iterable[int]):
        spans = zip(starts, boxes, strict=True)
        self._ahead = sorted(((start, start + box.nbytes, box.dtype, box.name) for start, box in spans), reverse=True)
        self._here: list[tuple[int, int, str, str]] = []
        self.bad = ""

    def look(self, start: int, block: memoryview) -> None:
        """Looks at the file's bytes from `start` on; blocks follow each other, each a multiple of 4 but the last."""
        end = start + len(block)
        while self._ahead and self._ahead[-1][0] < end:
            self._here.append(self._ahead.pop())
        for low, high, dtype, name in self._here:
            if not self.bad and not is_finite(block[max(low, start) - start : min(high, end) - start], dtype):
                self.bad = name
        self._here = [span for span in self._here if span[1] > end]


class ManifestFile:
    """A file that the server reads itself. What was checked is what is read later, whatever becomes of its name.

    `listed` are the tensors of the header, in its order; each of `boxes` lies in its tensor and in the file.

    Raises:
      Refusal: its boxes are too many, or lie elsewhere.
    """

    def __init__(self, manifest: pb.Manifest, listed: Sequence[TensorSpec]):
        most = sum(map(most_boxes, listed))
        if len(manifest.boxes) > most:
            raise invalid(f"{manifest.path!r}: it has {len(manifest.boxes)} boxes; {most} are the most for this model")
        largest = 2 * sum(tensor.nbytes for tensor in listed) + LARGEST_PADDING
        if manifest.size > largest:
            raise invalid(f"{manifest.path!r}: a file of {manifest.size} bytes; {largest} are the most for this model")
        if len(manifest.starts) != len(manifest.boxes):
            raise invalid(f"{manifest.path!r}: {len(manifest.boxes)} boxes have {len(manifest.starts)} starts")
        self.boxes = [checked_box(box, listed) for box in manifest.boxes]
        for box, start in zip(self.boxes, manifest.starts, strict=True):
            if start < 0 or start % DTYPE_BYTES[box.dtype] or start + box.nbytes > manifest.size:
                raise invalid(
                    f"{manifest.path!r}: a part of tensor {box.name!r} starts at byte {start}, which is not a multiple "
                    f"of its dtype's size, or leaves the file of {manifest.size} bytes"
                )
        self._manifest = manifest
        self._starts = dict(zip(self.boxes, manifest.starts, strict=True))
        # Whether it holds every tensor as one box, each once, and can be used as it is.
        self.is_whole = len(self.boxes) == len(self._starts) and self._starts.keys() == {
            tensor.box for tensor in listed if tensor.nbytes
        }
        self._path = ""
        self._file = -1

    def weights(self, tensors: Sequence[TensorSpec]) -> WeightFile:
        """What an engine reads of a whole file, until it is closed: it is opened by this process's descriptor."""
        starts = tuple(self._starts.get(tensor.box, 0) for tensor in tensors)
        return WeightFile(f"/proc/{os.getpid()}/fd/{self._file}", tuple(tensors), starts)

    def read(self, directory: str, to: WeightWriter | None) -> None:
        """Checks the file, which must lie in `directory`, a real path, and copies its boxes; it blocks.

        Without a file to copy them `to` they stay in this one, which stays open.

        Raises:
          Refusal: it lies elsewhere, cannot be read, has another size or checksum, or numbers that are not finite.
        """
        self._open(directory)
        keep = False
        try:
            self._check()
            if to is not None:
                self._copy(to)
            keep = to is None
        except OSError as error:  # of shared storage, say
            raise lost(f"{self._manifest.path!r} cannot be read: {error}") from error
        finally:
            if not keep:
                self.close()

    def close(self) -> None:
        """Lets it go."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def _open(self, directory: str) -> None:
        manifest = self._manifest
        try:
            path = self._path = os.path.realpath(manifest.path)
            if "\0" in manifest.path or os.path.commonpath([path, directory]) != directory:
                raise invalid(f"{manifest.path!r} does not lie in the server's --weights_dir, {directory}")
            self._file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            raise invalid(f"{manifest.path!r} cannot be read: {error}") from error
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode) or status.st_size != manifest.size:
            self.close()
            raise lost(f"{manifest.path!r} is not a file of {manifest.size} bytes; it has {status.st_size}")

    def _check(self) -> None:
        """Reads the whole file; refuses it without its checksum, or with numbers in the boxes that are not finite."""
        digest, size = xxhash.xxh3_64(), self._manifest.size
        spans = FiniteSpans(self.boxes, self._manifest.starts)
        memory = memoryview(bytearray(min(READ_BYTES, max(size, 1))))
        for start in range(0, size, READ_BYTES):
            block = memory[: min(READ_BYTES, size - start)]
            self._fill(block, start)
            digest.update(block)
            spans.look(start, block)
        if digest.intdigest() != self._manifest.checksum:
            raise lost(f"{self._path!r} does not have its checksum")
        if spans.bad:
            raise not_finite(spans.bad)

    def _fill(self, block: memoryview, start: int) -> None:
        """Reads the file's bytes from `start` on until the block is full."""
        done = 0
        while done < len(block):
            got = os.preadv(self._file, [block[done:]], start + done)
            if not got:
                raise lost(f"{self._path!r} became shorter while it was read")
            done += got

    def _copy(self, to: WeightWriter) -> None:
        """Copies the boxes to their places, a few rows at a time."""
        for box, start in zip(self.boxes, self._manifest.starts, strict=True):
            for rows, inside in box.cut(READ_BYTES):
                data = bytearray(rows.nbytes)
                self._fill(memoryview(data), start + inside)
                to.write(rows, np.frombuffer(data, np.uint8))
