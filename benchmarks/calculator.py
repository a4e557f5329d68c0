"""`python -m benchmarks.calculator`: GRPO teaches a tiny model to use a calculator, in two turns.

    python -m benchmarks.calculator --out=runs/calculator

A base model of 0.1 M parameters is shown sums of two numbers: now and then the calculator is called, mostly a number is
guessed. Then it is trained on other sums by what its last word is worth. The policy learns to write the call, which
ends its turn, and to take over what the calculator puts into the context; the context itself is never trained on. The
table has a line per evaluation: rollouts so far, the reward, and the share of rollouts that the calculator answered.
"""

from __future__ import annotations

import pathlib

from absl import flags

from isocompute_jax import app

OUT = flags.DEFINE_string("out", "runs/calculator", "Directory of the base model, the problems and the run.")
DIGITS = flags.DEFINE_integer("digits", 1, "Of the numbers that are added.", 1, 3)
BASE_STEPS = flags.DEFINE_integer("base_steps", 800, "Steps of supervised learning.", 1)
CALLS = flags.DEFINE_float("calls", 0.2, "Share of the demonstrations that call.", 0, 1)
ROLLOUTS = flags.DEFINE_integer("rollouts", 2**13, "Rollouts to train on.", 64)
SEED = flags.DEFINE_integer("seed", 0, "Of everything.", 0)


def main() -> None:
    """Base model, run, table."""
    from isocompute_jax.experiment.loop import train
    from isocompute_jax.records import run_files

    out = pathlib.Path(OUT.value)
    config = prepare(out, digits=DIGITS.value, base_steps=BASE_STEPS.value, calls=CALLS.value, seed=SEED.value)
    run = config(ROLLOUTS.value)
    train(run, out / "run")
    print("| rollouts | avg@4 | called | truncated |\n| --: | --: | --: | --: |")
    for line in run_files.read_lines(out / "run" / run_files.EVAL):
        cells = (line["avg@4"], line["interruption_rate"], line["truncation_rate"])
        print(f"| {line['compute']} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")


def prepare(out: pathlib.Path, *, digits: int, base_steps: int, calls: float, seed: int):
    """Tokenizer, problems and base model, unless they are there; returns rollouts -> the config of a run on them."""
    from isocompute_jax.experiment.base_model import BaseModelConfig, train_base_model
    from isocompute_jax.experiment.config import EvaluationConfig, RecipeConfig, RunConfig, SamplingConfig, ToolConfig
    from isocompute_jax.learner import OptimizerConfig
    from isocompute_jax.tasks import load_tokenizer, save_arithmetic_tokenizer, write_problems
    from isocompute_jax.tasks.calculator import LONGEST_ANSWER, Demonstrator, make_problems

    prompt = call = 2 * digits + 2
    longest = 2 * call + LONGEST_ANSWER
    problems = make_problems(min(10 ** (2 * digits), 10_000), seed=seed, digits=digits)
    cut = len(problems) * 4 // 5
    if not (out / "base" / "config.json").exists():
        save_arithmetic_tokenizer(out / "tokenizer")
        write_problems(out / "train.jsonl", problems[:cut])
        write_problems(out / "validation.jsonl", problems[cut:][:100])
        train_base_model(
            out / "base",
            BaseModelConfig(
                steps=base_steps,
                warmup_steps=base_steps // 10,
                max_prompt_tokens=prompt,
                max_tokens=longest,
                seed=seed,
            ),
            problems=problems[:cut],
            teacher=Demonstrator(calls),
            tokenizer=load_tokenizer(out / "tokenizer"),
            tokenizer_directory=out / "tokenizer",
        )

    def config(rollouts: int) -> RunConfig:
        return RunConfig(
            model=str(out / "base"),
            train_set=str(out / "train.jsonl"),
            group_size=8,
            problems_per_batch=8,
            max_compute=rollouts,
            seed=seed,
            sampling=SamplingConfig(
                max_prompt_tokens=prompt,
                max_tokens=longest,
                tool=ToolConfig(name="calculator", calls=1, call_tokens=call),
            ),
            recipe=RecipeConfig(healthy="none", microbatch_tokens=1024),
            optimizer=OptimizerConfig(base_lr=2.5e-4, base_batch=64, lr_scaling_exponent=0.0),
            evaluation=EvaluationConfig(
                sets={"validation": str(out / "validation.jsonl")}, samples=4, points=6, first_compute=1024
            ),
        )

    return config


if __name__ == "__main__":
    app.run(main)
