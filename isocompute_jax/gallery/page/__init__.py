"""docs/findings.md and its pictures, from the files of the gallery: every number on the page is computed here."""

from __future__ import annotations

import pathlib

from isocompute_jax.gallery.page import data, expected, noise, rising, saturation, sets, steps, terms
from isocompute_jax.gallery.page.chapter import Chapter, Gallery
from isocompute_jax.gallery.page.figures import FOLDER
from isocompute_jax.gallery.tables import Sweep
from isocompute_jax.records.run_files import write_atomic

PAGE = "findings.md"

INTRODUCTION = """# Findings

What the embedded study shows of the IsoCompute Playbook (arXiv 2603.12151), and what it does not: a Qwen2 of 0.1
million parameters on chained sums, whose base model solves {base:.1%} of samples on Hard problems. Every number and
picture on this page is computed from the learning curves in `gallery/` by `make gallery`, without training.

Intervals are 95%, of a bootstrap over seeds. A finding is shown where its whole interval is on the paper's side,
refuted where it is on the other, and not settled else. In findings 1 and 8 n\\* is read off the fitter's frontier over
record-breaking evaluations, as in the paper; elsewhere it is the vertex of a parabola through the highest mean rewards
so far over log n, as Chinchilla's second approach has it over model sizes, which takes no form of curve for granted.

| | the paper's finding | here | effect | seeds |
| --: | :-- | :-- | :-- | --: |
{rows}
"""

NOT_TRIED = """## What was not tried

One problem per batch, problems whose difficulty has a heavier tail than the curation's sets, budgets beyond 2^19
rollouts, optimizers other than Adam, and models of more than a few hundred thousand parameters.
"""


def chapters(gallery: Gallery, docs: pathlib.Path) -> list[Chapter]:
    """All findings, in order; their pictures are drawn into docs/findings."""
    parts = (rising, saturation, sets, steps, terms, data)
    return sorted((one for part in parts for one in part.chapters(gallery, docs)), key=lambda one: one.number)


def build(gallery: str | pathlib.Path, docs: str | pathlib.Path) -> pathlib.Path:
    """Writes the page and its pictures below `docs`; returns the page.

    Raises:
      InputError: a sweep that it rests on is not in the gallery.
    """
    found, docs = Gallery(pathlib.Path(gallery)), pathlib.Path(docs)
    (docs / FOLDER).mkdir(parents=True, exist_ok=True)
    written = chapters(found, docs)
    introduction = INTRODUCTION.format(base=_base(found.sweep(rising.RISE)), rows="\n".join(one.row for one in written))
    closing = [noise.section(found, docs), expected.section(found), NOT_TRIED]
    write_atomic(docs / PAGE, "\n".join([introduction, *(one.text for one in written), *closing]))
    return docs / PAGE


def _base(sweep: Sweep) -> float:
    """Mean reward before any step."""
    return float(sweep.column("avg@4")[sweep.column("compute") == 0].mean())
