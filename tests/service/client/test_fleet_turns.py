"""Rollouts in turns over a fleet: budgets, turns and indices reach the engines; servers that lack them are named."""

import dataclasses

import numpy as np
import pytest

from benchmarks.simulated_engine import SimulatedEngine
from isocompute_jax import model
from isocompute_jax.records.errors import InputError
from isocompute_jax.records.requests import SampleRequest, SamplingParams
from isocompute_jax.sampling import InProcessSampler, TurnSampler
from isocompute_jax.service.proto import sampler_pb2 as pb
from isocompute_jax.service.server.engines.base import JaxSettings
from isocompute_jax.service.server.engines.jax_engine import JaxEngine
from isocompute_jax.service.server.servicer import Servicer
from tests.sampling.turn_builders import PHRASE, assert_equal_completions, interruption
from tests.service.fleet_builders import CONFIG, fleet, live, params, requests, tensors

LONGEST = 2 + 6 + len(PHRASE) + 4
"""Prompt, thinking, phrase and answer."""


SIZES = (4, 2, 6)
"""Of groups, side by side."""


def ask(count):
    asked = requests(count, max_tokens=LONGEST - 2)
    return [dataclasses.replace(r, stop_tokens=(0,), group_size=SIZES[i % 3]) for i, r in enumerate(asked)]


def sample(inner, asked, *, background):
    """Completions by problem."""
    sampler = TurnSampler(inner, interruption(), background=background)
    sampler.update_weights(params(), version=1)
    sampler.submit(asked)
    return {group.problem_id: group.completions for group in sampler.completed()}


@pytest.mark.parametrize("background", [False, True])
def test_groups_come_whole_over_several_servers(tmp_path, background):
    """What a simulated engine draws follows from the key, the turn and the budget, and every group is there once."""
    engines = [SimulatedEngine(tensors(), tokens_per_s=4000.0, tail=1.0, median_length=4) for _ in range(2)]
    with live(engine=engines[0]) as [one], live(engine=engines[1]) as [other]:
        with fleet(one, other, directory=tmp_path, turn_tokens=LONGEST) as inner:
            found = sample(inner, ask(12), background=background)
        with fleet(one, directory=tmp_path, turn_tokens=LONGEST) as inner:
            again = sample(inner, ask(12), background=False)
    assert sorted(found) == sorted(f"p{i}" for i in range(12))
    interrupted = 0
    for problem, completions in found.items():
        assert len(completions) == SIZES[int(problem[1:]) % 3]
        for ours, theirs in zip(completions, again[problem], strict=True):
            assert_equal_completions(ours, theirs)
            assert set(ours.policy_versions) == {1}
            interrupted += not ours.mask.all()
    assert 0 < interrupted < 48


@pytest.mark.slow
def test_the_jax_engine_draws_what_the_sampler_in_process_does(tmp_path):
    """Over gRPC, with budgets, turns and rollouts asked for alone: the same tokens, log-probabilities within 1e-5."""
    model.save_checkpoint(tmp_path / "model", CONFIG, params(), tokenizer_from=None)
    engine = JaxEngine(JaxSettings(str(tmp_path / "model"), max_slots=8))
    here = InProcessSampler(
        CONFIG,
        params(),
        pad_token=0,
        max_prompt_tokens=2,
        max_continued_tokens=2 + interruption().continued_tokens,
        max_rollouts_per_dispatch=16,
    )
    asked = ask(6)
    with live(engine=engine) as [server], fleet(server, directory=tmp_path, turn_tokens=LONGEST) as inner:
        remote = sample(inner, asked, background=True)
        inner.submit([dataclasses.replace(asked[0], group_size=2, first_rollout=1, budgets=(1, 3))])
        [alone] = inner.completed()
    local = sample(here, asked, background=False)
    inserted = 0
    for problem, completions in local.items():
        for ours, theirs in zip(remote[problem], completions, strict=True):
            assert_equal_completions(ours, theirs, atol=1e-5)
            inserted += not ours.mask.all()
    assert inserted > 3
    assert (alone.first_rollout, [len(c.tokens) <= n for c, n in zip(alone.completions, (1, 3), strict=True)]) == (
        1,
        [True, True],
    )
    for ours, theirs in zip(alone.completions, local["p0"][1:3], strict=True):
        same = min(len(ours.tokens), len(theirs.tokens))
        np.testing.assert_array_equal(ours.tokens[:same], theirs.tokens[:same])


def test_servers_that_know_no_turns_or_hold_too_little_are_named(tmp_path, monkeypatch):
    short = SimulatedEngine(tensors(), max_model_len=LONGEST - 1)
    with (
        live(engine=short) as [server],
        fleet(server, directory=tmp_path, turn_tokens=LONGEST) as sampler,
        pytest.raises(InputError, match=rf"{server.address} holds 14 tokens, .* up to 15 .*--max_model_len=15"),
    ):
        sampler.update_weights(params(), version=1)
    status = Servicer.Status

    async def older(self, message, context):
        reply = await status(self, message, context)
        reply.ClearField("turns")
        return reply

    monkeypatch.setattr(Servicer, "Status", older)
    with live() as [server]:
        with (
            fleet(server, directory=tmp_path, turn_tokens=LONGEST) as sampler,
            pytest.raises(InputError, match=rf"{server.address} is of a release that draws no rollout in turns"),
        ):
            sampler.update_weights(params(), version=1)
        with fleet(server, directory=tmp_path) as sampler:  # one turn is all that a run needs
            sampler.update_weights(params(), version=1)


def test_a_request_with_everything_is_a_few_bytes_more():
    """`budgets` is packed, and absent where all are alike."""
    from isocompute_jax.service.proto import convert

    request = SampleRequest("p", np.array([1], np.int32), 3, 1, 2, (), SamplingParams(1.0, 1.0, 12000))
    plain = convert.request_to_message(request, group_id="g")
    assert not plain.budgets and plain.first_rollout == plain.turn == 0
    full = dataclasses.replace(request, budgets=(10000, 11000, 12000), first_rollout=5, turn=1)
    message = convert.request_to_message(full, group_id="g")
    assert isinstance(message, pb.SampleRequest) and message.ByteSize() - plain.ByteSize() <= 12
