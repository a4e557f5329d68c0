"""What a measurement is: the model, how it is sampled, and the problems as it is asked them.

Samples of two calls belong together only where all of it is the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Iterable
from typing import Any

from isocompute_jax.experiment.config import SamplingConfig
from isocompute_jax.experiment.rollouts import make_requests
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Problem, RolloutGroup
from isocompute_jax.tasks import Prompts

BLOCK = 16
"""Rollouts of a problem are drawn in blocks of so many, whatever k is: what is drawn next does not depend on it."""

DIGEST_BYTES = 8
PIECE, PIECES = 2**16, 64
WHOLE_FILES = ("config.json", "tokenizer.json")


@dataclasses.dataclass(frozen=True)
class Question:
    """How rollouts are asked for, of any problem.

    Attributes:
      prompts: renders them, with the model's tokenizer.
      sampling: temperature and lengths.
      seed: of the random numbers.
    """

    prompts: Prompts
    sampling: SamplingConfig
    seed: int

    def request(self, problem: Problem, *, first: int, count: int) -> SampleRequest:
        """Asks for `count` rollouts of the block that begins with rollout `first`, from there on."""
        [request] = make_requests(
            [problem], self.prompts, self.sampling, group_size=count, seed=self.seed, step=first // BLOCK
        )
        return request


def first_rollout(group: RolloutGroup) -> int:
    """Index of a group's first rollout among all of its problem's."""
    return group.step * BLOCK


def identity(
    model_directory: str | os.PathLike[str], question: Question, *, dtype: str, reward: str = ""
) -> dict[str, Any]:
    """What two calls must have in common to use each other's samples, as JSON has it; prompts are compared one by one.

    Where the model is computed, and where its directory lies, does not matter. `reward` names what grades in place of
    what tasks name.
    """
    thinking = question.sampling.thinking
    return {
        "model": fingerprint(model_directory),
        "dtype": dtype,
        "temperature": question.sampling.temperature,
        "top_p": question.sampling.top_p,
        "max_tokens": question.sampling.max_tokens,
        "stop_tokens": list(question.prompts.tokenizer.eos_ids),
        "seed": question.seed,
        **({"thinking": dataclasses.asdict(thinking)} if thinking.high else {}),
        **({"reward": reward} if reward else {}),
    }


def fingerprint(directory: str | os.PathLike[str]) -> str:
    """Tells models apart by their files: config.json and the tokenizer whole, of weights their sizes and 64 pieces.

    Two steps of training differ in nearly every weight, so pieces suffice, and a hundred gigabytes are not read twice.
    """
    directory, digest = pathlib.Path(directory), hashlib.blake2b(digest_size=16)
    for path in [*(directory / name for name in WHOLE_FILES), *sorted(directory.glob("*.safetensors"))]:
        if not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{path.name}:{size};".encode())
        whole = path.name in WHOLE_FILES or size <= PIECE * PIECES
        with open(path, "rb") as file:
            for start in range(0, size, PIECE) if whole else (size * i // PIECES for i in range(PIECES)):
                file.seek(start)
                digest.update(file.read(PIECE))
    return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class Survey:
    """The problems of a measurement without their texts.

    Attributes:
      rows: id -> row, in the order of the set.
      digests: what each problem asks, and which answer counts, by row.
    """

    rows: dict[str, int]
    digests: bytes

    def digest(self, row: int) -> str:
        """That of one problem, as text."""
        return self.digests[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES].hex()


def survey(problems: Iterable[Problem], question: Question) -> Survey:
    """Looks at every problem once, before anything costly.

    Raises:
      InputError: an id twice, no problems, or a prompt that is too long; names the problem.
    """
    rows: dict[str, int] = {}
    digests = bytearray()
    for problem in problems:
        if problem.id in rows:
            raise InputError(f"problem {problem.id!r} is there twice; ids must differ")
        request = question.request(problem, first=0, count=1)
        request.check_prompt(question.sampling.max_prompt_tokens, "--max_prompt_tokens")
        rows[problem.id] = len(rows)
        asked = (request.prompt_tokens.tobytes(), problem.answer.encode(), problem.task.encode())
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for part in asked:
            digest.update(len(part).to_bytes(8, "little") + part)
        digests += digest.digest()
    if not rows:
        raise InputError("there is no problem to measure")
    return Survey(rows, bytes(digests))
