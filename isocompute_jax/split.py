r"""`python -m isocompute_jax.split`: training and held-out problems that share no question, and nested smaller sets.

    python -m isocompute_jax.split --source=dapo.jsonl --out=sets --validation=300
    python -m isocompute_jax.split --source=curated/measured.jsonl --out=sets --validation=300 --strata=avg@16 \
        --nested=500,1000,2000

Writes `train.jsonl`, `validation.jsonl`, `train_500.jsonl` and so on (each holds the one before), and `split.json`,
which says how many problems of which stratum are where.
"""

from __future__ import annotations

import pathlib

from absl import flags

from isocompute_jax import app
from isocompute_jax.options import define_flags, from_flags
from isocompute_jax.records.printing import say
from isocompute_jax.tasks.splitting import SplitOptions

SOURCE = flags.DEFINE_string("source", None, "Problem set to split, .jsonl or .parquet.")
OUT = flags.DEFINE_string("out", None, "Directory to write the sets to.")
define_flags(SplitOptions)


def main() -> None:
    """Flags -> one call."""
    from isocompute_jax.tasks.splitting import split_files

    source = app.needed(SOURCE, "give the problem set to split")
    out = app.needed(OUT, "give the directory to write the sets to")
    sizes = split_files(pathlib.Path(source), pathlib.Path(out), from_flags(SplitOptions))
    for name, size in sizes.items():
        say(f"{name:>20}: {size} problems")
    say(f"written to {OUT.value}")


if __name__ == "__main__":
    app.run(main)
