"""Some rollouts of a run, kept in rollouts.jsonl so that somebody reads them.

They are the first groups of a step in the order of drawing, which no reward has a say in, and the first rollouts of
each. Steps, groups, rollouts and tokens are all bounded, and so the file is: with the defaults to about 60 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.records.rollout import Completion, RolloutGroup
from isocompute_jax.tasks import Tokenizer, token_texts

STEPS = 200
"""About so many steps of a run keep rollouts, unless the config says how often."""
ROLLOUTS = 8
"""Of a group."""
TOKENS = 2048
"""Of a completion; a longer one keeps half as many from its beginning and from its end."""


def is_kept(config: RunConfig, step: int) -> bool:
    """Whether step `step` (the first is 1) keeps rollouts."""
    every = config.track.rollouts_every or -(-config.num_steps // STEPS)
    return config.track.rollouts > 0 and (step - 1) % every == 0


def kept_columns(config: RunConfig, groups: Sequence[RolloutGroup], tokenizer: Tokenizer) -> dict[str, Any]:
    """What a line of rollouts.jsonl says of a step beside the ledger; `groups` are all of its groups, graded."""
    return {"groups": [_group(group, tokenizer) for group in groups[: config.track.rollouts]]}


def _group(group: RolloutGroup, tokenizer: Tokenizer) -> dict[str, Any]:
    assert group.rewards is not None
    return {
        "problem_id": group.problem_id,
        "task": group.task,
        "prompt": "".join(token_texts(tokenizer, group.prompt_tokens.tolist())),
        "rewards": [round(float(reward), 6) for reward in group.rewards],
        "failures": {str(index): why for index, why in group.failures.items()},
        "completions": [_completion(completion, tokenizer) for completion in group.completions[:ROLLOUTS]],
    }


def _completion(completion: Completion, tokenizer: Tokenizer) -> dict[str, Any]:
    """Token by token; of a long one without those in the middle."""
    size, half = len(completion.tokens), TOKENS // 2
    places = np.arange(size) if size <= TOKENS else np.r_[:half, size - half : size]
    tokens = completion.tokens[places].tolist()
    parts = [tokens] if size <= TOKENS else [tokens[:half], tokens[half:]]
    pieces = [piece for part in parts for piece in token_texts(tokenizer, part)]
    return {
        "text": "".join(pieces),
        "finish_reason": completion.finish_reason,
        "num_tokens": size,
        "omitted": None if size <= TOKENS else {"at": half, "tokens": size - TOKENS},
        "tokens": tokens,
        "pieces": pieces,
        "logprobs": [round(float(value), 4) for value in completion.logprobs[places]],
        "policy_versions": completion.policy_versions[places].tolist(),
        "drawn": completion.mask[places].astype(int).tolist(),
    }
