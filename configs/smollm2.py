r"""SmolLM2-135M-Instruct on problems of your own, on a laptop: GRPO on a published language model.

    python -m isocompute_jax.train --config=configs/smollm2.py --workdir=runs/smollm2
    python -m isocompute_jax.train --config=configs/smollm2.py --workdir=runs/mine \
      --config.train_set=sets/train.jsonl --config.evaluation.sets.validation=sets/validation.jsonl

Needs `make smollm`. The first command trains on 400 problems of small arithmetic in words (`words:400`); the second on
yours, which docs/llm.md splits. Answers of up to 16 tokens, 8 rollouts of each of 8 problems.

Cost: C = 2,048 rollouts, three and a half minutes on two cores of an AMD EPYC with AVX-512; 7 GB of memory.
Score: avg@4 of 64 held-out problems rose from 0.04 to 0.41 (one seed).
"""

import dataclasses

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.study.presets import llm_run


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    run = llm_run(max_compute=2048, points=4)
    return dataclasses.replace(run, train_set="words:400", group_size=8, problems_per_batch=8)
