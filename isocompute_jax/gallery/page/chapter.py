"""What a chapter of docs/findings.md is made of: one finding of the paper, what was seen of it, and how sure."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Literal

from isocompute_jax.gallery.curves import Curves, Estimate, curves_of, with_seeds
from isocompute_jax.gallery.tables import SUFFIX, Sweep, read_sweep

NOISE = "[most of how high reward gets is one number](#most-of-how-high-reward-gets-is-one-number)"
"""Where chapters point to."""
RISE, AGAIN = "problems_64", "again_64"
"""The sweep of `make study`, with one seed more, and the same with four others."""

Verdict = Literal["shown", "shown in part", "refuted", "not settled", "not run"]


@dataclasses.dataclass(frozen=True)
class Gallery:
    """The recorded sweeps in a directory, each read once."""

    path: pathlib.Path

    def __contains__(self, name: str) -> bool:
        return (self.path / f"{name}{SUFFIX}").exists()

    def sweep(self, name: str) -> Sweep:
        """Of a name."""
        return _read(self.path / f"{name}{SUFFIX}")

    def curves(self, name: str, *columns: str, eval_set: str = "validation") -> Curves:
        """Of a sweep; avg@4 if no column is named."""
        return curves_of(self.sweep(name), *(columns or ("avg@4",)), eval_set=eval_set)

    def base(self, name: str, eval_set: str = "validation") -> float:
        """Mean avg@4 of a sweep's base model: before any step."""
        sweep = self.sweep(name)
        there = (sweep.column("compute") == 0) & (sweep.column("eval_set") == eval_set)
        return float(sweep.column("avg@4")[there].mean())

    def hard(self) -> Curves:
        """64 Hard problems, the study of finding 1, with the seeds of both of its sweeps."""
        return with_seeds(self.curves(RISE), self.curves(AGAIN))


@functools.cache
def _read(path: pathlib.Path) -> Sweep:
    return read_sweep(path)


@dataclasses.dataclass(frozen=True)
class Chapter:
    """One finding.

    Attributes:
      number: in the list of the page.
      claim: what the paper says, in a few words.
      verdict: what became of it here.
      effect: its size, with the interval.
      seeds: of each configuration.
      seen: paragraphs: what was measured, with tables and pictures.
      why: the reason, as far as it is known.
      overturn: what would overturn it.
      paper: beside the paper's figures.
    """

    number: int
    claim: str
    verdict: Verdict
    effect: str
    seeds: int
    seen: str
    why: str
    overturn: str
    paper: str

    @property
    def text(self) -> str:
        """Markdown."""
        said = [("Why", self.why), ("What would overturn it", self.overturn), ("Beside the paper", self.paper)]
        parts = [f"## {self.number}. {self.claim}: {self.verdict}", self.seen]
        return "\n\n".join([*parts, *(f"**{head}.** {text}" for head, text in said if text)]) + "\n"

    @property
    def row(self) -> str:
        """Of the table at the top."""
        return f"| {self.number} | {self.claim} | **{self.verdict}** | {self.effect} | {self.seeds or ''} |"


def not_run(number: int, claim: str, needed: Sequence[str]) -> Chapter:
    """A finding whose sweeps are not in the gallery yet."""
    commands = ", ".join(f"`{name}`" for name in needed)
    seen = f"The sweeps that would tell, {commands} of the `full` preset, are not recorded yet."
    return Chapter(number, claim, "not run", "", 0, seen, "", "", "")


def verdict(found: Estimate, expected: int = 1) -> Verdict:
    """Shown where the whole interval has the expected sign, refuted where it has the other."""
    return {expected: "shown", -expected: "refuted"}.get(found.sign, "not settled")  # pyright: ignore


def verdict_of_all(signs: Sequence[int]) -> Verdict:
    """Of a claim that holds if the signs of all of its differences are positive."""
    if min(signs) > 0:
        return "shown"
    if max(signs) > 0 > min(signs):
        return "shown in part"
    return "refuted" if min(signs) < 0 else "not settled"


def octaves(found: Estimate) -> str:
    """With its interval."""
    return f"{found.value:.1f} octaves ({found.low:.1f} to {found.high:.1f})"


def above(found: Estimate) -> str:
    """How far one n* lies above or below another."""
    if found.value >= 0:
        return f"{octaves(found)} above"
    return f"{octaves(Estimate(-found.value, -found.high, -found.low, found.seeds))} below"


def points(found: Estimate) -> str:
    """A difference of rewards in percentage points, with its interval."""
    return f"{100 * found.value:+.1f} points ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """In Markdown; the first column is text, the others are numbers."""
    lines = [heads, [":--", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)
