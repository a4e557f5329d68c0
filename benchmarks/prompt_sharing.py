"""`python -m benchmarks.prompt_sharing`: updates on prompts read once for their rollouts, beside packed rows.

    python -m benchmarks.prompt_sharing                  # on this machine; ratios of times in one process
    python -m benchmarks.prompt_sharing --account        # FLOPs of a dense 8B model at real lengths; nothing is run

The padded layout reads a prompt once and fills completions up to the longest possible one; packed rows repeat the
prompt and fill nothing up. So rows compute less where max_tokens exceeds the mean completion by more than the prompt
has tokens (times 1 - 1/n). Each line is one case: tokens computed by both (`positions`), and times of the same update
in turns, the median of the rounds' ratios; above 1 packed rows are better. The model is the embedded one with random
weights. Completions are all of the longest length, or log-normal (sigma 1) with a median of a quarter of it.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from absl import flags

from benchmarks.shared import in_turns, print_head, print_row, random_group, spread
from isocompute_jax import app, learner, model
from isocompute_jax.records.rollout import RolloutGroup

PROBLEMS, LONGEST, ROW_TOKENS = 16, 64, 512

ROUNDS = flags.DEFINE_integer("rounds", 7, "Timed rounds of each case, after one that is not.", 1)
ACCOUNT = flags.DEFINE_bool("account", False, "FLOPs of a dense 8B model at real lengths, by the plan's account.")


@dataclasses.dataclass(frozen=True)
class Case:
    """Tokens of each prompt, rollouts of each, and whether lengths of completions have a tail."""

    prompt: int
    group_size: int
    tail: bool


CASES = [Case(prompt, n, tail) for tail in (False, True) for prompt in (8, 64, 256) for n in (4, 16)]


def main() -> None:
    """Flags -> one table."""
    if ACCOUNT.value:
        print_head(("prompt", "n", "padded FLOPs by packed ones", ""), left=(3,))
        for cells in account():
            print_row(*cells)
        return
    print(
        f"{PROBLEMS} problems, completions of at most {LONGEST} tokens, rows of {ROW_TOKENS}; above 1: packed is better"
    )
    print_head(("prompt", "n", "completions, mean", "positions", "time", "from .. to"), left=())
    for case in CASES:
        print_row(*cells_of(case))


def draw(case: Case) -> list[RolloutGroup]:
    """Groups of random tokens."""
    rng = np.random.default_rng(0)
    lengths = np.full((PROBLEMS, case.group_size), LONGEST)
    if case.tail:
        drawn = np.ceil(rng.lognormal(np.log(LONGEST / 4), 1.0, lengths.shape))
        lengths = np.minimum(drawn, LONGEST).astype(int)

    vocabulary = model.EMBEDDED.vocab_size
    return [
        random_group(rng, str(i), case.prompt, row.tolist(), vocabulary=vocabulary) for i, row in enumerate(lengths)
    ]


def cells_of(case: Case) -> tuple[str, ...]:
    """Both layouts of one case."""
    groups = draw(case)
    sizes: dict[str, Any] = dict(
        problems_per_batch=PROBLEMS,
        group_size=case.group_size,
        max_prompt_tokens=case.prompt,
        max_tokens=LONGEST,
        microbatch_tokens=2 * ROW_TOKENS,
    )
    padded = learner.batch_shape(**sizes).lay_out(groups)
    packed = learner.pack_shape(**sizes, row_tokens=ROW_TOKENS).lay_out(groups)
    rows = int(padded.num_microbatches) * padded.tokens.shape[1]
    positions = rows * (case.prompt + padded.tokens.shape[2] * LONGEST)
    of_rows = int(packed.num_microbatches) * packed.tokens.shape[1] * ROW_TOKENS
    ratios = times(case, padded, packed)
    mean = float(learner.trained_lengths(groups).mean())
    found = (f"{mean:.0f}", f"{positions / of_rows:.2f}", f"{statistics.median(ratios):.2f}", spread(ratios))
    return f"{case.prompt}", f"{case.group_size}", *found


def times(case: Case, padded: learner.TokenBatch, packed: learner.PackedBatch) -> list[float]:
    """The padded layout's time by the packed one's, of each round."""
    config = dataclasses.replace(model.EMBEDDED, max_positions=case.prompt + LONGEST)
    optimizer = learner.make_optimizer(learner.OptimizerConfig())
    state = learner.init_state(model.init_params(config, jax.random.key(0)), optimizer)
    score = learner.make_score(config, temperature=1.0, chunk_tokens=None)
    step: Any = learner.make_train_step(score, learner.LossConfig(), optimizer)
    advantages = np.where(np.arange(case.group_size) % 2, 1.0, -1.0) * np.ones((PROBLEMS, 1))
    weights = np.full(advantages.shape, 1 / np.asarray(padded.mask).sum())
    credited = learner.Credit(*(x.astype(np.float32) for x in (advantages, weights, weights)))

    def update(batch: learner.Batch) -> None:
        jax.block_until_ready(step(state, batch, credited, 1e-6))

    seconds = in_turns({"padded": lambda: update(padded), "packed": lambda: update(packed)}, ROUNDS.value)
    return [one / other for one, other in zip(seconds["padded"], seconds["packed"], strict=True)]


def account() -> Iterator[tuple[str, str, str, str]]:
    """What the plan counts for Llama 3.1 8B: completions of at most 14k tokens, log-normal with a median of 2k."""
    from isocompute_jax.experiment.config import PackingConfig, PlanConfig, RecipeConfig, RunConfig, SamplingConfig
    from isocompute_jax.experiment.inputs import model_config_of
    from isocompute_jax.experiment.layouts import shape_of
    from isocompute_jax.model.flops import step_flops
    from isocompute_jax.plan.work import lengths_of, work_of

    for prompt in (512, 2048, 8192, 16_384):
        for n in (4, 16):
            computed = []
            for row_tokens in (0, prompt + 14_336):
                config = RunConfig(
                    model="configs/models/llama-3.1-8b",
                    train_set="none",
                    group_size=n,
                    problems_per_batch=64,
                    max_compute=64 * n,
                    dtype="bfloat16",
                    recipe=RecipeConfig(microbatch_tokens=n * 14_336),  # whole groups: else prompts are not shared
                    sampling=SamplingConfig(max_prompt_tokens=prompt, max_tokens=14_336),
                    packing=PackingConfig(row_tokens),
                    plan=PlanConfig(median_tokens=2048, prompt_tokens=prompt),
                ).resolved()
                shape_of_model = model_config_of(config)
                shape = shape_of(config, shape_of_model, 64, n, None)
                work = work_of(config, shape, lengths_of(config), shape_of_model)
                computed.append(step_flops(shape_of_model, work).computed)
            mean = lengths_of(config).mean
            saved = 14_336 - mean > prompt * (1 - 1 / n)
            yield (
                f"{prompt:,}",
                f"{n}",
                f"{computed[0] / computed[1]:.2f}",
                f"the rule: {'packed' if saved else 'padded'}",
            )


if __name__ == "__main__":
    app.run(main)
