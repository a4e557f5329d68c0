"""The sampler of a measurement: a fleet of servers, or this process's devices, by the same rules as in training."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator
from typing import Literal

from isocompute_jax import model
from isocompute_jax.experiment.build import MakeSampler
from isocompute_jax.experiment.config import MeshConfig, RunConfig, SamplingConfig
from isocompute_jax.experiment.curation.measure import VERSION
from isocompute_jax.experiment.data import check_vocabulary
from isocompute_jax.experiment.inputs import check_mesh, make_mesh
from isocompute_jax.experiment.turns import make_turns
from isocompute_jax.model import ModelConfig
from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.sampling import Sampler
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.tasks import PromptConfig, RewardConfig, Tokenizer, load_tokenizer

IN_PROCESS = ServiceConfig()
ONE_DEVICE = MeshConfig()
PLAIN = PromptConfig()
OF_TASKS = RewardConfig()


@dataclasses.dataclass(frozen=True)
class Source:
    """A model, and where its rollouts are drawn.

    Attributes:
      directory: Hugging Face directory.
      sampling: temperature and lengths.
      dtype: what the model computes in; servers must compute in the same.
      service: the fleet; without endpoints this process samples.
      mesh: devices of this process.
      prompts: how prompts are rendered.
      reward: what completions are worth.
    """

    directory: str
    sampling: SamplingConfig
    dtype: Literal["float32", "bfloat16"] = "float32"
    service: ServiceConfig = IN_PROCESS
    mesh: MeshConfig = ONE_DEVICE
    prompts: PromptConfig = PLAIN
    reward: RewardConfig = OF_TASKS

    def read(self) -> tuple[ModelConfig, Tokenizer]:
        """Shape and tokenizer: cheap, and where most bad input shows.

        Raises:
          InputError: names the file or flag at fault.
        """
        shape = model.load_config(self.directory, dtype=self.dtype)
        model.check_length(shape, self.sampling.max_prompt_tokens, self.sampling.max_tokens, prefix="--")
        tokenizer = load_tokenizer(self.directory)
        check_vocabulary(self.directory, tokenizer, shape.vocab_size)
        with said_as_flags():
            make_turns(self.sampling, tokenizer)
            check_mesh(self.mesh, shape)
            if self.service.remote:
                self.service.validate()
        return shape, tokenizer


def source_of(config: RunConfig, service: ServiceConfig | None = None) -> Source:
    """What a run of this config samples with, on the servers of `service` where it is given."""
    return Source(
        config.model,
        config.sampling,
        dtype=config.dtype,
        service=config.service if service is None else service,
        mesh=config.mesh,
        prompts=config.prompts,
        reward=config.reward,
    )


@contextlib.contextmanager
def opened(
    source: Source,
    shape: ModelConfig,
    tokenizer: Tokenizer,
    workdir: str | os.PathLike[str],
    *,
    make_sampler: MakeSampler,
) -> Iterator[Sampler]:
    """Loads the weights and brings them to the sampler, which serves them until the end of the context.

    Raises as `make_sampler` and `Sampler.update_weights` do.
    """
    config = RunConfig(
        model=source.directory,
        dtype=source.dtype,
        sampling=source.sampling,
        mesh=source.mesh,
        service=source.service,
    )
    with said_as_flags():
        mesh = make_mesh(config)
        shardings = None if mesh is None else model.param_shardings(shape, mesh)
        params = model.load_params(source.directory, shape, shardings=shardings)
        sampler = make_sampler(
            config, shape, params, workdir=workdir, tokenizer=tokenizer, mesh=mesh, interrupted=lambda: False
        )
        with contextlib.closing(sampler):
            sampler.update_weights(params, version=VERSION)
            del params  # a fleet's are laid down in a file
            yield sampler


@contextlib.contextmanager
def said_as_flags() -> Iterator[None]:
    """Within it, messages name the flags of `curate` where training would name fields of a run's config."""
    try:
        yield
    except (InputError, RunError) as error:
        text = str(error).replace("config.sampling.thinking.", "--thinking_")
        text = text.replace("config.reward.function", "--reward").replace("config.reward.", "--reward_")
        raise type(error)(re.sub(r"config\.((service|mesh|sampling)\.|(?=dtype))", "--", text)) from None
