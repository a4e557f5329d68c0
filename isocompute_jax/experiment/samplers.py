"""Which sampler a run uses: its own process, or the service that the config names."""

from __future__ import annotations

import math
import os
import pathlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from isocompute_jax import model, sharding
from isocompute_jax.accelerators import GIB, Device, claimed, known_device
from isocompute_jax.allocation.policies import LOOKS
from isocompute_jax.distributed import Team, alone
from isocompute_jax.environments.runner import Runner
from isocompute_jax.environments.turns import EnvironmentTurns
from isocompute_jax.experiment.config import RunConfig, SamplingConfig
from isocompute_jax.experiment.rollouts import EVALUATION
from isocompute_jax.experiment.workdir import FleetFile
from isocompute_jax.model import ModelConfig, Params
from isocompute_jax.records.checksums import weights_digest
from isocompute_jax.records.errors import CONFIG, InputError, fields_called
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Problem
from isocompute_jax.sampling import InProcessSampler, Sampler
from isocompute_jax.sampling.in_process import Unit, UnitShape, largest_unit, unit_bytes
from isocompute_jax.sampling.turn_policies import Interruption, ToolTurns, thought_before
from isocompute_jax.sampling.turns import TurnPolicy, TurnSampler
from isocompute_jax.tasks import Prompts, Tokenizer
from isocompute_jax.tasks.embedded import CALL_STOP, LONGEST_ANSWER, calculate
from isocompute_jax.tasks.prompts import Observations

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
    environment: TurnPolicy | None = None,
) -> Sampler:
    """The sampler of a run; it serves nothing before the first `update_weights`.

    A sampler in this process has `params` until it is given others, and shares the learner's `mesh`; servers know the
    run by the path of its `workdir`. Of the processes of a `team` the first draws. `environment` answers rollouts,
    where the config names one (`make_environment`).

    Raises:
      InputError: a field of `config.service` or `config.sampling` cannot work.
      RunError: another learner of this run is alive.
    """
    if config.environment.name and environment is None:
        raise InputError(
            f"{CONFIG.environment.name} = {config.environment.name!r}: only training runs are answered by an "
            "environment; leave it out here"
        )
    turns, team = environment or make_turns(config.sampling, tokenizer), team or alone()
    if config.service.remote:
        sampler = _of_service(config, model_config, pathlib.Path(workdir), turns, interrupted, team)
    else:
        sampler = _in_process(config, model_config, params, tokenizer.pad_id, turns, mesh, team)
    if turns is None or not team.leads:
        return sampler
    single = () if config.environment.name or config.sampling.thinking.evaluation else (EVALUATION,)
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
    from isocompute_jax.service.client.fleet import RemoteSampler
    from isocompute_jax.service.client.weight_sender import Sender, ShareSender

    lora = config.lora if config.lora.rank and config.lora.served else None
    sender = Sender(
        config.service,
        model_config,
        session=str(workdir.resolve()),
        in_flight=in_flight(config),
        start=team.broadcast(lambda: secrets.token_hex(16)),
        team=team,
        lora=lora,
    )
    if not team.leads:
        return ShareSender(sender)
    return RemoteSampler(
        sender,
        routing=config.loss.routing != "own",
        support=config.sampling.top_k > 0,
        turn_tokens=0 if turns is None else config.sampling.max_prompt_tokens + config.sampling.max_tokens,
        base=weights_digest(config.model) if lora else "",
        interrupted=interrupted,
        report=FleetFile(workdir),
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
        round_below=_round_below(config),
        announce=announce,
    )
    team.serve(DRAW, draw)
    return sampler


def _round_below(config: RunConfig) -> int:
    """Units of fewer groups than this come in powers of two: how many are asked for at once differs."""
    if config.schedule.per_problem in LOOKS:  # the blocks of a round
        return max(size.rollouts for size in config.batch_sizes) // config.schedule.block
    return config.problems_per_batch if config.curriculum.varies else 0


def in_flight(config: RunConfig) -> Literal["abort", "wait", "continue", "recompute"]:
    """What becomes of rollouts that are being drawn when new weights arrive; on-policy and in phases there are none."""
    if not config.overlapped:
        return "abort"
    if config.asynchrony == "boundary":
        return "wait"
    return "recompute" if config.service.recompute_cache else "continue"


ELSEWHERE = 512
"""Rollouts at once on devices whose memory is not known, as that of CPUs is not."""
MOMENTS = {"float32": 2.0, "bfloat16": 1.0, "host": 0.0}
"""Of `optimizer.moments`: what lies on the device, in copies of the master weights."""


def device_of(mesh: Mesh | None) -> Device | None:
    """What is known of the devices that a run samples on in its process; None for CPUs."""
    device = jax.local_devices()[0] if mesh is None else mesh.devices.flat[0]
    known = known_device(device.device_kind)
    return None if known is None else claimed(known)


def rollouts_per_dispatch(
    config: RunConfig, model_config: ModelConfig, mesh: Mesh | None, device: Device | None
) -> int:
    """Completions decoded at once: `sampling.max_rollouts_per_dispatch`, or what has room beside the learner's state.

    `device` is what is known of the devices of the learner's `mesh`; None where that is nothing.

    Raises:
      InputError: not one rollout a device has room; or the config wants more than JAX takes of them.
    """
    sampling, most = config.sampling, config.sampling.max_rollouts_per_dispatch
    if device is None:
        return most or ELSEWHERE
    shards, tensor = sharding.shards(mesh, "batch"), config.mesh.tensor
    masters, copy = held_bytes(model_config, mesh)
    lengths = {"prompt": sampling.max_prompt_tokens, "tokens": sampling.max_tokens}
    if most:
        one = UnitShape(shards, max(most // shards, 1))
        needed = unit_bytes(model_config, one, **lengths, batch_shards=shards, tensor=tensor)
        taken = device.share * device.memory
        if masters + copy + needed <= taken:
            return most
        raise InputError(
            f"{CONFIG.sampling.max_rollouts_per_dispatch} = {most}: their keys and values, of up to "
            f"{sum(lengths.values()):,} tokens each, take {needed / GIB:.0f} GiB of each device, which has "
            f"{taken / GIB:.0f} for weights too. Set it to 0, for as many as have room; or {_other_samplers()}"
        )
    state = masters * (1 + MOMENTS[config.optimizer.moments] + bool(config.loss.kl_coef))
    room = device.usable - state - copy
    found = largest_unit(
        model_config, room, group_size=_smallest_group(config), **lengths, batch_shards=shards, tensor=tensor
    )
    if not found:
        raise InputError(
            f"{CONFIG.sampling.max_tokens} = {sampling.max_tokens}: beside the learner's state ({state / GIB:.0f} GiB "
            f"of each device, which has {device.usable / GIB:.0f}) there is no room to sample one rollout of that "
            f"length in the learner's process. Lower it, or {_other_samplers()}"
        )
    return found


def _other_samplers() -> str:
    """What to do where this process has no room."""
    return (
        "sample from vLLM servers, which hold the keys of what has been drawn and no more "
        f"({CONFIG.service.endpoints}, docs/clusters.md)"
    )


def _smallest_group(config: RunConfig) -> int:
    """Rollouts that share a prompt, at least: in training, in evaluation, and where rollouts have several turns."""
    evaluation = config.evaluation
    if config.several_turns:
        return 1
    smallest = config.block or min(size.group_size for size in config.batch_sizes)
    return min(smallest, evaluation.samples or evaluation.k) if evaluation.sets else smallest


def held_bytes(config: ModelConfig, mesh: Mesh | None) -> tuple[float, float]:
    """Bytes on each device of the master weights, and of the copy that is sampled with; 0 where there is none."""
    masters = model.abstract_params(config, config.float_dtype)
    if mesh is None:
        size = sum(math.prod(x.shape) for x in jax.tree.leaves(masters))
        widths = [jnp.dtype(dtype).itemsize for dtype in (config.float_dtype, config.dtype)]
        return float(widths[0] * size), float(widths[1] * size * model.is_copied(config, mesh))
    masters = jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
        masters,
        model.param_shardings(config, mesh),
    )
    return _share(masters), _share(model.abstract_sampling_params(config, mesh))


def _share(params: Any) -> float:
    """Bytes that each device has of abstract arrays."""
    return float(sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(params)))


def make_environment(
    config: RunConfig, prompts: Prompts, problem_of: Callable[[SampleRequest], Problem]
) -> EnvironmentTurns:
    """What answers the rollouts of a run, by `config.environment`.

    Raises:
      InputError: there is no such environment, or the model's tokenizer cannot write what it says.
    """
    environment = config.environment
    with fields_called("config.environment."):
        runner = Runner(environment, environment=config.reward.environment)
    return EnvironmentTurns(
        environment,
        runner,
        Observations(prompts, environment.write_as),
        max_prompt_tokens=config.sampling.max_prompt_tokens,
        max_tokens=config.sampling.max_tokens,
        problem_of=problem_of,
    )


def make_turns(sampling: SamplingConfig, tokenizer: Tokenizer) -> TurnPolicy | None:
    """When rollouts are continued, and with what; None where each has one turn.

    Raises:
      InputError: the turns are longer together than `sampling.max_tokens`, or the tokenizer does not know their text.
    """
    if sampling.thinking.high and sampling.tool.name != "none":
        raise InputError(
            f"{CONFIG.sampling.thinking.high} = {sampling.thinking.high} and {CONFIG.sampling.tool.name} = "
            f"{sampling.tool.name!r}: rollouts are interrupted, or call tools; switch one of them off"
        )
    if sampling.thinking.high:
        return interruption(sampling, tokenizer)
    return None if sampling.tool.name == "none" else calculator_turns(sampling, tokenizer)


def interruption(sampling: SamplingConfig, tokenizer: Tokenizer) -> Interruption:
    """Forced interruption (`sampling.thinking`)."""
    thinking = sampling.thinking
    try:
        phrase = tokenizer.encode_within(thinking.end_phrase)
    except InputError as error:
        drawn = thinking.high + thinking.answer_tokens
        if drawn >= sampling.max_tokens:  # which is as plain without the phrase's length
            raise InputError(
                f"{CONFIG.sampling.thinking}: high = {thinking.high} and answer_tokens = {thinking.answer_tokens} make "
                f"completions of more than {drawn} tokens, and {CONFIG.sampling.max_tokens} = {sampling.max_tokens}: "
                "raise that, or lower high or answer_tokens"
            ) from None
        raise InputError(f"{CONFIG.sampling.thinking.end_phrase}: {error}; write it in characters it knows") from None
    total = thinking.high + len(phrase) + thinking.answer_tokens
    if total > sampling.max_tokens:
        raise InputError(
            f"{CONFIG.sampling.thinking}: high = {thinking.high}, an end_phrase of {len(phrase)} tokens and "
            f"answer_tokens = {thinking.answer_tokens} make completions of up to {total} tokens, more than "
            f"{CONFIG.sampling.max_tokens} = {sampling.max_tokens}: raise that to {total} (with "
            f"{CONFIG.sampling.max_prompt_tokens} it has to stay within the model's context), or lower high or "
            "answer_tokens"
        )
    return Interruption(
        low=thinking.low,
        high=thinking.high,
        answer_tokens=thinking.answer_tokens,
        phrase=phrase,
        thought=(lambda _: None)
        if thinking.end_of_thinking == ""  # nothing ends its thinking
        else thought_before(thinking.end_of_thinking, lambda ids: tokenizer.decode([ids])[0]),
    )


def calculator_turns(sampling: SamplingConfig, tokenizer: Tokenizer) -> ToolTurns:
    """Calls of the calculator (`sampling.tool`)."""
    tool = sampling.tool
    try:
        stop = tokenizer.encode_within(CALL_STOP)
        tokenizer.encode_within("0123456789+-,")
    except InputError as error:
        raise InputError(f"{CONFIG.sampling.tool.name} = 'calculator': {error}; take another tokenizer") from None
    if len(stop) != 1:
        raise InputError(
            f"{CONFIG.sampling.tool.name} = 'calculator': the tokenizer writes {CALL_STOP!r} as {len(stop)} "
            "tokens, and engines stop at a single one; take another tokenizer"
        )
    longest = LONGEST_ANSWER  # in characters, and so in tokens
    total = (tool.calls + 1) * tool.call_tokens + tool.calls * longest
    if total > sampling.max_tokens:
        raise InputError(
            f"{CONFIG.sampling.tool}: {tool.calls + 1} turns of call_tokens = {tool.call_tokens} and {tool.calls} "
            f"answers of up to {longest} tokens make completions of up to {total} tokens, more than "
            f"{CONFIG.sampling.max_tokens} = {sampling.max_tokens}: raise that to {total}, or lower calls or "
            "call_tokens"
        )

    def answer(text: str) -> np.ndarray | None:
        written = calculate(text)
        return None if written is None else tokenizer.encode_within(written)

    return ToolTurns(
        answer=answer,
        decode=lambda ids: tokenizer.decode([ids])[0],
        stop_token=int(stop[0]),
        calls=tool.calls,
        call_tokens=tool.call_tokens,
        longest_answer=longest,
    )
