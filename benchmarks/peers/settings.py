"""The settings that are compared, each made into a checkpoint, problems and a `Job`."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import jax
import numpy as np

from benchmarks import throughput
from benchmarks.peers.job import Job
from isocompute_jax import model
from isocompute_jax.model import ModelConfig
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import load_tokenizer, save_arithmetic_tokenizer, write_problems

TWENTY_MILLION = ModelConfig(
    vocab_size=8192,
    embed_dim=384,
    num_layers=6,
    num_heads=6,
    num_kv_heads=2,
    head_dim=64,
    mlp_dim=2048,
    tied_embeddings=True,
    rope_theta=10_000.0,
    norm_eps=1e-6,
    max_positions=512,
)
"""19.7 M parameters."""

SMOLLM2 = ModelConfig(
    vocab_size=49_152,
    embed_dim=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    mlp_dim=1536,
    tied_embeddings=True,
    rope_theta=100_000.0,
    norm_eps=1e-5,
    max_positions=8192,
)
"""The sizes of SmolLM2-135M, as a Qwen2, which all three have."""

SMOKE = dataclasses.replace(model.EMBEDDED, vocab_size=64)
"""Says nothing of speed: whether everything still runs."""

BIAS = 0.5
"""Of the first entry of every embedding; that of the ids that are never drawn is minus ten times as much."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A model, and the steps it is measured in."""

    shape: ModelConfig  # the model's
    prompt: int  # longest prompt, in tokens
    completion: int  # longest completion, in tokens
    rollouts: int  # of a step
    group_sizes: tuple[int, ...]  # n, by default
    warmup: int  # steps that are not timed
    steps: int  # timed steps of each run


SETTINGS = {
    "tiny": Setting(model.EMBEDDED, 9, 9, 512, (16, 64), 10, 30),
    "20m": Setting(TWENTY_MILLION, 32, 256, 32, (8,), 2, 3),
    "135m": Setting(SMOLLM2, 48, 64, 64, (8,), 1, 2),
    "smoke": Setting(SMOKE, 32, 8, 8, (4,), 1, 2),
}


def make_job(name: str, setting: Setting, root: pathlib.Path, group_size: int) -> Job:
    """The job of a setting whose files `make_files` wrote to `root`."""
    return Job(
        model=str(root / "model"),
        problems=str(root / "problems.jsonl"),
        group_size=group_size,
        problems_per_batch=max(1, setting.rollouts // group_size),
        max_prompt_tokens=setting.prompt,
        max_tokens=setting.completion,
        warmup=setting.warmup,
        steps=setting.steps,
        directory=str(root / f"{name}-{group_size}"),
    )


def make_files(name: str, setting: Setting, root: pathlib.Path) -> None:
    """Writes `model`, with its tokenizer, and `problems.jsonl`."""
    root.mkdir(parents=True, exist_ok=True)
    if name == "tiny":
        throughput.make_model("embedded", root)
    else:
        make_random(setting.shape, root, seed=0, prompt_tokens=setting.prompt)


def mean_prompt(job: Job) -> float:
    """Mean tokens of a job's prompts."""
    encoded = load_tokenizer(job.model).encode_batch([problem["prompt"] for problem in job.read_problems()])
    return float(np.mean([len(prompt) for prompt in encoded]))


def make_random(shape: ModelConfig, root: pathlib.Path, *, seed: int, prompt_tokens: int) -> None:
    """Random weights that never end a completion, and prompts of so many digits, a token each.

    No framework is asked to forbid anything: the first entry of every embedding is BIAS, so that it is positive in
    the final hidden state too, and that of the ids that end or pad a sequence is -10 BIAS. As the head is the embedding
    table, their logits lie so far below the others' that they are never drawn.
    """
    save_tokenizer(root / "tokenizer", shape.vocab_size)
    tokenizer = load_tokenizer(root / "tokenizer")
    params = model.init_params(shape, jax.random.key(seed))
    never = np.array([*tokenizer.eos_ids, tokenizer.pad_id, shape.vocab_size - 1])
    params["embed"] = params["embed"].at[:, 0].set(BIAS).at[never, 0].set(-10 * BIAS)
    model.save_checkpoint(root / "model", shape, params, tokenizer_from=root / "tokenizer")
    random = np.random.default_rng(seed)
    prompts = ["".join(map(str, random.integers(0, 10, prompt_tokens))) for _ in range(256)]
    write_problems(root / "problems.jsonl", [Problem(f"p{i}", text, "1", "exact") for i, text in enumerate(prompts)])


FIRST = 0x20000
"""Of the characters that fill the vocabulary up: some ten thousands follow, each a character."""


def save_tokenizer(directory: pathlib.Path, size: int) -> None:
    """The embedded task's tokenizer, a token for each character, and as many more characters as make `size` tokens.

    One id is left over: to a tokenizer beside a config.json that says "qwen2", transformers adds <|endoftext|>.
    """
    save_arithmetic_tokenizer(directory)
    path = directory / "tokenizer.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = saved["model"]["vocab"]
    vocabulary.update({chr(FIRST + i): i for i in range(len(vocabulary), size - 1)})
    path.write_text(json.dumps(saved, ensure_ascii=False), encoding="utf-8")
