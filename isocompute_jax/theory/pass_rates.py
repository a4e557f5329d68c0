"""The distribution of pass@1 over problems, from a file that says how often each was solved.

k samples say little of one problem (0 of 16 may be one in a hundred or one in a million), but those of all problems
together say how rates are distributed: a Beta distribution is fitted to the counts, and each problem's rate is drawn
from what its own count leaves of it (empirical Bayes). Sets are cut by these very counts (Hard: at most 1 of 16), so
that only the range of counts that is there is taken to have been seen.
"""

from __future__ import annotations

import csv
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy import special, stats

from isocompute_jax.records.errors import InputError

MEASURED = re.compile(r"avg@(\d+)$")
"""Column that curation writes: the share of so many samples that solved the problem."""
RATE = ("pass_rate", "pass@1")
"""Columns of other programs: the rate itself, taken as exact."""
LEAST = 1e-6
"""Rates are kept this far from 0 and 1: no model solves a problem never, or always, for sure."""
_MEANS, _SIZES = np.linspace(0.002, 0.998, 250), np.geomspace(0.1, 200.0, 70)
"""Mean and concentration of the Beta distributions that are tried ..."""
_USUAL_SIZE, _SIZE_SPREAD = 2.0, 1.0
"""... and which concentration is expected, with its standard deviation in log: a cut leaves it nearly unidentified, and
problem sets as a whole spread from never to always."""


def read_pass_rates(path: str | pathlib.Path, *, seed: int = 0) -> Float[np.ndarray, "P"]:
    """pass@1 of every problem of a .jsonl or .csv file, each between 0 and 1.

    A row has `avg@k` (of the largest k, if there are several), which is smoothed, or `pass_rate` or `pass@1`, which
    are taken as they are.

    Raises:
      InputError: the file is missing or of another kind, a row has none of the columns, or a value is no share.
    """
    path = pathlib.Path(path)
    samples, rates = 0, []
    for line, row in _rows(path):
        there = [name for name, value in row.items() if value not in (None, "")]
        counted = [int(found[1]) for name in there if (found := MEASURED.match(name))]
        name = f"avg@{max(counted)}" if counted else next((name for name in RATE if name in there), "")
        if not name:
            raise InputError(f"{path}:{line}: no avg@k, pass_rate or pass@1; `isocompute_jax.curate` measures it")
        try:
            rate = float(row[name])
        except (TypeError, ValueError):
            rate = float("nan")
        if not 0.0 <= rate <= 1.0:
            raise InputError(f"{path}:{line}: {name} is {row[name]!r}, and not a share between 0 and 1")
        here = max(counted, default=0)
        if rates and here != samples:
            raise InputError(f"{path}:{line}: {name}, where the rows before it have {samples or 'no'} samples")
        samples = here
        rates.append(rate)
    if not rates:
        raise InputError(f"{path} has no problems")
    found = np.asarray(rates)
    if samples:
        return smoothed(np.round(found * samples).astype(int), samples, seed=seed)
    return np.clip(found, LEAST, 1 - LEAST)


def smoothed(counts: Int[np.ndarray, "P"], samples: int, *, seed: int = 0) -> Float[np.ndarray, "P"]:
    """A rate for each problem, drawn from what its count leaves of the Beta distribution of all.

    Args:
      counts: how many of the samples solved each problem.
      samples: of each problem.
      seed: of the draw.
    """
    times = np.bincount(counts, minlength=samples + 1)
    mean, size = _MEANS[:, None, None], _SIZES[:, None]
    seen = np.arange(counts.min(), counts.max() + 1)
    log_shares = stats.betabinom.logpmf(seen, samples, mean * size, (1 - mean) * size)
    log_shares -= special.logsumexp(log_shares, axis=-1, keepdims=True)
    likelihood = log_shares @ times[seen] + stats.norm.logpdf(np.log(_SIZES / _USUAL_SIZE), scale=_SIZE_SPREAD)
    i, j = np.unravel_index(int(np.argmax(likelihood)), (len(_MEANS), len(_SIZES)))
    a, b = _MEANS[i] * _SIZES[j], (1 - _MEANS[i]) * _SIZES[j]
    drawn = np.random.default_rng(seed).beta(a + counts, b + samples - counts)
    return np.clip(drawn, LEAST, 1 - LEAST)


def _rows(path: pathlib.Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Line and row."""
    if path.suffix not in (".jsonl", ".csv"):
        raise InputError(f"--pass_rates={path}: give a .jsonl or .csv file, with a row for each problem")
    try:
        with open(path, newline="", encoding="utf-8") as file:
            if path.suffix == ".csv":
                yield from enumerate(csv.DictReader(file), 2)
                return
            for line, text in enumerate(file, 1):
                if text.strip():
                    yield line, _object(path, line, text)
    except FileNotFoundError:
        raise InputError(f"--pass_rates={path}: there is no such file") from None


def _object(path: pathlib.Path, line: int, text: str) -> dict[str, Any]:
    """A row of JSONL."""
    try:
        row = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path}:{line}: not a JSON object ({error})") from error
    if not isinstance(row, dict):
        raise InputError(f"{path}:{line}: not a JSON object")
    return row
