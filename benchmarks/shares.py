"""What the tables of coverage have in common: lists of numbers in, shares with their errors out."""

from __future__ import annotations

import numpy as np
from absl import flags

from isocompute_jax.records.errors import InputError


def percent(hits: np.ndarray) -> str:
    """A share with its Monte-Carlo standard error."""
    share = hits.mean()
    return f"{share:.1%} ± {100 * np.sqrt(share * (1 - share) / len(hits)):.1f}"


def numbers(flag: flags.FlagHolder) -> list[float]:
    """The values of a list flag."""
    try:
        return [float(text) for text in flag.value]
    except ValueError:
        raise InputError(f"--{flag.name}={','.join(flag.value)} must be numbers with commas between them") from None
