"""`python -m benchmarks`: rollouts and tokens per second of the whole loop, by phase, with peak memory.

    python -m benchmarks                              # embedded model, one pinned core, n = 4, 16, 64, 256
    python -m benchmarks --shape=qwen2.5-0.5b --group_sizes=16 --steps=20    # random weights; for an accelerator
    python -m benchmarks --nopeer                     # without transformers on torch beside it

Each line is a training run of its own process (`isocompute_jax.train`), read from its metrics.jsonl: what is timed is
what users run, logging included. The first third of the steps (compilation) is left out. The peer, measured in the
same call, samples and updates the same model on the same prompts with transformers and torch on one thread.
"""

from __future__ import annotations

import pathlib
import tempfile

from absl import flags

from benchmarks.shared import print_head, print_row
from isocompute_jax import app

GROUP_SIZES = flags.DEFINE_list("group_sizes", ["4", "16", "64", "256"], "Rollouts per problem, n.")
ROLLOUTS = flags.DEFINE_integer("rollouts_per_step", 512, "Rollouts per step, B; B_problem = B / n.")
STEPS = flags.DEFINE_integer("steps", 60, "Steps per run, the first third of which is not timed.")
SHAPE = flags.DEFINE_enum("shape", "embedded", ["embedded", "qwen2.5-0.5b"], "Model to measure.")
PEER = flags.DEFINE_bool("peer", True, "Measure transformers on torch beside it, where torch is installed.")


def main() -> None:
    """Flags -> table."""
    from benchmarks import peer, throughput

    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        model = throughput.make_model(SHAPE.value, root)
        print_head(throughput.HEAD, left=())
        for size in GROUP_SIZES.value:
            row = throughput.measure(model, root, group_size=int(size), rollouts=ROLLOUTS.value, steps=STEPS.value)
            theirs = None
            if PEER.value and SHAPE.value == "embedded":
                theirs = peer.measure(model, group_size=int(size), rollouts=ROLLOUTS.value)
            print_row(*throughput.cells(row, theirs))


if __name__ == "__main__":
    app.run(main)
