"""A study of somebody's own model and problems: curation, one sweep over n for each set, report."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from isocompute_jax.experiment.config import EvaluationConfig, RecipeConfig, RunConfig, SamplingConfig
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.learner import OptimizerConfig
from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import InputError
from isocompute_jax.study.presets import Preset, Slice


@described
@dataclasses.dataclass(frozen=True)
class OwnStudy:
    """What is swept; each field is a flag of its name."""

    group_sizes: tuple[int, ...] = option((4, 8, 16, 32, 64), "Rollouts per problem, n, that are compared.", low=2)
    seeds: int = option(2, "Seeds of each n.", low=1)

    def __post_init__(self) -> None:
        check(self, "--")
        if len(set(self.group_sizes)) < 2:
            raise InputError(f"--group_sizes={','.join(map(str, self.group_sizes))}: a study compares two or more")


def default_run() -> RunConfig:
    """Where no --config is given: short answers, the rate and its scaling of the IsoCompute Playbook, one device."""
    return RunConfig(
        max_compute=2**17,
        recipe=RecipeConfig(healthy="none"),
        sampling=SamplingConfig(max_prompt_tokens=512, max_tokens=1024),
        optimizer=OptimizerConfig(base_lr=1e-6, base_batch=1024, lr_scaling_exponent=0.5, warmup_steps=10),
        evaluation=EvaluationConfig(samples=4),
    )


def own_preset(run: RunConfig, *, model: str, problems: str, own: OwnStudy, curation: CurationConfig) -> Preset:
    """The study as a preset: one slice for each set, Easy with KL and entropy terms, Hard without (healthy recipes).

    Raises:
      InputError: a file is missing.
    """
    for flag, path in (("model", model), ("problems", problems)):
        if not os.path.exists(path):
            raise InputError(f"--{flag}={path}: there is no such {'directory' if flag == 'model' else 'file'}")
    sets: Sequence[str] = [*curation.sets, *curation.ranges, *curation.mixtures]
    if not sets:
        raise InputError("--sets is empty: a study sweeps over n on each of them, such as easy,hard")
    return Preset(
        num_problems=0,
        base=None,
        curation=curation,
        run=dataclasses.replace(run, model=os.path.abspath(model)),
        slices=tuple(
            Slice(
                name=name,
                question=f"{name.capitalize()} problems: how many rollouts per problem at which budget?",
                problem_set=name,
                axes={"group_size": own.group_sizes, "seed": tuple(range(own.seeds))},
                overrides={"recipe.healthy": name} if name in ("easy", "hard") else {},
            )
            for name in sets
        ),
        problems=os.path.abspath(problems),
    )
