r"""A model, problems and a reward of your own: GRPO on one device, to start from.

    python -m isocompute_jax.train --config=configs/start.py --workdir=runs/start \
      --config.model=DIRECTORY --config.train_set=PROBLEMS.jsonl --config.reward=NAME
    python -m isocompute_jax.train --config=configs/start.py --show_prompts=3 \
      --config.model=DIRECTORY --config.train_set=PROBLEMS.jsonl --config.reward=NAME

DIRECTORY is a Hugging Face directory. PROBLEMS.jsonl has a prompt and an answer in each line (docs/problems.md). NAME
is what grades completions: numeric, math, exact, code, or module:function of your own (docs/rewards.md); problems that
name their own task need none. The second command prints the first prompts as the model will read them. A model that
follows instructions wants its chat template for prompts that are plain texts: --config.prompts.chat_template=on.

A tiny model shows on a laptop that problems and reward fit together, and learns nothing, for its weights are random:

    python -m isocompute_jax.make_model --out=runs/tiny
    python -m isocompute_jax.train --config=configs/start.py --workdir=runs/start-tiny --config.model=runs/tiny \
      --config.train_set=PROBLEMS.jsonl --config.reward=NAME \
      --config.sampling.max_tokens=32 --config.max_compute=2048

Curves of held-out reward, which sweeps and fits read, need problems that are not trained on:

    python -m isocompute_jax.split --source=PROBLEMS.jsonl --out=sets --validation=20 --task=NAME
    python -m isocompute_jax.train ... \
      --config.train_set=sets/train.jsonl --config.evaluation.sets.validation=sets/validation.jsonl

Cost: C = 32,768 rollouts, 64 steps of 512, of at most 1,024 tokens each; what that takes on which accelerators says
--dry_run, before anything is run (docs/plan.md). The tiny model's four steps take about a minute on a busy laptop.

The defaults, and why:

- 16 rollouts of each of 32 problems: the n of the field's recipes (docs/first_run.md, by model and by problems); fewer
  problems than 32 are refused, and want a smaller --config.problems_per_batch;
- the learning rate of RunConfig, 1e-6 x sqrt(B / 1,024), as the IsoCompute Playbook has it;
- prompts up to 512 tokens and answers up to 1,024; a longer prompt is refused, and a longer answer is cut off
  (`truncation_rate` in metrics.jsonl says how many), so raise --config.sampling.max_tokens for models that think;
- rows of 4,096 tokens, into which rollouts are packed, and four of them computed at once (docs/real_models.md): for
  longer answers raise --config.packing.row_tokens to at least the longest prompt and answer together;
- the model computes in bfloat16, as published checkpoints are; master weights and moments are float32;
- on-policy, sampled in the learner's process, on one device; --config.mesh.fsdp=8 takes eight.
"""

from isocompute_jax.experiment.config import (
    ComputeConfig,
    PackingConfig,
    RecipeConfig,
    RunConfig,
    SamplingConfig,
)

ROW_TOKENS = 4096


def get_config() -> RunConfig:
    """The config; every field can be overridden with --config.FIELD=VALUE."""
    return RunConfig(
        group_size=16,
        problems_per_batch=32,
        max_compute=2**15,
        dtype="bfloat16",
        sampling=SamplingConfig(max_prompt_tokens=512, max_tokens=1024),
        packing=PackingConfig(row_tokens=ROW_TOKENS),
        compute=ComputeConfig(remat="dots"),
        recipe=RecipeConfig(microbatch_tokens=4 * ROW_TOKENS),
    )
