"""docs/referee.md, from the files of the gallery: every verdict and number on the page is computed here."""

from __future__ import annotations

import collections
import pathlib
from typing import get_args

from isocompute_jax.records.run_files import write_atomic
from research.findings.chapter import Gallery
from research.referee.claims import Claim, Verdict, all_claims

PAGE = "referee.md"

INTRODUCTION = """# Referee

What the literature says about n contradicts itself: that it should grow with the budget, that two suffice, that it does
not matter, that only n x B_problem does. Here each claim is turned into a statement that recorded sweeps could refute,
and the verdict is computed from `gallery/` by `make gallery`, without training. A statement **holds** where the whole
95% interval over seeds is on its side of the bar, **fails** where it is on the other, and is not settled else. All of
that at this size: a Qwen2 of 0.1 million parameters on 64 Hard problems of chained sums.

Of {count} statements {score}.

| whose | what it says | here | measured, in points of avg@4 |
| :-- | :-- | :-- | :-- |
{rows}
"""

ADVICE = """## What a team with a large model may take from it

- **Tune the rate before n.** At one rate for all, n = 128 ends far above n = 4; with rates of their own they are much
  nearer, and the best rate of a small group is a fraction of that of a large one. A comparison of n at one rate is
  mostly a comparison of noise.
- **Early, small groups; late, less noise**, by a larger n, more problems a batch or a smaller rate, whichever is
  cheapest for the system. `config.schedule.group_size=auto` is the first ([One run](one_run.md)).
- **Do not read n off equal steps.** Steps of a large group are better and cost more; only equal compute tells.
- Where a paper's n differs from yours, look at its rate over n x B_problem before anything else.
"""


def build(gallery: str | pathlib.Path, docs: str | pathlib.Path) -> pathlib.Path:
    """Writes the page below `docs`, and returns it.

    Raises:
      InputError: a sweep that it rests on is not in the gallery.
    """
    found = all_claims(Gallery(pathlib.Path(gallery)))
    introduction = INTRODUCTION.format(
        count=len(found), score=_score(found), rows="\n".join(claim.row for claim in found)
    )
    page = pathlib.Path(docs) / PAGE
    write_atomic(page, "\n".join([introduction, *(claim.text for claim in found), ADVICE]))
    return page


def _score(found: list[Claim]) -> str:
    """`1 holds, 2 fail and ...`."""
    counts = collections.Counter(claim.verdict for claim in found)
    words = {"holds": "hold", "fails": "fail", "not settled": "are not settled"}
    return ", ".join(f"{counts[name]} {words[name]}" for name in get_args(Verdict) if counts[name])
