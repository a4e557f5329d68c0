"""What vLLM reports is what the learner would: token by token, at every temperature, with the seeds that were asked."""

import grpc
import numpy as np
import pytest

from tests.vllm.builders import LONG, SHORT, collect, learner_logprobs, stacked, tensors_of

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_log_probabilities_are_the_learners(served, kind, temperature):
    client, config, params, _ = served(kind)
    for prompt in (SHORT, LONG):
        tokens, logprobs, _ = stacked(client.sample(prompt, 8, 40, temperature=temperature))
        wanted = learner_logprobs(config, params, prompt, tokens, temperature)
        assert wanted.std() > 0.3  # no flat distribution, which any temperature would leave alone
        np.testing.assert_allclose(logprobs, wanted, atol=1e-4)


def test_the_same_seed_draws_the_same_tokens(served):
    client, *_ = served("tied")
    first, again = (stacked(client.sample(SHORT, 4, 30))[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    # A rollout is keyed by its own index: the size of its group does not matter, ...
    np.testing.assert_array_equal(stacked(client.sample(SHORT, 2, 30))[0], first[:2])
    # ... and no two have the same key.
    assert len({tuple(row) for row in first.tolist()}) == 4
    for change in ({"seed": 3}, {"step": 3}, {"problem_id": "q"}):
        assert (stacked(client.sample(SHORT, 4, 30, **change))[0] != first).any(axis=1).all()


def test_groups_of_unequal_size_are_drawn_side_by_side(served):
    client, config, params, _ = served("tied")
    sizes = (2, 16, 6)
    calls = [client.stub.Sample(client.request(SHORT, size, 30, problem_id=f"p{size}"), timeout=120) for size in sizes]
    for size, call in zip(sizes, calls, strict=True):
        tokens, logprobs, _ = stacked(collect(call))
        assert tokens.shape == (size, 30) and len({tuple(row) for row in tokens.tolist()}) == size
        np.testing.assert_allclose(logprobs, learner_logprobs(config, params, SHORT, tokens, 1.0), atol=1e-4)


def test_stop_tokens_end_a_completion_and_no_others_do(served):
    client, *_ = served("tied")
    stops = (7, 21, 30)
    found = client.sample(SHORT, 64, 60, stop_token_ids=stops)
    for completion in found:
        assert not np.isin(completion.tokens[:-1], stops).any()
        stopped = completion.tokens[-1] in stops
        assert completion.finish_reason == ("stop" if stopped else "length")
        assert stopped or len(completion.tokens) == 60
    assert {completion.finish_reason for completion in found} == {"stop", "length"}


def test_the_nucleus_is_what_is_drawn_from(served):
    client, config, params, _ = served("tied")
    tokens, logprobs, _ = stacked(client.sample(SHORT, 16, 30, top_p=0.5))
    whole = learner_logprobs(config, params, SHORT, tokens, 1.0)
    # The nucleus has at least half of the probability: its tokens gain at most a factor of two.
    gained = logprobs - whole
    assert gained.min() > 0 and gained.max() < np.log(2) + 1e-4


def test_a_temperature_that_vllm_would_change_is_refused(served):
    client, *_ = served("tied")
    with pytest.raises(grpc.RpcError) as caught:
        client.sample(SHORT, 2, 5, temperature=0.005)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "below 0.01" in (caught.value.details() or "")
    assert client.status().serving


def test_every_drawn_token_is_counted(served):
    client, *_ = served("tied")
    before = client.status().tokens_generated
    client.sample(SHORT, 5, 17)
    assert client.status().tokens_generated - before == 5 * 17


def test_status_lists_the_tensors_of_the_checkpoint(served):
    for kind in ("tied", "untied"):
        client, config, params, _ = served(kind)
        status = client.status(tensors=True)
        wanted = {name: value.shape for name, value in tensors_of(config, params).items()}
        assert {tensor.name: tuple(tensor.shape) for tensor in status.tensors} == wanted
        assert {tensor.dtype for tensor in status.tensors} == {"float32"}
        assert (status.engine, status.engine_version) == ("vllm", "0.32.0")
        assert (status.vocab_size, status.limits.max_model_len) == (config.vocab_size, config.max_positions)
