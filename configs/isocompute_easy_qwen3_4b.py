"""IsoCompute Playbook, Easy problems: Qwen3 4B Instruct, 8k tokens, one host of 8 H200 (arXiv 2603.12151).

    python -m isocompute_jax.train --config=configs/isocompute_easy_qwen3_4b.py --dry_run
    python -m isocompute_jax.train --config=configs/isocompute_easy_qwen3_4b.py --workdir=runs/easy_qwen3_4b \
      --config.model=DIRECTORY_OF_QWEN3_4B_INSTRUCT_2507 --config.train_set=easy/train.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN
    python -m isocompute_jax.sweep --config=configs/isocompute_easy_qwen3_4b.py --workdir=runs/sweep_easy \
      --config.model=DIRECTORY_OF_QWEN3_4B_INSTRUCT_2507 --config.train_set=easy/train.jsonl \
      --config.service.endpoints=HOST:PORT,HOST:PORT --config.service.token_file=TOKEN \
      --grid='group_size=8,16,32,64,128'

What `isocompute_jax.curate` cuts as Easy problems (those that the base model solves in 0.3 to 0.6 of its tries); n = 16
and 64 problems a batch are one point of the paper's grid, n in 8 .. 2,048 and 32 .. 1,024 problems, which the last
command sweeps along n. configs/playbook.py is the recipe.

vLLM servers sample, here on 8 H200 of another host (docs/clusters.md); docs/one_host.md shares out one host.

Cost, by its plan (estimates from rooflines; nothing was run): 145 to 228 H200-hours for 524,288 rollouts in 512 steps
of 1,024, each 9.9 to 19 s of update, 24 to 36 s of sending weights and 29 to 44 s of sampling by vLLM on 8 others;
evaluations and the last checkpoint are counted. It takes 37.9 of the 140 GiB of each H200 that learns. On one host,
where 4 learn and 4 sample (--config.mesh.fsdp=4 --config.recipe.microbatch_tokens=40960; weights go by a file): 74 to
121 H200-hours.

Expected, by the paper's figures: the best n rises with C as a sigmoid in log C and saturates above that of Hard; at
large C, a large n buys sharpening (worst@k) more than coverage. Without the KL and entropy terms, entropy collapses.

Departures:

- coefficients of KL and entropy of 1e-3 each: the paper prints none;
- groups without signal leave the loss, which is one of the paper's three variants;
- Qwen3-4B-Instruct-2507, the revision of July 2025.
"""

from configs import playbook
from isocompute_jax.experiment.config import RunConfig


def recipe() -> RunConfig:
    """The recipe of this file."""
    return playbook.recipe("qwen3-4b-instruct-2507", "easy")


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return recipe()
