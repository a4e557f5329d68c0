"""What a checkpoint holds beside arrays, and what those of earlier releases did not."""

import dataclasses
import json
from typing import Any

import numpy as np

from isocompute_jax.experiment.curriculum import History
from isocompute_jax.experiment.loop_state import Ledger, LoopState, from_checkpoint

LEARNER: Any = object()
LEDGER = Ledger(step=5, compute=90, learner_device_hours={"cpu": 2.0}, sampler_device_hours={"H200": 8.0, "cpu": 1.0})


def old_ledger(**fields) -> dict[str, Any]:
    """As releases wrote it that counted the learner's devices alone."""
    new = ("learner_device_hours", "sampler_device_hours", "lost_device_hours")
    ledger = {name: value for name, value in dataclasses.asdict(Ledger(**fields)).items() if name not in new}
    return {**ledger, "device_hours": 1.5}


def test_a_state_and_back():
    history = dataclasses.replace(History.empty(3), attempts=np.array([4, 0, 8], np.int32))
    state = LoopState(LEARNER, {"sources": {}}, history, LEDGER, 4, 70, 3)
    back = from_checkpoint(LEARNER, json.loads(json.dumps(state.to_json())), problems=3)
    assert back.to_json() == state.to_json()
    assert (back.step, back.evaluated, back.evaluated_compute, back.checked) == (5, 4, 70, 3)


def test_a_checkpoint_of_a_release_without_history():
    """Its steps all cost the same, 64 rollouts each, which says at which C it was evaluated last."""
    for evaluated, compute in ((-1, -1), (0, 0), (4, 256)):
        ledger = old_ledger(step=5, compute=320)
        loop = {"ledger": ledger, "stream": {"next_index": 5}, "evaluated": evaluated, "checked": -1}
        back = from_checkpoint(LEARNER, loop, problems=3)
        assert (back.evaluated, back.evaluated_compute) == (evaluated, compute)
        assert back.history.attempts.tolist() == [0, 0, 0]
        assert back.ledger.device_hours == 1.5 and back.ledger.learner_device_hours == {"unknown": 1.5}
    first = {"ledger": old_ledger(), "stream": {"next_index": 0}, "evaluated": 0, "checked": 0}
    assert from_checkpoint(LEARNER, first, problems=3).evaluated_compute == 0
