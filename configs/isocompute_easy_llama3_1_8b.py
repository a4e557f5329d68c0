"""IsoCompute Playbook, Easy problems: Llama 3.1 8B Instruct, 8k tokens, one host of 8 H200 (arXiv 2603.12151).

    python -m isocompute_jax.train --config=configs/isocompute_easy_llama3_1_8b.py --dry_run
    python -m isocompute_jax.train --config=configs/isocompute_easy_llama3_1_8b.py --workdir=runs/easy_llama3_1_8b \
      --config.model=DIRECTORY_OF_LLAMA_3_1_8B_INSTRUCT --config.train_set=easy/train.jsonl
    python -m isocompute_jax.sweep --config=configs/isocompute_easy_llama3_1_8b.py --workdir=runs/sweep_easy \
      --config.model=DIRECTORY_OF_LLAMA_3_1_8B_INSTRUCT --config.train_set=easy/train.jsonl \
      --grid='group_size=8,16,32,64,128'

What `isocompute_jax.curate` cuts as Easy problems (those that the base model solves in 0.3 to 0.6 of its tries); n = 16
and 64 problems a batch are one point of the paper's grid, n in 8 .. 2,048 and 32 .. 1,024 problems, which the last
command sweeps along n. configs/playbook.py is the recipe.

Cost, by its plan (estimates from rooflines; nothing was run): 69 to 112 H200-hours for 524,288 rollouts in 512 steps of
1,024, each 17 to 34 s of update and 43 to 65 s of sampling on the same devices. It takes 53.1 of the 140 GiB of each
H200.

Expected, by the paper's figures: the best n rises with C as a sigmoid in log C and saturates above that of Hard; at
large C, a large n buys sharpening (worst@k) more than coverage. Without the KL and entropy terms, entropy collapses.

Departures:

- coefficients of KL and entropy of 1e-3 each: the paper prints none;
- groups without signal leave the loss, which is one of the paper's three variants.
"""

from ml_collections import config_dict

from configs import playbook
from isocompute_jax.experiment.config import RunConfig


def recipe() -> RunConfig:
    """The recipe of this file."""
    return playbook.recipe("llama-3.1-8b", "easy")


def get_config() -> config_dict.ConfigDict:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return recipe().editable()
