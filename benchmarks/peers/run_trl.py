"""`python -m benchmarks.peers.run_trl JOB.json`, where TRL is installed: its GRPOTrainer on torch; prints `Timed`."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any

import torch
import transformers
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.utils import logging
from trl import __version__ as trl_version
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.peers.clock import Clock
from benchmarks.peers.job import Job, Timed, cores, exact, read_job


def run(job: Job) -> Timed:
    """Trains with TRL; phases are those of its own methods."""
    logging.disable_progress_bar()
    torch.set_num_threads(cores())
    clock, trained = Clock(), job.rollouts // job.passes

    class Trainer(GRPOTrainer):
        def _generate(self, prompts: Any) -> Any:
            with clock.phase("sampling"):
                return super()._generate(prompts)

        def _calculate_rewards(self, *arguments: Any, **named: Any) -> Any:
            with clock.phase("grading"):
                return super()._calculate_rewards(*arguments, **named)

        def compute_loss(self, *arguments: Any, **named: Any) -> Any:
            with clock.phase("update"):
                return super().compute_loss(*arguments, **named)

    class Steps(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            self.start = time.perf_counter()

        def on_optimizer_step(self, *_: Any, **__: Any) -> None:
            clock.add("update", time.perf_counter() - self.start)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.end_step()

    def reward(
        completions: list[str], answer: list[str], completion_ids: list[list[int]], **_: Any
    ) -> list[float | None]:
        rewards = exact(completions, answer)
        clock.sampled([len(ids) for ids in completion_ids])
        clock.graded(rewards)
        return [*rewards]

    network: Any = AutoModelForCausalLM.from_pretrained(job.model, dtype=getattr(torch, job.dtype))
    trainer = Trainer(
        model=network,
        processing_class=AutoTokenizer.from_pretrained(job.model),
        reward_funcs=reward,
        train_dataset=Dataset.from_list(job.read_problems()),
        callbacks=[Steps()],
        args=GRPOConfig(
            output_dir=job.directory,
            use_cpu=True,
            bf16=job.dtype == "bfloat16",
            max_steps=job.warmup + job.steps,
            num_generations=job.group_size,
            per_device_train_batch_size=trained,
            gradient_accumulation_steps=job.passes,
            max_completion_length=job.max_tokens,
            temperature=1.0,
            beta=0.0,
            learning_rate=1e-5,
            lr_scheduler_type="constant",
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )
    trainer.accelerator.backward = _timed(clock, trainer.accelerator.backward)
    trainer.accelerator.clip_grad_norm_ = _timed(clock, trainer.accelerator.clip_grad_norm_)
    trainer.train()
    versions = f"TRL {trl_version}, transformers {transformers.__version__}, torch {torch.__version__}"
    return clock.timed(job.warmup, versions)


def _timed(clock: Clock, function: Any) -> Any:
    def timed(*arguments: Any, **named: Any) -> Any:
        with clock.phase("update"):
            return function(*arguments, **named)

    return timed


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(run(read_job(sys.argv[1])))))
