"""What the fit says of recorded, old and foreign sweeps: made, kept and compared.

    python -m tests.goldens.goldens              # makes them all again: goldens.json.xz beside this file
    python -m tests.goldens.goldens NAME ...     # the named ones, and keeps the others

A change that means to move a number makes the goldens again in the same commit, and says there which moved and why.
"""

from __future__ import annotations

import csv
import html
import importlib.metadata
import json
import lzma
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from tests.fit.commands import fit, undrawn
from tests.goldens import tables

ROOT = pathlib.Path(__file__).parents[2]
FILE = pathlib.Path(__file__).with_name("goldens.json.xz")
OLD = ROOT / "tests/artefacts/d6f90a3.tar.gz"
TOGETHER = {
    "sizes_of_sets": ("problems_16", "problems_64", "problems_256"),
    "batches": ("batch_2", "problems_64", "batch_32"),
    "base_models": ("problems_64", "base_600", "wide_64"),
}
"""Sweeps that answer a question together."""
UNDETERMINED = ("gallery_easy_64", "gallery_terms_easy", "gallery_rate_linear", "together_batches")
"""Each has curves that its data do not determine: their parameters, and what ties on them, hang on the last digits.

Of `together_batches` it is one midpoint: 111, from 99.9 to 7,050 or from 43.6 to 5,660.
"""
DIGITS = 10
LEFT_OUT = ("versions", "flags")
"""Of summary.json: what says who made it, and with which paths."""

Flags = list[str]
Golden = dict[str, Any]


def cases() -> dict[str, Callable[[pathlib.Path], Flags]]:
    """Name -> what fills a folder and returns the flags of the fit in it."""
    found: dict[str, Callable[[pathlib.Path], Flags]] = {}
    for path in sorted((ROOT / "gallery").glob("*.parquet")):
        found[f"gallery_{path.stem}"] = lambda folder, path=path: _copied(folder, path.stem)
    for name, parts in TOGETHER.items():
        found[f"together_{name}"] = lambda folder, parts=parts: _copied(folder, *parts)
    found["strict_records"] = lambda folder: [*_copied(folder, "problems_64"), "--records=strict"]
    found["old_sweep"] = _old
    return found | {f"table_{name}": write for name, write in tables.TABLES.items()} | tables.LAWS


def _copied(folder: pathlib.Path, *names: str) -> Flags:
    for name in names:
        shutil.copy(ROOT / f"gallery/{name}.parquet", folder)
    return ["--runs=*.parquet", "--budget=2e4,131072,524288"]


def _old(folder: pathlib.Path) -> Flags:
    """Run directories of an old commit."""
    shutil.unpack_archive(OLD, folder, filter="data")
    return ["--runs=sweep"]


def made(name: str) -> Golden:
    """What the fit says now: `summary`, `tables` and, of the report, the numbers of each of its sections."""
    with tempfile.TemporaryDirectory() as directory, undrawn():
        folder = pathlib.Path(directory)
        given = cases()[name](folder)
        given = [flag.replace("--runs=", f"--runs={folder}/") for flag in given]
        code = fit(*given, f"--out={folder / 'out'}")
        if code != 0:
            raise RuntimeError(f"{name}: the fit ended with {code}: {given}")
        out = folder / "out"
        found = {
            "summary": json.loads((out / "summary.json").read_text()),
            "tables": {path.name: rows(path) for path in sorted(out.glob("*.csv"))},
            "report": dict(sections((out / "report.html").read_text())),
        }
        for key in LEFT_OUT:
            found["summary"].pop(key, None)
        return plain(found, f"{folder}/")


def rows(path: pathlib.Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def plain(value: Any, folder: str) -> Any:
    """Numbers to ten digits, also those that are text; paths from the folder."""
    if isinstance(value, dict):
        return {key.replace(folder, ""): plain(each, folder) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each, folder) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, str):
        try:
            return float(f"{float(value):.{DIGITS}g}")
        except ValueError:
            return value.replace(folder, "")
    return value


def sections(page: str) -> Iterator[tuple[str, list[str]]]:
    """Heading -> the numbers below it, as they are printed, in order; none of pictures, nor of who made the page."""
    page = page.split("<h2>Method</h2>")[0]
    page = re.sub(r"<(script|style|svg|footer)\b.*?</\1>", " ", page, flags=re.S)
    for part in re.split(r"<h2[^>]*>", page)[1:]:
        heading, _, rest = part.partition("</h2>")
        text = html.unescape(re.sub(r"<[^>]+>", " ", rest))
        yield html.unescape(re.sub(r"<[^>]+>", "", heading)).strip(), numbers(text)


def numbers(text: str) -> list[str]:
    """As they are printed."""
    return re.findall(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?%?", text)


def machine() -> str:
    """What the last digits depend on: the processor, and who compiles and adds up on it."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    about = {line for line in lines if re.match(r"(model name|cpu family|model)\s*:", line)}
    words = {word for line in lines if line.startswith("flags") for word in line.split()}
    vectors = sorted(word for word in words if re.match(r"avx|fma|amx", word))  # one name may be several processors
    processor = [re.sub(r"\s*:", "", line) for line in sorted(about)]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("jaxlib", "numpy", "scipy")]
    return ", ".join((*processor, *vectors, *versions, os.environ.get("XLA_FLAGS", "")))


def kept() -> dict[str, Any]:
    """Name -> golden; and `machine`, that of the goldens."""
    return json.loads(lzma.decompress(FILE.read_bytes()))


def differences(old: Any, new: Any, close: Callable[[float, float], bool], at: str = "") -> Iterator[str]:
    """Where two goldens are not alike, and how."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            if key not in old or key not in new:
                yield f"{at}/{key}: only {'now' if key in new else 'before'}"
            else:
                yield from differences(old[key], new[key], close, f"{at}/{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, close, f"{at}[{i}]")
    elif isinstance(old, int | float) and isinstance(new, int | float) and not isinstance(old, bool):
        if not close(old, new):
            yield f"{at}: {old} before, {new} now"
    elif isinstance(old, str) and isinstance(new, str) and " " in old and " " in new:
        yield from differences(numbers(old), numbers(new), close, f"{at} ({old[:40]!r})")  # wording is free
    elif old != new:
        yield f"{at}: {str(old)[:120]} before, {str(new)[:120]} now"


def main(names: list[str]) -> None:
    every = kept() if FILE.exists() and names else {}
    if every and every["machine"] != machine():
        sys.exit("These goldens were made on another machine, and hold to 1e-9 there: make all, without names.")
    for name in names or cases():
        every[name] = made(name)
        print(name, len(json.dumps(every[name])), flush=True)
    ordered = {name: every[name] for name in cases() if name in every} | {"machine": machine()}
    text = json.dumps(ordered, separators=(",", ":")).encode()
    FILE.write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
    print(f"{FILE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    import tests.conftest  # noqa: F401  (compiles as tests do: the last digits depend on it)

    main(sys.argv[1:])
