"""Rollouts of every problem, through any sampler, into the record: a window of them, and no more in memory."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
from collections.abc import Iterable, Iterator

from isocompute_jax import model
from isocompute_jax.experiment.build import MakeSampler
from isocompute_jax.experiment.config import MeshConfig, RunConfig, SamplingConfig, ThinkingConfig
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.experiment.curation.record import BLOCK, RolloutOrder, Store, first_rollout
from isocompute_jax.experiment.inputs import check_mesh, check_vocabulary, make_mesh
from isocompute_jax.experiment.progress import progress
from isocompute_jax.experiment.rollouts import GradedStream, check_versions
from isocompute_jax.experiment.samplers import make_turns
from isocompute_jax.model import ModelConfig
from isocompute_jax.options import flag_texts
from isocompute_jax.records.errors import InputError, RunError, fields_called, set_by_flags
from isocompute_jax.records.rollout import Problem, RolloutGroup
from isocompute_jax.sampling import Sampler
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.tasks import Grades, RewardConfig, Tokenizer, load_tokenizer

VERSION = 0
"""Of the weights, of which there is one."""
GIVEN_UP = 64
"""So many groups in a row, of which every reward failed, end the measurement."""


def measure(
    problems: Iterable[Problem],
    store: Store,
    sampler: Sampler,
    order: RolloutOrder,
    config: CurationConfig,
    *,
    grading: Grades,
    rounds: bool,
) -> None:
    """Draws what the record lacks, problem by problem; `config.groups_in_flight` groups are out at a time.

    Problems are drawn in their order, and only those of which a group is out are held. With `rounds` the next groups
    are submitted when all that were out are back, so that a sampler in this process, which draws what is out in one go,
    always has one compiled shape; otherwise with each that comes back the next one is, so that servers never wait.

    Raises:
      InputError: a server refuses a group, or the token.
      RunError: the sampler has failed, or has broken its word; a reward failed and the policy is `stop`, or all those
        of `GIVEN_UP` groups in a row did. What was recorded is kept.
    """
    out: dict[tuple[str, int], Problem] = {}  # by problem and first rollout, the name of a group

    def graded(group: RolloutGroup) -> concurrent.futures.Future[RolloutGroup]:
        first = first_rollout(group)
        problem = out.get((group.problem_id, first))
        if problem is None:
            raise RunError(f"the sampler returned rollout {first} of problem {group.problem_id!r} twice, or unasked")
        check_versions([group], oldest=VERSION, newest=VERSION)
        return grading.submit(group, problem)

    rollouts = GradedStream(sampler, graded)

    def receive(left: int) -> None:
        """Until so many groups are out."""
        nonlocal done, drawn, tokens, lost
        while len(out) > left:
            group = rollouts.take()
            first = first_rollout(group)
            del out[group.problem_id, first]
            texts = ()
            if config.keep_completions:
                ids = [completion.tokens.tolist() for completion in group.completions]
                texts = order.prompts.tokenizer.decode(ids)
            done += store.add(group, first, texts)
            drawn, tokens = drawn + len(group.completions), tokens + group.num_tokens
            report(done, f"{tokens / drawn:,.1f} tokens each, {store.truncated / max(done, 1):.1%} cut off")
            lost = lost + 1 if len(group.failures) == len(group.completions) else 0
            if lost == GIVEN_UP:
                raise RunError(
                    f"every reward of {lost} groups in a row failed, the last on problem {group.problem_id!r} "
                    f"({group.failures[0]}): nothing of these groups is recorded. See to what gives rewards; the same "
                    "command goes on from there"
                )

    done, drawn, tokens, lost = int(store.known.sum()), 0, 0, 0
    with progress("curation", store.known.size, done=done, unit="rollouts") as report:
        # Whole blocks before what is left of the last ones: groups of one size are decoded together.
        for size in sorted({min(config.samples, BLOCK), config.samples % BLOCK} - {0}, reverse=True):
            for problem in problems:
                for first, count in store.missing(problem.id):
                    if count != size:
                        continue
                    if len(out) == config.groups_in_flight:
                        receive(0 if rounds else config.groups_in_flight - 1)
                    out[problem.id, first] = problem
                    rollouts.submit([order.request(problem, first=first, count=count)])
        receive(0)
    rollouts.close()  # nothing is out: the thread that reads a fleet waits for more


def check_environment(source: RunConfig) -> None:
    """Raises InputError for a run whose environment answers the policy: its rewards are not those of single answers."""
    if source.environment.name:
        raise InputError(
            f"config.environment.name = {source.environment.name!r}: only single answers are measured here, without "
            "it, so rewards would not be those of the run; a run's own evaluations (eval.jsonl) play it"
        )


def read_model(source: RunConfig) -> tuple[ModelConfig, Tokenizer]:
    """Shape and tokenizer: cheap, and where most bad input shows.

    Raises:
      InputError: names the file or flag at fault.
    """
    check_environment(source)
    shape = model.load_config(source.model, dtype=source.dtype)
    with fields_called("--"):
        model.check_length(shape, source.sampling.max_prompt_tokens, source.sampling.max_tokens)
    tokenizer = load_tokenizer(source.model)
    check_vocabulary(source.model, tokenizer, shape.vocab_size)
    with naming_flags():
        make_turns(source.sampling, tokenizer)
        check_mesh(source.mesh, shape)
        if source.service.remote:
            source.service.validate()
    return shape, tokenizer


@contextlib.contextmanager
def open_sampler(
    source: RunConfig,
    shape: ModelConfig,
    tokenizer: Tokenizer,
    workdir: str | os.PathLike[str],
    *,
    make_sampler: MakeSampler,
) -> Iterator[Sampler]:
    """Loads the weights and brings them to the sampler, which serves them until the end of the context.

    Raises as `make_sampler` and `Sampler.update_weights` do.
    """
    # Nothing else of a run has a say in it: the same room, the same requests to servers.
    config = RunConfig(
        model=source.model, dtype=source.dtype, sampling=source.sampling, mesh=source.mesh, service=source.service
    )
    with naming_flags():
        mesh = make_mesh(config)
        shardings = None if mesh is None else model.param_shardings(shape, mesh)
        params = model.load_params(source.model, shape, shardings=shardings)
        sampler = make_sampler(
            config, shape, params, workdir=workdir, tokenizer=tokenizer, mesh=mesh, interrupted=lambda: False
        )
        with contextlib.closing(sampler):
            sampler.update_weights(params, version=VERSION)
            del params  # a fleet's are laid down in a file
            yield sampler


def flags_of_fields() -> dict[str, str]:
    """`config.GROUP.FIELD` of what is sampled, and where -> the flag of `curate` that sets it."""
    groups = {"service": ServiceConfig, "mesh": MeshConfig, "reward": RewardConfig}
    groups |= {"sampling": SamplingConfig, "sampling.thinking": ThinkingConfig}
    flags = [flag_texts(kind, f"config.{path}.") for path, kind in groups.items()]
    return {"config.dtype": "--dtype", **{path: flag for each in flags for path, flag in each.items()}}


def naming_flags() -> contextlib.AbstractContextManager[None]:
    """Within it, messages name the flags of `curate` where training would name fields of a run's config."""
    return set_by_flags(flags_of_fields())
