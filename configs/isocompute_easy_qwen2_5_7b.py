"""IsoCompute Playbook, Easy problems: Qwen2.5 7B Instruct, 8k tokens, one host of 8 H200 (arXiv 2603.12151).

    python -m isocompute_jax.train --config=configs/isocompute_easy_qwen2_5_7b.py --dry_run
    python -m isocompute_jax.train --config=configs/isocompute_easy_qwen2_5_7b.py --workdir=runs/easy_qwen2_5_7b \
      --config.model=DIRECTORY_OF_QWEN2_5_7B_INSTRUCT --config.train_set=easy/train.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN
    python -m isocompute_jax.sweep --config=configs/isocompute_easy_qwen2_5_7b.py --workdir=runs/sweep_easy \
      --config.model=DIRECTORY_OF_QWEN2_5_7B_INSTRUCT --config.train_set=easy/train.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN \
      --grid='group_size=8,16,32,64,128'

What `isocompute_jax.curate` cuts as Easy problems (those that the base model solves in 0.3 to 0.6 of its tries); n = 16
and 64 problems a batch are one point of the paper's grid, n in 8 .. 2,048 and 32 .. 1,024 problems, which the last
command sweeps along n. configs/playbook.py is the recipe.

vLLM servers sample, here on 8 H200 of another host (docs/clusters.md); docs/one_host.md shares out one host.

Cost, by its plan (estimates from rooflines; nothing was run): 221 to 348 H200-hours for 524,288 rollouts in 512 steps
of 1,024, each 16 to 31 s of update, 45 to 68 s of sending weights and 35 to 52 s of sampling by vLLM on 8 others;
evaluations and the last checkpoint are counted. It takes 54.3 of the 140 GiB of each H200 that learns. On one host,
where 4 learn and 4 sample (--config.mesh.fsdp=4 --config.recipe.microbatch_tokens=40960; weights go by a file): 87 to
147 H200-hours.

Expected, by the paper's figures: the best n rises with C as a sigmoid in log C and saturates above that of Hard; at
large C, a large n buys sharpening (worst@k) more than coverage. Without the KL and entropy terms, entropy collapses.

Departures:

- coefficients of KL and entropy of 1e-3 each: the paper prints none;
- groups without signal leave the loss, which is one of the paper's three variants.
"""

from configs import playbook
from isocompute_jax.experiment.config import RunConfig


def recipe() -> RunConfig:
    """The recipe of this file."""
    return playbook.recipe("qwen2.5-7b", "easy")


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return recipe()
