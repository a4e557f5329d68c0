"""SHA-256 of every file of a directory, written into it: what was damaged since is told, here or by `sha256sum -c`."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import pathlib
from collections.abc import Collection

from isocompute_jax.records import run_files

SUMS = "SHA256SUMS"
PIECE, PIECES = 2**16, 64
WHOLE_FILES = ("config.json", "tokenizer.json")
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
