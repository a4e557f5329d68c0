"""IsoCompute Playbook, Easy problems: Qwen3 4B Instruct, 8k tokens, one host of 8 H200 (arXiv 2603.12151).

    python -m isocompute_jax.train --config=configs/isocompute_easy_qwen3_4b.py --dry_run
    python -m isocompute_jax.train --config=configs/isocompute_easy_qwen3_4b.py --workdir=runs/easy_qwen3_4b \
      --config.model=DIRECTORY_OF_QWEN3_4B_INSTRUCT_2507 --config.train_set=easy/train.jsonl
    python -m isocompute_jax.sweep --config=configs/isocompute_easy_qwen3_4b.py --workdir=runs/sweep_easy \
      --config.model=DIRECTORY_OF_QWEN3_4B_INSTRUCT_2507 --config.train_set=easy/train.jsonl \
      --grid='group_size=8,16,32,64,128'

What `isocompute_jax.curate` cuts as Easy problems (those that the base model solves in 0.3 to 0.6 of its tries); n = 16
and 64 problems a batch are one point of the paper's grid, n in 8 .. 2,048 and 32 .. 1,024 problems, which the last
command sweeps along n. configs/playbook.py is the recipe.

Cost, by its plan (estimates from rooflines; nothing was run): 45 to 72 H200-hours for 524,288 rollouts in 512 steps of
1,024, each 10 to 20 s of update and 29 to 44 s of sampling on the same devices. It takes 34.9 of the 140 GiB of each
H200.

Expected, by the paper's figures: the best n rises with C as a sigmoid in log C and saturates above that of Hard; at
large C, a large n buys sharpening (worst@k) more than coverage. Without the KL and entropy terms, entropy collapses.

Departures:

- coefficients of KL and entropy of 1e-3 each: the paper prints none;
- groups without signal leave the loss, which is one of the paper's three variants;
- Qwen3-4B-Instruct-2507, the revision of July 2025.
"""

from ml_collections import config_dict

from configs import playbook
from isocompute_jax.experiment.config import RunConfig


def recipe() -> RunConfig:
    """The recipe of this file."""
    return playbook.recipe("qwen3-4b-instruct-2507", "easy")


def get_config() -> config_dict.ConfigDict:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return recipe().editable()
