"""docs/llm.md and its picture, computed from gallery/llm.parquet and gallery/llm_answers.jsonl."""

from __future__ import annotations

import json
import pathlib

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.run_files import write_atomic
from research.findings.chapter import FOLDER
from research.llm import picture, text
from research.llm.runs import read_runs
from research.record import SUFFIX

PAGE = "llm.md"
NAME = "llm"
"""Of the sweep in the gallery, which `make study-llm LLM=llm_record` runs."""
ANSWERS = "llm_answers.jsonl"


def build(gallery: str | pathlib.Path, docs: str | pathlib.Path) -> pathlib.Path:
    """Writes the page and its picture below `docs`; returns the page.

    Raises:
      InputError: the sweep, or the answers, were not recorded.
    """
    gallery, docs = pathlib.Path(gallery), pathlib.Path(docs)
    runs = read_runs(gallery / f"{NAME}{SUFFIX}")
    try:
        lines = (gallery / ANSWERS).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(
            f"{gallery / ANSWERS}: {error.strerror}; research/llm/answers.py says how to record it"
        ) from error
    (docs / FOLDER).mkdir(parents=True, exist_ok=True)
    write_atomic(docs / PAGE, text.page(runs, [json.loads(line) for line in lines], picture.draw(runs, docs)))
    return docs / PAGE
