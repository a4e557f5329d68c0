"""`python -m benchmarks.curation_memory`: peak memory of curation against the number of problems.

    python -m benchmarks.curation_memory                      # 10,000 and 50,000 problems x 16 rollouts; a few minutes
    python -m benchmarks.curation_memory --keep_completions   # and their texts on disk

Each line is a curation in a process of its own: it reads the problems, draws and grades every rollout, records it, cuts
sets and draws the pictures. Only the sampler is simulated (`simulated_sampler`), and out-runs any real one: the rate is
what recording and grading allow. Peak memory is the whole process's, libraries included; `at start` is what it holds
before it reads the first problem.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import pathlib
import tempfile
import time
from typing import Any

from absl import flags

from benchmarks.shared import peak_mib, print_head, print_row
from isocompute_jax import app

PROBLEMS = flags.DEFINE_list("problems", ["10000", "50000"], "Numbers of problems.")
SAMPLES = flags.DEFINE_integer("samples", 16, "Rollouts of each.", 1)
LENGTH = flags.DEFINE_integer("length", 32, "Median length of completions, in tokens.", 1)
PROMPT_TOKENS = flags.DEFINE_integer("prompt_tokens", 256, "Length of prompts, in tokens; a token is a character.", 8)
KEEP = flags.DEFINE_bool("keep_completions", False, "Keep the texts, too.")


def main() -> None:
    """Flags -> table."""
    print_head(("problems", "rollouts", "rollouts/s", "MiB at start", "peak MiB", "MiB of files"), left=())
    settings = {
        "samples": SAMPLES.value,
        "length": LENGTH.value,
        "prompt_tokens": PROMPT_TOKENS.value,
        "keep_completions": KEEP.value,
    }
    for number in map(int, PROBLEMS.value):
        with tempfile.TemporaryDirectory() as directory:
            root = pathlib.Path(directory)
            write_problems(root / "problems.jsonl", number, PROMPT_TOKENS.value)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found = pool.apply(measure, (root,), settings)
            size = sum(path.stat().st_size for path in (root / "out").rglob("*") if path.is_file())
        rollouts = number * SAMPLES.value
        memory = (f"{found['start_mib']:.0f}", f"{found['peak_mib']:.0f}", f"{size / 2**20:.0f}")
        print_row(f"{number:,}", f"{rollouts:,}", f"{rollouts / found['seconds']:,.0f}", *memory)


def write_problems(path: pathlib.Path, number: int, prompt_tokens: int) -> None:
    """Problems whose answer is 1, each with a prompt of its own."""
    with open(path, "w", encoding="utf-8") as file:
        for i in range(number):
            prompt = f"{i}+".rjust(prompt_tokens - 1, "9") + "="
            file.write(json.dumps({"id": f"p{i}", "prompt": prompt, "answer": "1", "task": "numeric"}) + "\n")


def measure(
    root: pathlib.Path, *, samples: int, length: int, prompt_tokens: int, keep_completions: bool
) -> dict[str, float]:
    """One curation in this process: seconds, and peak resident memory in MiB."""
    from benchmarks.simulated_sampler import SimulatedSampler
    from benchmarks.small_runs import save_model
    from isocompute_jax import model, tasks
    from isocompute_jax.experiment.config import RunConfig, SamplingConfig
    from isocompute_jax.experiment.curation.config import CurationConfig
    from isocompute_jax.experiment.curation.curate import curate

    tasks.save_arithmetic_tokenizer(root / "tokenizer")
    shape = dataclasses.replace(model.EMBEDDED, max_positions=prompt_tokens + 4 * length)
    save_model(root / "model", shape, root / "tokenizer")
    tasks.load_tokenizer(root / "model")
    before, start = peak_mib(), time.perf_counter()

    def simulated(*_: Any, tokenizer: tasks.Tokenizer, **__: Any) -> SimulatedSampler:
        return SimulatedSampler(tokenizer, length=length)

    curate(
        tasks.ProblemFile(root / "problems.jsonl"),
        root / "out",
        source=RunConfig(
            model=str(root / "model"), sampling=SamplingConfig(max_prompt_tokens=prompt_tokens, max_tokens=4 * length)
        ),
        config=CurationConfig(samples=samples, keep_completions=keep_completions),
        make_sampler=simulated,
    )
    return {"seconds": time.perf_counter() - start, "start_mib": before, "peak_mib": peak_mib()}


if __name__ == "__main__":
    app.run(main)
