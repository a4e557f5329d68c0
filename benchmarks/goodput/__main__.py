"""`python -m benchmarks.goodput`: what a large cluster's hours are worth, simulated; the simulation beside real runs.

    python -m benchmarks.goodput                                # tables; 15 minutes on one core
    python -m benchmarks.goodput --output=docs/goodput.png      # and the picture of docs/clusters.md
    python -m benchmarks.goodput --points=points.json           # kept as they come: the same command goes on there
    python -m benchmarks.goodput --validate                     # real runs on two cores; 8 minutes

64 learner hosts and 512 servers (`assumptions`: published figures, none measured here) go through the events of
`model`. Goodput is steps an hour by those of an ideal in which nothing fails and the slower of learner and servers is
always busy. One quantity changes, the others stay: k = 0, 2, 8, n = 16, sigma = 1, no failures. Where group size
changes, a batch stays 8,192 rollouts; where the tail does, mean length stays, and goodput is by that tail's own ideal.
Failures strike GPU by GPU alike, over at most a day and a half.
"""

from __future__ import annotations

import json
import pathlib

from absl import flags

from benchmarks.goodput import panels
from benchmarks.shared import kept_points, names, print_head, print_row
from isocompute_jax import app

PANELS = flags.DEFINE_list("panels", list(panels.PANELS), f"What changes: some of {', '.join(panels.PANELS)}.")
STEPS = flags.DEFINE_integer("counted_steps", 40, "Counted steps of each point without failures.", 1)
OUTPUT = flags.DEFINE_string("output", None, "File (.png) for the picture.")
POINTS = flags.DEFINE_string("points", None, "File (.json) that keeps what was simulated.")
VALIDATE = flags.DEFINE_bool("validate", False, "Real runs instead, and what is predicted of them.")
TIMED_STEPS = flags.DEFINE_integer("timed_steps", 30, "Steps of each real run that are timed.", 4)


def main() -> None:
    """Flags -> tables and picture."""
    if VALIDATE.value:
        from benchmarks.goodput import validate  # starts JAX

        validate.validate(timed=TIMED_STEPS.value)
        return
    chosen = names(PANELS, panels.PANELS)
    found: dict[str, list[panels.Point]] = kept_points(POINTS.value)
    print_head(panels.HEAD)
    for panel in chosen:
        known, found[panel] = found.get(panel, []), []
        for point in panels.points(panel, STEPS.value, known):
            found[panel].append(point)
            print_row(*panels.cells(panel, point))
            if POINTS.value:
                pathlib.Path(POINTS.value).write_text(json.dumps(found))
    if OUTPUT.value:
        panels.draw({panel: found[panel] for panel in panels.PANELS if panel in found}, pathlib.Path(OUTPUT.value))


if __name__ == "__main__":
    app.run(main)
