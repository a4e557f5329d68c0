"""One rollout in vLLM's terms. Imported once `environment.prepare` has run: it imports vllm."""

from __future__ import annotations

import hashlib

import numpy as np
from vllm import SamplingParams  # pyright: ignore[reportAttributeAccessIssue, reportMissingImports]
from vllm.inputs.engine import TokensInput, tokens_input  # pyright: ignore[reportMissingImports]
from vllm.outputs import CompletionOutput  # pyright: ignore[reportMissingImports]
from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]

from isocompute_jax.records.errors import InputError
from isocompute_jax.records.requests import SampleRequest
from isocompute_jax.records.rollout import Completion
from isocompute_jax.service.server.engines.base import EngineError

LOWEST_TEMPERATURE = 0.01
"""vLLM raises temperatures below it to it, and draws greedily near zero."""


def rollout_seed(seed: int, step: int, problem_id: str, index: int, turn: int = 0) -> int:
    """Seed of one rollout's random numbers: 63 bits of the hash of what keys them."""
    key = f"{seed}/{step}/{index}/{problem_id}"
    if turn:
        key = f"turn {turn}/{key}"
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1


def prompt(request: SampleRequest, *, cache_key: str) -> TokensInput:
    """A prompt; only prompts with the same key share cached prefixes."""
    return tokens_input(request.prompt_tokens.tolist(), cache_salt=cache_key)


def sampling_params(request: SampleRequest, index: int) -> SamplingParams:
    """What vLLM is asked for the group's rollout `index`, from 0.

    Raises:
      InputError: vLLM would draw from another distribution.
    """
    if request.params.temperature < LOWEST_TEMPERATURE:
        raise InputError(
            f"temperature = {request.params.temperature} is below {LOWEST_TEMPERATURE}, the lowest that vLLM draws with"
        )
    return SamplingParams(
        temperature=request.params.temperature,
        top_p=request.params.top_p,
        max_tokens=request.budget(index),
        seed=rollout_seed(
            request.seed, request.step, request.problem_id, request.first_rollout + index, turn=request.turn
        ),
        stop_token_ids=list(request.stop_tokens),
        ignore_eos=True,  # only the tokens that the request names end a completion
        logprobs=0,  # of the drawn token alone
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,  # a message for every token would cost more than drawing it
        skip_clone=True,
    )


def completion(output: CompletionOutput, *, version: int | None) -> Completion:
    """A finished rollout.

    Args:
      output: vLLM's.
      version: of the weights that drew all of it; None where vLLM says it of each token.

    Raises:
      EngineError: vLLM ended it for another reason than a stop token or its length, or left something out.
    """
    if output.finish_reason not in ("stop", "length"):
        raise EngineError(f"vLLM ended a rollout with {output.finish_reason!r}")
    tokens = np.array(output.token_ids, np.int32)
    logprobs = np.array(output.logprobs.logprobs if output.logprobs else [], np.float32)
    if version is None:
        spans = output.weight_versions or []
        versions = np.repeat(
            np.array([int(span.version) for span in spans], np.int32), [span.end - span.start for span in spans]
        )
    else:
        versions = np.full(len(tokens), version, np.int32)
    if not len(tokens) == len(logprobs) == len(versions) > 0:
        raise EngineError(
            f"vLLM gave {len(tokens)} tokens with {len(logprobs)} log-probabilities and {len(versions)} versions"
        )
    return Completion.drawn(tokens, logprobs, versions, output.finish_reason)
