"""Digests of files: of a whole directory, by which damage is told (`sha256sum -c` does too), and of models."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import pathlib
from collections.abc import Collection

import numpy as np

from isocompute_jax.records import run_files

SUMS = "SHA256SUMS"
PIECE, PIECES = 2**16, 64
WHOLE_FILES = ("config.json", "tokenizer.json")
NUMBERS, FLOATS = 64, {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
THREADS = 8
"""Files that are read at once: hashing and reading both leave the interpreter to others."""


def write_sums(directory: str | os.PathLike[str], *, leave_out: Collection[str] = ()) -> None:
    """Writes `SHA256SUMS` of all files below `directory`, in the format of coreutils.

    Args:
      directory: whose files are whole and no longer change.
      leave_out: names of files that still do.
    """
    directory = pathlib.Path(directory)
    found = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    names = [name for name in found if name.rpartition("/")[2] not in leave_out]
    run_files.write_atomic(
        directory / SUMS, "".join(f"{digest}  {name}\n" for name, digest in _digests(directory, names).items())
    )


def damage(directory: str | os.PathLike[str]) -> str | None:
    """What is wrong with a directory that `write_sums` has seen, in a few words; None where nothing is.

    Files that came later are not looked at.
    """
    directory = pathlib.Path(directory)
    try:
        lines = (directory / SUMS).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return f"{SUMS} is missing"
    except (OSError, UnicodeDecodeError) as error:
        return f"{SUMS} cannot be read ({error})"
    wanted = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    outside = [name for name in wanted if pathlib.PurePath(name).is_absolute() or ".." in pathlib.PurePath(name).parts]
    if outside:
        return f"{SUMS} names a file outside: {outside[0]}"
    missing = [name for name in wanted if not (directory / name).is_file()]
    if not wanted or missing:
        return f"{missing[0]} is missing" if missing else f"{SUMS} is empty"
    try:
        found = _digests(directory, list(wanted))
    except OSError as error:
        return f"{error.filename} cannot be read ({error.strerror})"
    changed = [name for name in wanted if found[name] != wanted[name]]
    return f"{changed[0]} is not what was written" if changed else None


def _digests(directory: pathlib.Path, names: list[str]) -> dict[str, str]:
    """Name -> SHA-256 in hexadecimal."""

    def digest(name: str) -> str:
        with open(directory / name, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        return dict(zip(names, pool.map(digest, names), strict=True))


def model_digest(directory: str | os.PathLike[str]) -> str:
    """Tells models apart by their files: config.json and the tokenizer whole, of weights their sizes and 64 pieces.

    Two steps of training differ in nearly every weight, so pieces suffice, and a hundred gigabytes are not read twice.
    """
    directory, digest = pathlib.Path(directory), hashlib.blake2b(digest_size=16)
    for path in [*(directory / name for name in WHOLE_FILES), *sorted(directory.glob("*.safetensors"))]:
        if not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{path.name}:{size};".encode())
        whole = path.name in WHOLE_FILES or size <= PIECE * PIECES
        with open(path, "rb") as file:
            for start in range(0, size, PIECE) if whole else (size * i // PIECES for i in range(PIECES)):
                file.seek(start)
                digest.update(file.read(PIECE))
    return digest.hexdigest()


def weights_digest(directory: str | os.PathLike[str]) -> str:
    """Tells weights apart, in whatever files and floats they lie; empty where a directory holds none in safetensors.

    The first numbers of each matrix and norm are looked at, as bfloat16 rounds them; not the head, which may be tied.
    """
    found: dict[str, bytes] = {}
    for path in pathlib.Path(directory).glob("*.safetensors"):
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            for name, place in json.loads(file.read(size)).items():
                if not (name.startswith("model.") and name.endswith(".weight") and place["dtype"] in FLOATS):
                    continue
                dtype = np.dtype(FLOATS[place["dtype"]])
                start, end = place["data_offsets"]
                file.seek(8 + size + start)
                numbers = np.frombuffer(file.read(min(end - start, NUMBERS * dtype.itemsize)), dtype)
                if place["dtype"] != "BF16":
                    bits = numbers.astype(np.float32).view(np.uint32)
                    numbers = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
                found[name] = numbers.tobytes()
    digest = hashlib.blake2b(repr(sorted(found.items())).encode(), digest_size=16)
    return digest.hexdigest() if found else ""
