"""The way of new weights out of the loop: from the learner's state to the sampler, which casts and lays them out."""

from __future__ import annotations

import dataclasses

from isocompute_jax.experiment.build import Parts
from isocompute_jax.experiment.loop_state import LoopState


def send_weights(parts: Parts, state: LoopState) -> LoopState:
    """Gives the sampler the current weights unless it has them; every process lays down its share of them."""
    if state.served == state.step:
        return state
    parts.team.everywhere(lambda: parts.sampler.update_weights(state.learner.params, version=state.step))
    return dataclasses.replace(state, served=state.step)
