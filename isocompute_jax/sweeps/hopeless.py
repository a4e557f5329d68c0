"""The fit behind `--stop_hopeless`, as a program: JSON of the chances of all unfinished runs (see `fit.further_runs`).

    python -m isocompute_jax.sweeps.hopeless DIRECTORY END METRIC EVAL_SET

It is a process of its own, because the fit takes a JAX device, and the sweep must not.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.printing import say


def main(arguments: Sequence[str]) -> None:
    """Prints a list of `Chance`s."""
    from isocompute_jax.fit.analysis_options import AnalysisOptions
    from isocompute_jax.fit.further_runs import chances_of_leading
    from isocompute_jax.fit.read import ReadOptions

    directory, end, metric, eval_set = arguments
    options = AnalysisOptions(read=ReadOptions(metric=metric, eval_set=eval_set))
    try:
        chances = chances_of_leading([directory], options, end=float(end))
    except InputError as error:
        sys.exit(str(error))
    say(json.dumps([dataclasses.asdict(chance) for chance in chances]))


if __name__ == "__main__":
    main(sys.argv[1:])
