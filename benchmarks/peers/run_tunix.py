"""`python -m benchmarks.peers.run_tunix JOB.json`, where tunix is installed: its GRPOLearner; prints `Timed`."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from transformers import AutoTokenizer
from tunix.models.qwen2 import model as qwen2  # pyright: ignore[reportMissingImports]
from tunix.models.qwen2 import params  # pyright: ignore[reportMissingImports]
from tunix.rl import rl_cluster  # pyright: ignore[reportMissingImports]
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner  # pyright: ignore[reportMissingImports]
from tunix.rl.rollout.base_rollout import RolloutConfig  # pyright: ignore[reportMissingImports]

from benchmarks.peers.clock import Clock
from benchmarks.peers.job import Job, Timed, exact, read_job


def run(job: Job) -> Timed:
    """Trains with tunix: its own Qwen2, loader, sampler and learner, all on one mesh, so that weights are shared."""
    clock = Clock()
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(-1, 1), ("fsdp", "tp"))
    with mesh:
        dtype = jnp.dtype(job.dtype)
        actor = params.create_model_from_safe_tensors(job.model, model_config(job.model), mesh, dtype=dtype)
    cluster = rl_cluster.RLCluster(
        actor=actor,
        tokenizer=AutoTokenizer.from_pretrained(job.model),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh={role: mesh for role in rl_cluster.Role},
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-5)),
                mini_batch_size=job.problems_per_batch,
                train_micro_batch_size=job.problems_per_batch // job.passes,
                rollout_micro_batch_size=job.problems_per_batch,
                max_steps=job.warmup + job.steps,
                eval_every_n_steps=10**9,
            ),
            rollout_config=RolloutConfig(
                max_tokens_to_generate=job.max_tokens,
                max_prompt_length=job.max_prompt_tokens,
                kv_cache_size=job.max_prompt_tokens + job.max_tokens,
                temperature=1.0,
                top_p=1.0,
                top_k=None,
            ),
        ),
    )
    generate, update = cluster.generate, cluster.update_actor
    updates = itertools.count(1)

    def timed_generate(*arguments: Any, **named: Any) -> Any:
        with clock.phase("sampling"):
            output = generate(*arguments, **named)
        clock.sampled([len(tokens) for tokens in output.tokens])
        return output

    def timed_update(*arguments: Any, **named: Any) -> None:
        with clock.phase("update"):
            update(*arguments, **named)
        if next(updates) % job.passes == 0:
            clock.end_step()

    class Learner(GRPOLearner):
        def _compute_rewards(self, *arguments: Any, **named: Any) -> Any:
            with clock.phase("grading"):
                return super()._compute_rewards(*arguments, **named)

    def reward(prompts: list[str], completions: list[str], answer: list[str], **_: Any) -> list[float]:
        rewards = exact(completions, list(answer))
        clock.graded(rewards)
        return rewards

    cluster.generate, cluster.update_actor = timed_generate, timed_update
    Learner(cluster, GRPOConfig(num_generations=job.group_size, beta=0.0), reward).train(batches(job))
    versions = f"tunix {importlib.metadata.version('google-tunix')}, jax {jax.__version__}"
    return clock.timed(job.warmup, versions)


def batches(job: Job) -> Iterator[dict[str, np.ndarray]]:
    """The problems of each step; shuffled, because their file begins with the short ones."""
    read = job.read_problems()
    problems = itertools.cycle([read[i] for i in np.random.default_rng(0).permutation(len(read))])
    for _ in range(job.warmup + job.steps):
        batch = list(itertools.islice(problems, job.problems_per_batch))
        yield {"prompts": np.array([x["prompt"] for x in batch]), "answer": np.array([x["answer"] for x in batch])}


def model_config(directory: str) -> Any:
    """The shape of the checkpoint, as tunix writes it."""
    read = json.loads((pathlib.Path(directory) / "config.json").read_text())
    rope = read.get("rope_parameters") or read
    return qwen2.ModelConfig(
        num_layers=read["num_hidden_layers"],
        vocab_size=read["vocab_size"],
        embed_dim=read["hidden_size"],
        hidden_dim=read["intermediate_size"],
        num_heads=read["num_attention_heads"],
        head_dim=read.get("head_dim") or read["hidden_size"] // read["num_attention_heads"],
        num_kv_heads=read["num_key_value_heads"],
        rope_theta=rope["rope_theta"],
        norm_eps=read["rms_norm_eps"],
        use_tied_embedding=read["tie_word_embeddings"],
    )


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(run(read_job(sys.argv[1])))))
