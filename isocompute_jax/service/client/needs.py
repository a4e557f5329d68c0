"""What a run needs of every server, and what one lacks of it."""

from __future__ import annotations

import dataclasses

from isocompute_jax.service.proto import sampler_pb2 as pb


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a run needs of a server.

    Attributes:
      routing: the experts that tokens went to.
      turn_tokens: longest prompt and completion of rollouts drawn in turns; 0 where none are.
      token_versions: which weights drew each token, where these change while it is drawn.
    """

    routing: bool
    turn_tokens: int
    token_versions: bool


def lack(status: pb.StatusReply, needs: Needs) -> str:
    """What the run needs and the server cannot do, and the remedy; empty for nothing."""
    if needs.routing and not status.routing:
        return (
            "does not say which experts it chose, and config.loss.routing asks for them: start it with --routing, "
            "which the engine jax has, or set config.loss.routing to 'own'"
        )
    if needs.turn_tokens and not status.turns:
        return (
            "is of a release that draws no rollout in turns, as config.sampling.thinking and config.sampling.tool "
            "need it: start servers of this release"
        )
    if needs.turn_tokens > status.limits.max_model_len:
        return (
            f"holds {status.limits.max_model_len} tokens, and rollouts drawn in turns have up to "
            f"{needs.turn_tokens} (config.sampling.max_prompt_tokens and config.sampling.max_tokens): start it "
            f"with --max_model_len={needs.turn_tokens}, or lower one of the two"
        )
    if needs.token_versions and status.no_token_versions:
        return (
            f"runs {status.engine} {status.engine_version}, which does not say which weights drew each token, and "
            "config.asynchrony='in_flight' needs that: set it to 'boundary' or 'phases', or start servers with a newer "
            f"{status.engine}"
        )
    return ""
