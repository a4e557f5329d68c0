"""docs/findings.md and its pictures, from the files of the gallery: every number on the page is computed here."""

from __future__ import annotations

import collections
import pathlib
from typing import get_args

from isocompute_jax.records.run_files import write_atomic
from research.findings import closing, levels, recipe, rising, targets
from research.findings.chapter import FOLDER, RISE, Chapter, Gallery, Verdict

PAGE = "findings.md"

INTRODUCTION = """# Findings

What the embedded study shows of the IsoCompute Playbook (arXiv 2603.12151), and what it does not: a Qwen2 of 0.1
million parameters on chained sums, whose base model solves {base:.1%} of samples on Hard problems. Every number and
picture on this page is computed from the learning curves in `gallery/` by `make gallery`, without training.

Of thirteen findings {score}. What a user of a large model may take from it: where problems are
seen many times, n\\* rises with the budget until reward saturates in n; compare n at a rate that was chosen for the
batch, because a larger group and a smaller rate do much the same; where problems are always new, nothing here says that
a large group pays.

Intervals are 95%, of a bootstrap over seeds; with five they are somewhat narrow, and a highest mean lies low in its
own. A finding is shown where its whole interval is on the paper's side, refuted where it is on the other, shown in part
where some of its parts are, and not settled else; refuted means at this size. Where "little" or "saturated" needed a
bar, it is ours: a half (finding 6), a quarter (finding 2). In findings 1 and 8 n\\* is the fitter's: the n of the least
expected regret over the draws of its model of the sweep, whose intervals are those of the draws; elsewhere it is the
vertex of a parabola over log n through the highest mean rewards so far, within the n that were run, as Chinchilla's
second approach has it over model sizes, which takes no form of learning curve for granted; and beside theory it is the
n of the highest mean. They differ most where reward is nearly a tie. Lines of n\\* are drawn a little apart where they
would cover each other.

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
    return [
        rising.rising(gallery, docs),
        levels.saturating(gallery, docs),
        levels.easy_and_hard(gallery, docs),
        targets.target(gallery, docs, 4, "worst@4", "Easy", targets.EASY),
        targets.target(gallery, docs, 5, "best@4", "Hard", targets.HARD),
        recipe.batches(gallery, docs),
        recipe.rates(gallery, docs),
        rising.at_epochs(gallery, docs),
        recipe.against_steps(gallery, docs),
        recipe.terms(gallery, docs),
        targets.mixtures(gallery, docs),
        levels.data_size(gallery),
        levels.base_models(gallery, docs),
    ]


def build(gallery: str | pathlib.Path, docs: str | pathlib.Path) -> pathlib.Path:
    """Writes the page and its pictures below `docs`; returns the page.

    Raises:
      InputError: a sweep that it rests on is not in the gallery.
    """
    sweeps, docs = Gallery(pathlib.Path(gallery)), pathlib.Path(docs)
    (docs / FOLDER).mkdir(parents=True, exist_ok=True)
    findings = chapters(sweeps, docs)
    introduction = INTRODUCTION.format(
        base=sweeps.base(RISE), rows="\n".join(one.row for one in findings), score=_score(findings)
    )
    last = [closing.noise(sweeps, docs), closing.expected(sweeps), closing.recorded(sweeps), NOT_TRIED]
    write_atomic(docs / PAGE, "\n".join([introduction, *(one.text for one in findings), *last]))
    return docs / PAGE


def _score(findings: list[Chapter]) -> str:
    """`4 are shown, 2 shown in part, ...`."""
    counts = collections.Counter(one.verdict for one in findings)
    first, *others = [f"{counts[name]} {name}" for name in get_args(Verdict) if counts[name]]
    return ", ".join([first.replace(" ", " are ", 1), *others])
