"""What a run reads before it makes anything, and whether it fits together."""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from isocompute_jax import model, sharding
from isocompute_jax.devices import cores_for
from isocompute_jax.distributed import Team
from isocompute_jax.experiment.config import MeshConfig, RunConfig
from isocompute_jax.experiment.demonstrations import text_of
from isocompute_jax.experiment.memory import check_batches
from isocompute_jax.experiment.problem_stream import ProblemStream, TrainSets
from isocompute_jax.experiment.samplers import device_of, make_environment, make_turns, rollouts_per_dispatch
from isocompute_jax.model import ModelConfig
from isocompute_jax.records.checksums import model_digest
from isocompute_jax.records.errors import CONFIG, InputError, fields_called
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import (
    PromptConfig,
    Prompts,
    Tokenizer,
    get_grader,
    leakage_key,
    load_tokenizer,
    read_problems,
)

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

    `processes` is how many share the mesh.

    Raises:
      InputError: names the file or field at fault.
    """
    # Its config.json first: where that is broken, transformers refuses the tokenizer too.
    model_config = model_config_of(config)
    check_length(config, model_config)
    if config.adapters is not None:
        with fields_called("config.lora."):
            model.adapter_specs(model_config, config.adapters)
    tokenizer = load_tokenizer(config.model)
    check_mixture(config, model_config)
    check_mesh(config.mesh, model_config)
    if config.teacher and not config.asks_teacher:
        check_mesh(config.mesh, model_config_of(dataclasses.replace(config, model=config.teacher)))
        check_tokens(config.teacher, tokenizer)
    check_vocabulary(config.model, tokenizer, model_config.vocab_size)
    prompts = Prompts(tokenizer, config.prompts)
    # So that they are refused before anything is made.
    make_turns(config.sampling, tokenizer)
    check_graders(config)
    if config.environment.name:
        make_environment(config, prompts, lambda request: Problem(request.problem_id, "", "", ""))
    train = load_train_sets(config)
    for problem in train.problems if config.supervised else ():
        text_of(problem, config.supervised)
    limit = config.evaluation.max_problems or None
    name_of = grader_names(config)
    sets = {name: load_problems(path, grader_name=name_of)[:limit] for name, path in config.evaluation.sets.items()}
    check_prompts([train.problems, *sets.values()], prompts, config)
    say_what_is_trained_on(train.problems, {name: sets[name] for name in held_out_sets(config)})
    if (most := max(size.problems for size in config.batch_sizes)) > max(
        len(train.problems), config.problems_per_batch
    ):
        raise InputError(
            f"config.schedule.problems_per_batch = {config.schedule.problems_per_batch!r}: a batch of {most} problems, "
            f"but the training set has only {len(train.problems)}: train on more, or end below that"
        )
    stream = ProblemStream(train, config.curriculum, problems_per_batch=config.problems_per_batch, seed=config.seed)
    mesh = make_mesh(config, processes=processes)
    check_attention(model_config, mesh)
    check_batches(config, model_config, mesh, device_of(mesh))
    if not config.service.remote:  # has this process room to sample?
        rollouts_per_dispatch(config, model_config, mesh, device_of(mesh))
    return Inputs(tokenizer, prompts, model_config, train.problems, sets, stream, mesh)


def contents_of(config: RunConfig, inputs: Inputs) -> dict[str, str]:
    """Digests of what a resumed run must find again.

    Of each set's rows, in their order, of the tokenizer's tokens, and of the base model where adapters or a KL term go
    on reading it.
    """
    vocabulary = sorted(inputs.tokenizer.backend.get_vocab(with_added_tokens=True).items())
    tokens = hashlib.blake2b(repr((vocabulary, inputs.tokenizer.eos_ids)).encode(), digest_size=16)
    sets = {f"evaluation.sets.{name}": problems for name, problems in inputs.evaluation_sets.items()}
    found = {"tokenizer": tokens.hexdigest()}
    if config.lora.rank or config.loss.kl_coef:
        found["model"] = model_digest(config.model)
    for name, problems in {"train_set": inputs.problems, **sets}.items():
        rows = hashlib.blake2b(digest_size=16)
        for problem in problems:
            rows.update(problem.id.encode() + b"\0" + problem.digest)
        found[name] = rows.hexdigest()
    return found


def held_out_sets(config: RunConfig) -> dict[str, str]:
    """Evaluation sets by name, but for files of the training problems, which are meant to be evaluated as such."""
    files = {config.train_set, *config.curriculum.train_sets.values()}
    return {name: path for name, path in config.evaluation.sets.items() if path not in files}


def trained_on(problems: Sequence[Problem], sets: Mapping[str, Sequence[Problem]]) -> dict[str, int]:
    """How many problems of each evaluation set ask what is trained on too (`tasks.leakage_key`)."""
    trained = {leakage_key(problem) for problem in problems} if sets else set()
    return {name: sum(leakage_key(problem) in trained for problem in own) for name, own in sets.items()}


def say_what_is_trained_on(problems: Sequence[Problem], sets: Mapping[str, Sequence[Problem]]) -> None:
    """Warns of evaluation sets whose questions are trained on too: they hold nothing out."""
    for name, count in trained_on(problems, sets).items():
        if count:
            LOG.warning(
                "evaluation set %r: %d of its %d problems are trained on too, so its reward says little about others; "
                "`python -m isocompute_jax.split` makes sets that share no question",
                name, count, len(sets[name]),
            )  # fmt: skip


def model_config_of(config: RunConfig) -> ModelConfig:
    """The model's shape, from its config.json, and how the run wants it computed."""
    shape = model.load_config(config.model, dtype=config.dtype)
    return dataclasses.replace(shape, **dataclasses.asdict(config.compute))


def check_tokens(teacher: str, tokenizer: Tokenizer) -> None:
    """Raises InputError unless the teacher's directory has the tokens of the policy."""
    theirs, ours = (each.backend.get_vocab(with_added_tokens=True) for each in (load_tokenizer(teacher), tokenizer))
    different = next((text for text, token in ours.items() if theirs.get(text) != token), None)
    if different is not None:
        raise InputError(
            f"{CONFIG.teacher} = {teacher!r}: it reads other tokens than the policy ({different!r} is "
            f"{ours[different]} here and {theirs.get(different)} there): take a teacher of the same tokenizer"
        )


def check_length(config: RunConfig, model_config: ModelConfig) -> None:
    """Raises InputError where the run's longest sequence is longer than those that the model was made for."""
    with fields_called("config.sampling."):
        model.check_length(model_config, config.sampling.max_prompt_tokens, config.sampling.max_tokens)


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
            f"{CONFIG.loss.routing} = {config.loss.routing!r}: {config.model} has no experts; set it to 'own'"
        )


def check_mesh(mesh: MeshConfig, model_config: ModelConfig) -> None:
    """Raises InputError unless the mesh divides the model: its experts, and what lies over the tensor axis."""
    if mesh.expert > 1 and not model_config.num_experts:
        raise InputError(
            f"{CONFIG.mesh.expert} = {mesh.expert}: the model has no experts; set it to 1, and give its devices to "
            f"{CONFIG.mesh.fsdp} or {CONFIG.mesh.data}"
        )
    _check_divides("expert", mesh.expert, [(model_config.num_experts, "experts")])
    sizes = [(model_config.num_heads, "heads"), (model_config.num_kv_heads, "kv heads")]
    _check_divides("tensor", mesh.tensor, [*sizes, (model_config.mlp_dim, "hidden units")])
    heads, kv_heads = (size // mesh.tensor for size, _ in sizes)
    if not model.context_divides(mesh.context, heads, kv_heads):
        possible = ", ".join(str(n) for n in range(1, heads + 1) if model.context_divides(n, heads, kv_heads))
        whose = f" of each of {CONFIG.mesh.tensor} = {mesh.tensor} parts" if mesh.tensor > 1 else ""
        raise InputError(
            f"{CONFIG.mesh.context} = {mesh.context} devices cannot share the model's {heads} heads and {kv_heads} kv "
            f"heads{whose}, as they do in attention; possible: {possible}. Give the other devices to "
            f"{CONFIG.mesh.fsdp} or {CONFIG.mesh.data}"
        )


def _check_divides(axis: str, devices: int, sizes: Sequence[tuple[int, str]]) -> None:
    together = math.gcd(*(size for size, _ in sizes))
    if together % devices:
        named = " and ".join(f"{size} {name}" for size, name in sizes if size % devices)
        possible = ", ".join(str(n) for n in range(1, together + 1) if together % n == 0)
        raise InputError(
            f"{getattr(CONFIG.mesh, axis)} = {devices} does not divide the model's {named}; possible: {possible}. Give "
            f"the other devices to {CONFIG.mesh.fsdp} or {CONFIG.mesh.data}"
        )


def check_graders(config: RunConfig) -> None:
    """Raises InputError where `config.reward` names what does not exist, before a problem is blamed for it."""
    named = {str(CONFIG.reward.function): config.reward.function}
    named |= {f"{CONFIG.reward.tasks}.{task}": name for task, name in config.reward.tasks.items()}
    for field, name in named.items():
        try:
            if name:
                get_grader(name)
        except InputError as error:
            raise InputError(f"{field}: {error}") from None


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


def grader_names(config: RunConfig) -> Callable[[str], str] | None:
    """Task -> the name of what grades its problems; None where an environment says what rollouts are worth."""
    return None if config.environment.name else config.reward.name_for


def load_problems(path: str, size: int = 0, *, grader_name: Callable[[str], str] | None) -> list[Problem]:
    """The first `size` problems of a file (0: all of them); `grader_name` as in `tasks.read_problems`."""
    problems = read_problems(path, grader_name=grader_name)
    if size > len(problems):
        raise InputError(f"config.problem_set_size = {size}, but {path} has only {len(problems)} problems")
    return problems[:size] if size else problems


def load_train_sets(config: RunConfig) -> TrainSets:
    """Reads what the config names.

    Raises:
      InputError: as `load_problems`.
    """
    load = functools.partial(load_problems, grader_name=grader_names(config))
    if config.curriculum.train_sets:
        return TrainSets.mixture({name: load(path) for name, path in config.curriculum.train_sets.items()})
    return TrainSets.of(load(config.train_set, config.problem_set_size))


def check_vocabulary(model_directory: str, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raises InputError for a tokenizer with ids that the model has no embedding for: they would be read as others."""
    if tokenizer.vocab_size > vocab_size:
        raise InputError(
            f"{model_directory}: the tokenizer has token ids up to {tokenizer.vocab_size - 1}, and the model embeds "
            f"vocab_size = {vocab_size} of them: take the tokenizer that the model was trained with"
        )


def check_prompts(sets: Sequence[Sequence[Problem]], prompts: Prompts, config: RunConfig) -> None:
    """Renders and encodes all prompts, once for the run.

    Raises:
      InputError: a prompt cannot be rendered, or not be sampled from; now, and not in the step that meets it.
    """
    limit = config.sampling.max_prompt_tokens
    for problems in sets:
        for problem, prompt in zip(problems, prompts.remember(problems), strict=True):
            if not 1 <= len(prompt) <= limit:
                raise InputError(
                    f"problem {problem.id!r}: its prompt has {len(prompt)} tokens, and between 1 and "
                    f"{CONFIG.sampling.max_prompt_tokens} = {limit} are possible: raise it, or leave the problem out"
                )


ENDS = 8
"""Ids that are shown of either end of a prompt."""


def show_prompts_of_run(config: RunConfig, count: int) -> str:
    """The first prompts of a run's training set.

    Raises:
      InputError: names the file or field at fault.
    """
    config = config.resolved()
    problems = load_problems(config.train_set, config.problem_set_size, grader_name=grader_names(config))[:count]
    return show_prompts(problems, config.model, config.prompts, limit=config.sampling.max_prompt_tokens)


def show_prompts(problems: Sequence[Problem], model_directory: str, config: PromptConfig, *, limit: int) -> str:
    """What the model reads of each problem.

    The text is decoded from the very ids that are sampled from, special tokens included; each line stands behind a bar,
    and an arrow marks where it breaks, so that white space at the ends is seen. Longer prompts than `limit` tokens are
    marked.

    Raises:
      InputError: a prompt cannot be rendered; names the problem and what to do.
    """
    tokenizer = load_tokenizer(model_directory)
    encoded = Prompts(tokenizer, config).encode(problems)
    return "\n".join(_shown(problem, ids, tokenizer, limit) for problem, ids in zip(problems, encoded, strict=True))


def _shown(problem: Problem, ids: np.ndarray, tokenizer: Tokenizer, limit: int) -> str:
    text = tokenizer.backend.decode(ids.tolist(), skip_special_tokens=False)
    too_long = f": too long, max_prompt_tokens is {limit}" if len(ids) > limit else ""
    lines = "\u21b5\n".join(text.split("\n")).split("\n")
    return "\n".join([
        f"problem {problem.id} (task {problem.task}), answer {problem.answer!r}",
        f"{len(ids)} tokens{too_long}; special: {_special(ids, tokenizer)}; ids: {_ends(ids.tolist())}",
        *(f"  \u2502{line}" for line in lines),
        "",
    ])  # fmt: skip


def _special(ids: np.ndarray, tokenizer: Tokenizer) -> str:
    """The special tokens among the ids, with their counts."""
    known = {number: token.content for number, token in tokenizer.backend.get_added_tokens_decoder().items()}
    counts = collections.Counter(known[token] for token in ids.tolist() if token in known)
    return ", ".join(f"{count} {token}" for token, count in counts.items()) or "none"


def _ends(ids: list[int]) -> str:
    if len(ids) <= 2 * ENDS:
        return " ".join(map(str, ids))
    return f"{' '.join(map(str, ids[:ENDS]))} ... {' '.join(map(str, ids[-ENDS:]))}"


def introduce(team: Team, mesh: Mesh | None) -> None:
    """Says in one line who the processes are and what they compute on, where there are several."""
    if team.count > 1 and mesh is not None:
        axes = " x ".join(f"{name} {size}" for name, size in mesh.shape.items() if size > 1)
        LOG.info(
            "%d processes, found by %s: %s; mesh %s over %d devices (%s), %d of them here",
            *(team.count, team.source, ", ".join(team.names), axes, mesh.devices.size),
            *(mesh.devices.flat[0].device_kind, jax.local_device_count()),
        )
