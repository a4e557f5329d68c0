"""What a study runs: presets, each a base model, a curation and a list of slices through (n, B_problem, ...).

The learning rate is one for all batch sizes, except where a slice asks otherwise. Tried on Hard beside 2.5e-4, to 2^18
rollouts: at 5e-4 (100 warm-up steps, three seeds) avg@4 ends at 0.78 to 0.85 instead of 0.82 to 0.94; at 7e-4 (one
seed) n = 2 and n = 4 collapse.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from isocompute_jax.devices import multiplies_bfloat16
from isocompute_jax.experiment.config import EvaluationConfig, RecipeConfig, RunConfig, SamplingConfig
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.learner import OptimizerConfig
from isocompute_jax.options import check, described, option
from isocompute_jax.records.errors import InputError
from isocompute_jax.study.base_model import BaseModelConfig
from isocompute_jax.sweeps.grid import fixed_rollouts_per_step
from isocompute_jax.tasks import PromptConfig
from isocompute_jax.tasks.problem_sets import is_generated


@dataclasses.dataclass(frozen=True)
class Slice:
    """One question asked of one problem set: a sweep and its analysis."""

    name: str  # directory below `runs/` and `report/`
    question: str  # what it asks, for the report
    problem_set: str  # a set or mixture of the curation
    axes: Mapping[str, Sequence[Any]]  # swept fields of the run config
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # fields that differ from `base_run`
    # further sets whose held-out problems every run is evaluated on, each under its name
    evaluated: tuple[str, ...] = ()
    # further runs, one of each seed, that set n themselves: fields that they have beside the overrides; none if empty
    scheduled: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Preset:
    """A study."""

    # problems that the base model is taught on (with the teacher's errors), measured and cut into sets; 0 in a study of
    # somebody's own
    num_problems: int
    # the base model's supervised phase; None where the model is there already, as `run.model`
    base: BaseModelConfig | None
    curation: CurationConfig  # how the sets are cut
    run: RunConfig  # config that every slice starts from; its paths are filled in by the study
    slices: tuple[Slice, ...]  # what is asked
    problems: str = ""  # problem set to measure and cut; empty where the study makes its own, for its base model


def embedded_run(*, max_compute: int, points: int, samples: int, first: int = 2048) -> RunConfig:
    """The run that the embedded model is trained with, before a slice's overrides; evaluated from C = `first` on."""
    return RunConfig(
        max_compute=max_compute,
        checkpoint_every_s=30.0,
        # Micro-batches of 16 rollouts: as fast as larger ones, and groups without signal cost less.
        recipe=RecipeConfig(healthy="none", microbatch_tokens=144),
        optimizer=OptimizerConfig(base_lr=2.5e-4, base_batch=64, lr_scaling_exponent=0.0),
        evaluation=EvaluationConfig(samples=samples, points=points, first_compute=first),
    )


def from_seed(preset: Preset, first: int) -> Preset:
    """The same study with other seeds: `first` is added to those of every slice."""

    def moved(part: Slice) -> Slice:
        return dataclasses.replace(part, axes={**part.axes, "seed": tuple(first + seed for seed in part.axes["seed"])})

    return dataclasses.replace(preset, slices=tuple(moved(part) for part in preset.slices))


HARD = Slice(
    name="hard",
    question="Hard problems, 8 problems per batch: how many rollouts per problem at which budget?",
    problem_set="hard",
    axes={"group_size": (2, 4, 8, 16, 32), "seed": (0, 1, 2)},
    overrides={"recipe.healthy": "hard"},
)

SIZES = (4, 8, 16, 32, 64, 128)
"""Group sizes of the slices with few problems."""


def scarce(
    problems: int,
    name: str = "",
    question: str = "",
    *,
    problem_set: str = "hard",
    sizes: Sequence[int] = SIZES,
    evaluated: tuple[str, ...] = (),
    fields: Mapping[str, Any] = MappingProxyType({}),
) -> Slice:
    """Few training problems: small groups see each more often at the same compute, and learn it by heart sooner.

    Args:
      problems: D.
      name: of the slice; problems_D if empty.
      question: what it asks, where it differs in more than D.
      problem_set: what it trains on.
      sizes: n that are compared.
      evaluated: see `Slice`.
      fields: of the config, that differ.
    """
    return Slice(
        name=name or f"problems_{problems}",
        question=question
        or f"Only {problems} training problems, 8 per batch: how far does n* rise before over-fitting ends it?",
        problem_set=problem_set,
        axes={"group_size": sizes, "seed": (0, 1, 2, 3, 4)},
        overrides={"recipe.healthy": "hard", "problem_set_size": problems, "max_compute": 2**17, **fields},
        evaluated=evaluated,
    )


AUTO: Mapping[str, Any] = {"group_size": SIZES[0], "schedule.group_size": "auto"}
"""Of a run that decides by itself when n grows (`allocation.auto`)."""

SMOKE = Preset(
    num_problems=512,
    base=BaseModelConfig(steps=120),
    curation=CurationConfig(sets=("hard",), validation_size=48),
    run=embedded_run(max_compute=2048, points=4, samples=4),
    slices=(dataclasses.replace(HARD, axes={"group_size": (4, 16), "seed": (0, 1)}),),
)

QUICK = Preset(
    num_problems=5120,
    base=BaseModelConfig(),
    curation=CurationConfig(sets=("easy", "hard"), validation_size=300),
    # Small groups peak early: with fifteen evaluations from 2,048 on, n = 4 had six before its peak, which tell little.
    run=embedded_run(max_compute=2**18, points=20, samples=8, first=1024),
    # Few enough to be learned by heart, which is what tells group sizes apart (docs/findings.md). Three seeds of three
    # n take as long as two of six, which tied from early on. Beside the sweep one run of each seed that needs no sweep.
    slices=(dataclasses.replace(scarce(64), axes={"group_size": (4, 16, 64), "seed": (0, 1, 2)}, scheduled=AUTO),),
)

FULL = dataclasses.replace(
    QUICK,
    run=embedded_run(max_compute=2**18, points=15, samples=8),  # as in the recorded sweeps (gallery/)
    curation=CurationConfig(
        sets=("easy", "hard"), mixtures={"mixture": {"easy": 0.5, "hard": 0.5}}, validation_size=300
    ),
    slices=(
        dataclasses.replace(
            HARD,
            name="hard_b2",
            question="All Hard problems, 2 per batch, four times the budget: does n* rise where problems are many?",
            axes={"group_size": (4, 8, 16), "seed": (0,)},
            overrides={"recipe.healthy": "hard", "problems_per_batch": 2, "max_compute": 2**19},
        ),
        *(scarce(size) for size in (16, 64, 256)),
        scarce(
            64, "batch_2", "64 problems, 2 per batch: does n* depend on B_problem?", fields={"problems_per_batch": 2}
        ),
        scarce(
            64,
            "batch_32",
            "The same with 32 per batch, half of all.",
            sizes=SIZES[:-1],
            fields={"problems_per_batch": 32},
        ),
        scarce(64, "rate_half", "64 problems at half the learning rate.", fields={"optimizer.base_lr": 1.25e-4}),
        scarce(64, "rate_sqrt", "64 problems, rate as sqrt(B).", fields={"optimizer.lr_scaling_exponent": 0.5}),
        scarce(64, "rate_linear", "64 problems, rate as B.", fields={"optimizer.lr_scaling_exponent": 1.0}),
        scarce(
            64,
            "keep_64",
            "64 problems, groups without signal kept in the loss's denominator: does n* change?",
            fields={"recipe.zero_variance_groups": "keep"},
        ),
        scarce(64, "easy_64", "64 Easy problems: does n* saturate above that of Hard?", problem_set="easy"),
        *(
            scarce(
                64,
                f"terms_{name}",
                f"64 {name.title()} problems with KL and entropy terms: do they help?",
                problem_set=name,
                sizes=(8, 32),
                fields={"recipe.healthy": "easy"},
            )
            for name in ("easy", "hard")
        ),
        *(
            scarce(
                64,
                f"strong_{name}",
                f"64 {name.title()} problems with KL and entropy terms thirty times as strong as the healthy recipe's.",
                problem_set=name,
                sizes=(8, 32),
                fields={"recipe.healthy": "none", "loss.kl_coef": 0.03, "loss.entropy_coef": 0.03},
            )
            for name in ("easy", "hard")
        ),
        *(
            scarce(
                64,
                f"crossed_{name}",
                f"64 {name.title()} problems, evaluated on Easy and Hard: what is forgotten?",
                problem_set=name,
                sizes=(4, 16, 64),
                evaluated=("easy", "hard"),
            )
            for name in ("hard", "mixture")
        ),
        scarce(
            64,
            "late",
            "64 problems, twice the budget, larger groups: does n* saturate?",
            sizes=(32, 64, 128, 256),
            fields={"max_compute": 2**18},
        ),
        dataclasses.replace(
            scarce(64, "steps_64", "64 problems, 128 rollouts per step: n against the number of steps M."),
            axes={**fixed_rollouts_per_step(128, SIZES[:-1]), "seed": (0, 1, 2, 3, 4)},
        ),
    ),
)

OTHER_BASE = dataclasses.replace(
    QUICK,
    run=FULL.run,
    base=BaseModelConfig(steps=600),
    slices=(scarce(64, "base_600", "A base model taught for half as long: is n* another one?"),),
)

OTHER_SIZE = dataclasses.replace(
    QUICK,
    run=FULL.run,
    base=BaseModelConfig(width=2),
    slices=(scarce(64, "wide_64", "A base model twice as wide: is n* another one?", sizes=(4, 16, 64)),),
)

SMOLLM = "runs/SmolLM2-135M-Instruct"
"""Where `make smollm` leaves the published model."""


def llm_run(*, max_compute: int, points: int, longest_prompt: int = 96) -> RunConfig:
    """The run that SmolLM2-135M is trained with: a chat, answers of up to 16 tokens, 8 problems a batch.

    In bfloat16 where the processor has products of it, which halves a step; master weights are float32 either way.

    The rate is 3e-5 for 64 rollouts and scaled by sqrt(B): at 1e-5 two thousand rollouts took held-out reward from 0.04
    to 0.12, at 3e-5 to 0.3.
    """
    return RunConfig(
        model=SMOLLM,
        prompts=PromptConfig(chat_template="on"),
        max_compute=max_compute,
        dtype="bfloat16" if multiplies_bfloat16() else "float32",
        checkpoint_every_s=300.0,  # each has 1.6 GB
        # 16 rollouts at a time: groups without signal, which are most of them at first, cost no products.
        recipe=RecipeConfig(healthy="none", microbatch_tokens=256),
        sampling=SamplingConfig(max_prompt_tokens=longest_prompt, max_tokens=16),
        optimizer=OptimizerConfig(base_lr=3e-5, base_batch=64, lr_scaling_exponent=0.5),
        evaluation=EvaluationConfig(samples=4, points=points, first_compute=min(512, max_compute // 2)),
    )


def words(sizes: Sequence[int], seeds: Sequence[int]) -> Slice:
    """A published language model on problems in words that it solves at times."""
    return Slice(
        name="words",
        question="SmolLM2-135M on arithmetic in words: how many rollouts per problem at which budget?",
        problem_set="solvable",
        axes={"group_size": sizes, "seed": seeds},
        scheduled=AUTO,
    )


LLM = Preset(
    num_problems=0,
    base=None,
    # Of Hard, at most one answer in 16 is right: groups of 4 learn nothing there within such a budget.
    curation=CurationConfig(sets=(), ranges={"solvable": (1 / 16, 0.9)}, validation_size=64),
    run=llm_run(max_compute=3072, points=8, longest_prompt=64),
    slices=(words((4, 16, 64), (0,)),),
    problems="words:640",
)

LLM_RECORD = dataclasses.replace(LLM, slices=(words((4, 8, 16, 64), (0, 1, 2)),))
"""Its runs of seed 0 are those of `LLM`."""

LLM_SMOKE = dataclasses.replace(
    LLM,
    curation=dataclasses.replace(LLM.curation, validation_size=8),
    # float32 on every processor, so that any two samplers agree to rounding
    run=dataclasses.replace(llm_run(max_compute=256, points=2, longest_prompt=64), dtype="float32"),
    slices=(dataclasses.replace(words((4, 16), (0,)), scheduled={}),),
    problems="words:96",
)

PRESETS = {
    "smoke": SMOKE,
    "quick": QUICK,
    "full": FULL,
    "other_base": OTHER_BASE,
    "other_size": OTHER_SIZE,
    "llm": LLM,
    "llm_record": LLM_RECORD,
    "llm_smoke": LLM_SMOKE,
}


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
    if not os.path.exists(model):
        raise InputError(f"--model={model}: there is no such directory")
    if not is_generated(problems):
        if not os.path.exists(problems):
            raise InputError(f"--problems={problems}: there is no such file")
        problems = os.path.abspath(problems)
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
        problems=problems,
    )
