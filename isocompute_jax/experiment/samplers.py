"""Which sampler a run uses: its own process, or the service that the config names."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Literal

from jax.sharding import Mesh

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.evaluate import LANE as EVALUATION
from isocompute_jax.experiment.turns import make_turns
from isocompute_jax.model import ModelConfig, Params
from isocompute_jax.sampling import InProcessSampler, Sampler
from isocompute_jax.sampling.turns import TurnSampler
from isocompute_jax.tasks import Tokenizer


def make_sampler(
    config: RunConfig,
    model_config: ModelConfig,
    params: Params,
    *,
    workdir: str | os.PathLike[str],
    tokenizer: Tokenizer,
    mesh: Mesh | None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Sampler:
    """The sampler of a run; it serves nothing before the first `update_weights`.

    Args:
      config: the run.
      model_config: model shape.
      params: weights for the sampler in this process, until it is given others.
      workdir: the run's directory, whose path names the run to servers.
      tokenizer: knows the tokens that end a completion.
      mesh: the learner's, which the sampler in this process shares.
      interrupted: whether the user wants the run to end.

    Raises:
      InputError: a field of `config.service` or `config.sampling` cannot work.
      RunError: another learner of this run is alive.
    """
    sampling, turns = config.sampling, make_turns(config.sampling, tokenizer)
    if config.service.endpoints:
        # Here, because gRPC is needed by nobody else.
        from isocompute_jax.service.client.fleet import RemoteSampler

        sampler: Sampler = RemoteSampler(
            config.service,
            model_config,
            session=str(pathlib.Path(workdir).resolve()),
            in_flight=in_flight(config),
            routing=config.loss.routing != "own",
            turn_tokens=0 if turns is None else sampling.max_prompt_tokens + sampling.max_tokens,
            interrupted=interrupted,
        )
    else:
        sampler = InProcessSampler(
            model_config,
            params,
            pad_token=tokenizer.pad_id,
            max_prompt_tokens=sampling.max_prompt_tokens,
            max_continued_tokens=0 if turns is None else sampling.max_prompt_tokens + turns.continued_tokens,
            max_rollouts_per_dispatch=sampling.max_rollouts_per_dispatch,
            mesh=mesh,
            routing=config.loss.routing != "own",
            round_below=config.problems_per_batch if config.curriculum.varies else 0,
        )
    if turns is None:
        return sampler
    single = () if sampling.thinking.evaluation else (EVALUATION,)
    return TurnSampler(sampler, turns, single=single, background=bool(config.service.endpoints))


def in_flight(config: RunConfig) -> Literal["abort", "wait", "continue", "recompute"]:
    """What becomes of rollouts that are being drawn when new weights arrive; on-policy and in phases there are none."""
    if not config.max_staleness or config.asynchrony == "phases":
        return "abort"
    if config.asynchrony == "boundary":
        return "wait"
    return "recompute" if config.service.recompute_cache else "continue"
