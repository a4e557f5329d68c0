"""What a run reads before it makes anything, and whether it fits together."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from isocompute_jax import model, sharding
from isocompute_jax.devices import cores_for
from isocompute_jax.experiment.config import MeshConfig, RunConfig
from isocompute_jax.experiment.curriculum import ProblemStream, load_train_sets
from isocompute_jax.experiment.data import check_prompts, check_vocabulary, load_problems
from isocompute_jax.experiment.dispatch import check_dispatch
from isocompute_jax.experiment.turns import make_turns
from isocompute_jax.model import ModelConfig
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import Prompts, Tokenizer, get_grader, load_tokenizer

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a run reads before it makes anything: cheap, and where most bad input shows."""

    tokenizer: Tokenizer
    prompts: Prompts
    model_config: ModelConfig
    problems: Sequence[Problem]
    evaluation_sets: Mapping[str, Sequence[Problem]]
    stream: ProblemStream
    mesh: Mesh | None

    @property
    def all_problems(self) -> Iterator[Problem]:
        """Those that are trained on, then those of every evaluation set."""
        return itertools.chain(self.problems, *self.evaluation_sets.values())


def read_inputs(config: RunConfig, *, processes: int = 1) -> Inputs:
    """Reads tokenizer, model shape and problem sets, and checks that they fit together.

    Args:
      config: the run's, resolved.
      processes: how many share the mesh.

    Raises:
      InputError: names the file or field at fault.
    """
    # Its config.json first: where that is broken, transformers refuses the tokenizer too.
    model_config = model_config_of(config)
    check_length(config, model_config)
    tokenizer = load_tokenizer(config.model)
    check_mixture(config, model_config)
    check_mesh(config.mesh, model_config)
    check_vocabulary(config.model, tokenizer, model_config.vocab_size)
    make_turns(config.sampling, tokenizer)  # so that they are refused before anything is made
    check_graders(config)
    train = load_train_sets(config)
    limit = config.evaluation.max_problems or None
    name_of = config.reward.name_for
    sets = {name: load_problems(path, grader_name=name_of)[:limit] for name, path in config.evaluation.sets.items()}
    prompts = Prompts(tokenizer, config.prompts)
    check_prompts([train.problems, *sets.values()], prompts, config)
    stream = ProblemStream(train, config.curriculum, problems_per_batch=config.problems_per_batch, seed=config.seed)
    mesh = make_mesh(config, processes=processes)
    check_attention(model_config, mesh)
    check_dispatch(config, model_config, mesh)
    return Inputs(tokenizer, prompts, model_config, train.problems, sets, stream, mesh)


def model_config_of(config: RunConfig) -> ModelConfig:
    """The model's shape, from its config.json, and how the run wants it computed."""
    shape = model.load_config(config.model, dtype=config.dtype)
    return dataclasses.replace(shape, **dataclasses.asdict(config.compute))


def check_length(config: RunConfig, model_config: ModelConfig) -> None:
    """Raises InputError where the run's longest sequence is longer than those that the model was made for."""
    sampling = config.sampling
    model.check_length(model_config, sampling.max_prompt_tokens, sampling.max_tokens, prefix="config.sampling.")


def check_attention(model_config: ModelConfig, mesh: Mesh | None) -> None:
    """Raises InputError where the devices do not have the kernel of attention that the config names."""
    device = jax.local_devices()[0] if mesh is None else mesh.devices.flat[0]
    try:
        model.choose_kernel(
            model_config.attention, device, head_dim=model_config.head_dim, dtype=jnp.dtype(model_config.dtype)
        )
    except InputError as error:
        raise InputError(f"config.compute.{error}") from None


def check_mixture(config: RunConfig, model_config: ModelConfig) -> None:
    """Raises InputError where the config asks for the routing of a model that routes nothing."""
    if config.loss.routing != "own" and not model_config.num_experts:
        raise InputError(
            f"config.loss.routing = {config.loss.routing!r}: {config.model} has no experts; set it to 'own'"
        )


def check_mesh(mesh: MeshConfig, model_config: ModelConfig) -> None:
    """Raises InputError unless the mesh divides the model: its experts, and what lies over the tensor axis."""
    if mesh.expert > 1 and not model_config.num_experts:
        raise InputError(
            f"config.mesh.expert = {mesh.expert}: the model has no experts; set it to 1, and give its devices to "
            "config.mesh.fsdp or config.mesh.data"
        )
    _check_divides("expert", mesh.expert, [(model_config.num_experts, "experts")])
    sizes = [(model_config.num_heads, "heads"), (model_config.num_kv_heads, "kv heads")]
    _check_divides("tensor", mesh.tensor, [*sizes, (model_config.mlp_dim, "hidden units")])
    heads, kv_heads = (size // mesh.tensor for size, _ in sizes)
    if not model.context_divides(mesh.context, heads, kv_heads):
        possible = ", ".join(str(n) for n in range(1, heads + 1) if model.context_divides(n, heads, kv_heads))
        whose = f" of each of config.mesh.tensor = {mesh.tensor} parts" if mesh.tensor > 1 else ""
        raise InputError(
            f"config.mesh.context = {mesh.context} devices cannot share the model's {heads} heads and {kv_heads} kv "
            f"heads{whose}, as they do in attention; possible: {possible}. Give the other devices to config.mesh.fsdp "
            "or config.mesh.data"
        )


def _check_divides(axis: str, devices: int, sizes: Sequence[tuple[int, str]]) -> None:
    together = math.gcd(*(size for size, _ in sizes))
    if together % devices:
        named = " and ".join(f"{size} {name}" for size, name in sizes if size % devices)
        possible = ", ".join(str(n) for n in range(1, together + 1) if together % n == 0)
        raise InputError(
            f"config.mesh.{axis} = {devices} does not divide the model's {named}; possible: {possible}. Give the other "
            "devices to config.mesh.fsdp or config.mesh.data"
        )


def check_graders(config: RunConfig) -> None:
    """Raises InputError where `config.reward` names what does not exist, before a problem is blamed for it."""
    named = {"function": config.reward.function} | {f"tasks.{task}": name for task, name in config.reward.tasks.items()}
    for field, name in named.items():
        try:
            if name:
                get_grader(name)
        except InputError as error:
            raise InputError(f"config.reward.{field}: {error}") from None


def make_mesh(config: RunConfig, *, processes: int = 1) -> Mesh | None:
    """The mesh of the config; None for one device, unless something lives in the host's memory, which a mesh says.

    Without accelerators each core can be a device.
    """
    sizes = dataclasses.asdict(config.mesh)
    used = math.prod(sizes.values())
    cores_for(used // processes)
    present = jax.device_count()
    if used != present and processes > 1:
        raise InputError(
            f"config.mesh multiplies to {used} devices, and the {processes} processes have {present}: its axes must "
            "multiply to all of them"
        )
    if used < present:
        LOG.warning("config.mesh uses %d of %d devices; its axes multiply to what is used", used, present)
    if used == 1 and config.optimizer.moments != "host":
        return None
    try:
        return sharding.make_mesh(**sizes)
    except (ValueError, NotImplementedError) as error:  # too few devices, or axes that a TPU slice cannot be cut into
        raise InputError(f"config.mesh: {error}; its axes multiply to the devices that are used") from error
