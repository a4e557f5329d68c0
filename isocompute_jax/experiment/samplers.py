"""Which sampler a run uses: its own process, or the service that the config names."""

from __future__ import annotations

import os
import pathlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Literal

from jax.sharding import Mesh

from isocompute_jax.distributed import Team, alone
from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.experiment.dispatch import device_of, rollouts_per_dispatch
from isocompute_jax.experiment.evaluate import LANE as EVALUATION
from isocompute_jax.experiment.fleet_file import FleetFile
from isocompute_jax.experiment.turns import make_turns
from isocompute_jax.model import ModelConfig, Params
from isocompute_jax.sampling import InProcessSampler, Sampler
from isocompute_jax.sampling.turns import TurnPolicy, TurnSampler
from isocompute_jax.sampling.units import Unit
from isocompute_jax.tasks import Tokenizer

DRAW = "draw"
"""What process 0 calls for where the mesh of several processes draws."""


def make_sampler(
    config: RunConfig,
    model_config: ModelConfig,
    params: Params,
    *,
    workdir: str | os.PathLike[str],
    tokenizer: Tokenizer,
    mesh: Mesh | None,
    interrupted: Callable[[], bool] = lambda: False,
    team: Team | None = None,
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
      team: the processes that share the mesh, of which the first draws; None for this one alone.

    Raises:
      InputError: a field of `config.service` or `config.sampling` cannot work.
      RunError: another learner of this run is alive.
    """
    turns, team = make_turns(config.sampling, tokenizer), team or alone()
    if config.service.remote:
        sampler = _of_service(config, model_config, pathlib.Path(workdir), turns, interrupted, team)
    else:
        sampler = _in_process(config, model_config, params, tokenizer.pad_id, turns, mesh, team)
    if turns is None or not team.leads:
        return sampler
    single = () if config.sampling.thinking.evaluation else (EVALUATION,)
    return TurnSampler(sampler, turns, single=single, background=config.service.remote)


def _of_service(
    config: RunConfig,
    model_config: ModelConfig,
    workdir: pathlib.Path,
    turns: TurnPolicy | None,
    interrupted: Callable[[], bool],
    team: Team,
) -> Sampler:
    """Process 0 samples from the servers; the others send them their shares of the weights."""
    # Here, because gRPC is needed by nobody else.
    from isocompute_jax.service.client.dispatch import IN_FLIGHT
    from isocompute_jax.service.client.fleet import RemoteSampler
    from isocompute_jax.service.client.shares import ShareSender

    run = {"session": str(workdir.resolve()), "start": team.broadcast(lambda: secrets.token_hex(16)), "team": team}
    if not team.leads:
        return ShareSender(config.service, model_config, in_flight=IN_FLIGHT[in_flight(config)], **run)
    return RemoteSampler(
        config.service,
        model_config,
        in_flight=in_flight(config),
        routing=config.loss.routing != "own",
        turn_tokens=0 if turns is None else config.sampling.max_prompt_tokens + config.sampling.max_tokens,
        interrupted=interrupted,
        report=FleetFile(workdir),
        **run,
    )


def _in_process(
    config: RunConfig,
    model_config: ModelConfig,
    params: Params,
    pad_token: int,
    turns: TurnPolicy | None,
    mesh: Mesh | None,
    team: Team,
) -> Sampler:
    """Every process draws what process 0 is asked for, on the mesh that they share."""
    sampling = config.sampling

    def announce(*unit: Any) -> None:
        team.call(DRAW, *unit)
        team.arrive()

    def draw(unit: Sequence[Any], *rest: Any) -> None:
        team.arrive()
        sampler.draw(Unit(*unit), *rest)

    sampler = InProcessSampler(
        model_config,
        params,
        pad_token=pad_token,
        max_prompt_tokens=sampling.max_prompt_tokens,
        max_continued_tokens=0 if turns is None else sampling.max_prompt_tokens + turns.continued_tokens,
        max_rollouts_per_dispatch=rollouts_per_dispatch(config, model_config, mesh, device_of(mesh)),
        mesh=mesh,
        routing=config.loss.routing != "own",
        round_below=config.problems_per_batch if config.curriculum.varies else 0,
        announce=announce,
    )
    team.serve(DRAW, draw)
    return sampler


def in_flight(config: RunConfig) -> Literal["abort", "wait", "continue", "recompute"]:
    """What becomes of rollouts that are being drawn when new weights arrive; on-policy and in phases there are none."""
    if not config.overlapped:
        return "abort"
    if config.asynchrony == "boundary":
        return "wait"
    return "recompute" if config.service.recompute_cache else "continue"
