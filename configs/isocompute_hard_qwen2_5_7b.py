"""IsoCompute Playbook, Hard problems: Qwen2.5 7B Instruct, 8k tokens, one host of 8 H200 (arXiv 2603.12151).

    python -m isocompute_jax.train --config=configs/isocompute_hard_qwen2_5_7b.py --dry_run
    python -m isocompute_jax.train --config=configs/isocompute_hard_qwen2_5_7b.py --workdir=runs/hard_qwen2_5_7b \
      --config.model=DIRECTORY_OF_QWEN2_5_7B_INSTRUCT --config.train_set=hard/train.jsonl
    python -m isocompute_jax.sweep --config=configs/isocompute_hard_qwen2_5_7b.py --workdir=runs/sweep_hard \
      --config.model=DIRECTORY_OF_QWEN2_5_7B_INSTRUCT --config.train_set=hard/train.jsonl \
      --grid='group_size=8,16,32,64,128'

What `isocompute_jax.curate` cuts as Hard problems (those that the base model solves in at most 1 of 16 tries); n = 16
and 64 problems a batch are one point of the paper's grid, n in 8 .. 2,048 and 32 .. 1,024 problems, which the last
command sweeps along n. configs/playbook.py is the recipe.

Cost, by its plan (estimates from rooflines; nothing was run): 58 to 94 H200-hours for 524,288 rollouts in 512 steps of
1,024, each 16 to 30 s of update and 35 to 52 s of sampling on the same devices. It takes 47.1 of the 140 GiB of each
H200.

Expected, by the paper's figures: the best n rises with C and saturates below that of Easy; a large n buys coverage
(best@k). With KL and entropy terms on, entropy explodes.

Departures:

- groups without signal leave the loss, which is one of the paper's three variants.
"""

from ml_collections import config_dict

from configs import playbook
from isocompute_jax.experiment.config import RunConfig


def recipe() -> RunConfig:
    """The recipe of this file."""
    return playbook.recipe("qwen2.5-7b", "hard")


def get_config() -> config_dict.ConfigDict:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return recipe().editable()
