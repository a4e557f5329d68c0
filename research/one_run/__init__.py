"""docs/one_run.md and its pictures, from gallery/schedules: every number on the page is computed here."""

from __future__ import annotations

import dataclasses
import pathlib

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import write_atomic
from research.one_run import pictures, text
from research.one_run.comparison import SETTINGS, Setting, read_setting, read_tried

PAGE = "one_run.md"
FOLDER = "schedules"
"""Of the recorded runs, below gallery/, and of the pictures, below docs/."""
EXACT = "exact_"
"""Beginning of a file's name: the same setting, with an estimator that is exact whatever is dealt."""


def settings(gallery: pathlib.Path) -> list[Setting]:
    """Those that were recorded, in the page's order.

    Raises:
      InputError: none was.
    """
    found = [
        read_setting(gallery / FOLDER, name) for name in SETTINGS if (gallery / FOLDER / f"{name}.parquet").exists()
    ]
    if not found:
        raise InputError(f"{gallery / FOLDER} has none of {', '.join(SETTINGS)}: record them by `make gallery-record`")
    return found


def exact(gallery: pathlib.Path) -> list[Setting]:
    """Of those settings, runs whose estimator the policies that look at a step's rewards demand."""
    names = [(setting, f"{EXACT}{setting}") for setting in SETTINGS]
    found = [(setting, name) for setting, name in names if (gallery / FOLDER / f"{name}.parquet").exists()]
    return [dataclasses.replace(read_setting(gallery / FOLDER, name), name=setting) for setting, name in found]


def build(gallery: str | pathlib.Path, docs: str | pathlib.Path) -> pathlib.Path:
    """Writes the page and its pictures below `docs`; returns the page.

    Raises:
      InputError: nothing was recorded.
    """
    gallery, docs = pathlib.Path(gallery), pathlib.Path(docs)
    (docs / FOLDER).mkdir(parents=True, exist_ok=True)
    found = settings(gallery)
    tried = [read_tried(gallery / FOLDER, setting) for setting in found]
    pictures.draw(found, docs / FOLDER)
    write_atomic(docs / PAGE, text.page(found, exact(gallery), tried))
    return docs / PAGE
