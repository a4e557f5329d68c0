"""`python -m isocompute_jax.export`: a checkpoint of a run as a Hugging Face directory.

    python -m isocompute_jax.export --run=runs/hard
    python -m isocompute_jax.export --run=runs/hard --checkpoint=400 --out=models/hard-400

The first takes the last one, to runs/hard/exports/step-N. transformers, vLLM, `python -m isocompute_jax.curate
--model=DIR` and a new run (`--config.model=DIR`) load what it writes. The run may go on meanwhile. Runs write such
directories by themselves with `--config.export_every=STEPS`, and model/ at their end.
"""

from __future__ import annotations

from absl import flags

from isocompute_jax import app
from isocompute_jax.records.printing import say

RUN = flags.DEFINE_string("run", None, "Run directory.")
CHECKPOINT = flags.DEFINE_integer(
    "checkpoint", None, "Name of the checkpoint, one of RUN/checkpoints/; left out, the last whole one.", lower_bound=0
)
OUT = flags.DEFINE_string(
    "out", None, "Directory to write; left out, RUN/exports/step-N. An older export of this run there is replaced."
)
MODEL = flags.DEFINE_string(
    "model", None, "Hugging Face directory of the run's base model, where it is no longer where config.json says."
)


def main() -> None:
    """Flags -> one call."""
    import jax

    from isocompute_jax.experiment.workdir import export_checkpoint

    jax.config.update("jax_platforms", "cpu")  # the run that goes on has the accelerators, and their memory
    run = app.needed(RUN, "name a run directory")
    say(export_checkpoint(run, name=CHECKPOINT.value, out=OUT.value, base_model=MODEL.value))


if __name__ == "__main__":
    app.run(main)
