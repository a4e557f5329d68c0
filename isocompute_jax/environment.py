"""`python -m isocompute_jax.environment`: problems that an environment makes itself, as a file.

python -m isocompute_jax.environment --environment=number_hunt --problems=1000 --out=hunt.jsonl
python -m isocompute_jax.environment --environment=games:Maze --problems=1000 --out=mazes.jsonl

One that makes none is trained on any file of problems (docs/problems.md).
"""

from __future__ import annotations

import pathlib

from absl import flags

from isocompute_jax import app
from isocompute_jax.environments.config import EnvironmentConfig
from isocompute_jax.options import define_flags, from_flags
from isocompute_jax.records.printing import say

PROBLEMS = flags.DEFINE_integer("problems", None, "Number of problems to write.", lower_bound=1)
SEED = flags.DEFINE_integer("seed", 0, "Of the problems.", lower_bound=0)
OUT = flags.DEFINE_string("out", None, "File for the problems, .jsonl or .parquet.")
NAME = define_flags(EnvironmentConfig)["name"]


def main() -> None:
    """Flags -> a file."""
    from isocompute_jax.environments.registry import get_kind
    from isocompute_jax.tasks import write_problems

    app.needed(NAME, "name one, such as number_hunt, or package.module:Class of your own")
    config = from_flags(EnvironmentConfig)
    count = app.needed(PROBLEMS, "say how many, such as --problems=1000")
    out = pathlib.Path(app.needed(OUT, "say where the problems go, such as --out=problems.jsonl"))
    problems = get_kind(config.name, config.options).problems(count, SEED.value)
    write_problems(out, problems)
    say(f"{out}: {len(problems)} problems of {config.name}")


if __name__ == "__main__":
    app.run(main)
