"""A teacher in a run: it says what it should, the policy comes nearer to it, and what it cannot be."""

import dataclasses
import functools
import http.server
import json
import threading
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute_jax import model, tasks
from isocompute_jax.distributed import alone
from isocompute_jax.experiment import loop, teacher, workdir
from isocompute_jax.experiment.config import EvaluationConfig, MeshConfig, PackingConfig
from isocompute_jax.experiment.teacher import ServedTeacher, logprobs_of
from isocompute_jax.learner import LossConfig
from isocompute_jax.records.errors import InputError, Interrupted, RunError
from isocompute_jax.records.rollout import Completion, RolloutGroup
from tests.distributed.company import Company
from tests.experiment.builders import MODEL, log_lines, make_inputs
from tests.model.tiny import random_params

SHAPE = dataclasses.replace(MODEL, embed_dim=32, num_layers=2)
"""The teacher's: not the policy's."""
DISTIL = LossConfig(policy_loss="none", kl_coef=1.0, kl_estimator="k2")


@pytest.fixture
def distilled(tmp_path):
    """A run that learns from a teacher alone."""
    config = make_inputs(tmp_path)
    params = random_params(SHAPE, seed=3, scale=0.2)
    model.save_checkpoint(tmp_path / "teacher", SHAPE, params, tokenizer_from=tmp_path / "tokenizer")
    return dataclasses.replace(
        config,
        teacher=str(tmp_path / "teacher"),
        loss=DISTIL,
        recipe=dataclasses.replace(config.recipe, zero_variance_groups="keep"),
        evaluation=EvaluationConfig(),
        max_compute=64 * 2,
    )


def watched_groups(monkeypatch):
    """The groups of each step, as they are trained on."""
    groups, plain = [], loop.make_updates

    def watched(parts, state, batch, *rest):
        groups.append(batch.sampled.groups)
        return plain(parts, state, batch, *rest)

    monkeypatch.setattr(loop, "make_updates", watched)
    return groups


@functools.partial(jax.jit, static_argnums=0)
def next_logprobs(shape, params, text):
    hidden, _ = model.prefill(shape, params, text, jnp.ones(text.shape, bool))
    return jax.nn.log_softmax(model.logits(shape, params, hidden))[0]


def scores(shape, params, prompt, tokens):
    """Log-probabilities of a completion's tokens by one forward pass of the whole text, padded behind."""
    text = np.concatenate([prompt, tokens, np.zeros(8 - len(prompt) - len(tokens), np.int32)])[None]
    logprobs = np.asarray(next_logprobs(shape, params, text))[len(prompt) - 1 :]
    return logprobs[np.arange(len(tokens)), tokens]


SLOW = pytest.mark.slow
ROWS = PackingConfig(row_tokens=16)


@pytest.mark.parametrize(
    ("packing", "kl_in", "mesh"),
    [
        pytest.param(PackingConfig(trees="off"), "loss", MeshConfig(), id="padded"),
        pytest.param(PackingConfig(), "loss", MeshConfig(), id="trees", marks=SLOW),
        pytest.param(ROWS, "reward", MeshConfig(), id="packed, in the reward", marks=SLOW),
        pytest.param(ROWS, "loss", MeshConfig(data=2, fsdp=2), id="on a mesh", marks=SLOW),
    ],
)
def test_the_kl_of_a_step_is_that_to_the_teacher(distilled, tmp_path, monkeypatch, packing, kl_in, mesh):
    """Computed once more, rollout by rollout: k2 in the loss, k1 in the reward, before the first update."""
    groups = watched_groups(monkeypatch)
    loss = DISTIL if kl_in == "loss" else LossConfig(kl_coef=0.1, kl_in="reward")
    loop.train(dataclasses.replace(distilled, packing=packing, loss=loss, mesh=mesh), tmp_path / "run")
    drawn = [(group.prompt_tokens, each.tokens) for group in groups[0] for each in group.completions]
    of_policy, of_teacher = (
        np.concatenate([scores(shape, params, *pair) for pair in drawn])
        for shape, params in (
            (MODEL, model.load_params(distilled.model, MODEL)),
            (SHAPE, model.load_params(distilled.teacher, SHAPE)),
        )
    )
    differences = of_policy - of_teacher
    expected = differences.mean() if kl_in == "reward" else np.mean(differences**2) / 2
    assert log_lines(tmp_path / "run", "metrics.jsonl")[0]["kl"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_the_own_first_weights_as_a_teacher_change_nothing(distilled, tmp_path):
    """Beside rewards, over epochs of mini-batches that are dealt anew."""
    recipe = dataclasses.replace(distilled.recipe, epochs=2, minibatches=2)
    loss = LossConfig(kl_coef=0.05, kl_estimator="k3")
    own = dataclasses.replace(distilled, loss=loss, recipe=recipe, teacher="", packing=PackingConfig(trees="off"))
    for name, config in (("own", own), ("taught", dataclasses.replace(own, teacher=own.model))):
        loop.train(config, tmp_path / name)
    ours, theirs = (log_lines(tmp_path / name, "metrics.jsonl") for name in ("taught", "own"))
    assert theirs[-1]["kl"] > 1e-4
    for one, other in zip(ours, theirs, strict=True):
        assert one["kl"] == pytest.approx(other["kl"], rel=1e-3, abs=1e-7)
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3, abs=1e-5)


@SLOW
def test_the_policy_comes_nearer_to_the_teacher(distilled, tmp_path):
    config = dataclasses.replace(distilled, max_compute=64 * 40)
    loop.train(config, tmp_path / "run")
    kl = [line["kl"] for line in log_lines(tmp_path / "run", "metrics.jsonl")]
    assert np.mean(kl[-10:]) < 0.5 * np.mean(kl[:5])
    assert config.resolved().alarms.kl == 0 and DISTIL.kl_coef == 1


class Said(http.server.BaseHTTPRequestHandler):
    """vLLM's completions endpoint, as far as a teacher asks it: every token of a prompt is as likely as its id says."""

    broken = False
    asked = 0
    first: ClassVar[list] = []
    """Before that: statuses, or what it says in place of each log-probability."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["prompt_logprobs"] == 0 and asked["temperature"] == 1.0 and self.path == "/v1/completions"
        Said.asked += 1
        odd = self.first.pop() if self.first else 200
        said = [None, *({str(token): {"logprob": -token / 10, "rank": 1}} for token in asked["prompt"][1:])]
        if not isinstance(odd, int):
            said[1:] = [{token: {"logprob": odd} for token in each} for each in said[1:]]
        body = json.dumps({"choices": [{"text": "", "prompt_logprobs": None if self.broken else said}]}).encode()
        self.send_response(odd if isinstance(odd, int) else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


@pytest.fixture
def served():
    server = Server(("127.0.0.1", 0), Said)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    Said.broken, Said.asked, Said.first = False, 0, []


@pytest.mark.parametrize(
    "packing",
    [pytest.param(PackingConfig(), id="trees"), pytest.param(ROWS, id="packed", marks=SLOW)],
)
def test_a_served_teacher(distilled, served, tmp_path, monkeypatch, packing):
    """Its log-probability of a token is minus a tenth of its id."""
    groups = watched_groups(monkeypatch)
    loop.train(dataclasses.replace(distilled, teacher=served, packing=packing), tmp_path / "run")
    for line, of_step in zip(log_lines(tmp_path / "run", "metrics.jsonl"), groups, strict=True):
        drawn = [each for group in of_step for each in group.completions]
        terms = np.concatenate([(each.logprobs + each.tokens / 10) ** 2 / 2 for each in drawn])
        assert line["kl"] == pytest.approx(terms.mean(), rel=1e-4)


def test_a_served_teacher_that_says_nothing_ends_the_run(distilled, served, tmp_path):
    Said.broken = True
    with pytest.raises(RunError, match=r"config.teacher = 'http://.*does not say the log-probabilities of a rollout"):
        loop.train(dataclasses.replace(distilled, teacher=served), tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()  # it is tried first


def test_a_served_teacher_is_asked_once_of_each_rollout(distilled, served, tmp_path):
    """However many mini-batches the batch is dealt to; and once at the start, whether it answers."""
    recipe = dataclasses.replace(distilled.recipe, minibatches=4)
    loop.train(dataclasses.replace(distilled, teacher=served, recipe=recipe, max_compute=64), tmp_path / "run")
    assert log_lines(tmp_path / "run", "metrics.jsonl")[0]["updates"] == 4 and Said.asked == 1 + 64


def groups_of(*sizes):
    tokens = np.array([5, 6, 7], np.int32)
    drawn = Completion.drawn(tokens, np.zeros(3, np.float32), np.zeros(3, np.int32), "stop")
    return [RolloutGroup(f"p{i}", 0, np.array([3, 4], np.int32), (drawn,) * size) for i, size in enumerate(sizes)]


def says_minus_a_tenth_of_each_id(groups):
    return all(
        each.logprobs.tolist() == pytest.approx([-0.5, -0.6, -0.7]) for group in groups for each in group.completions
    )


@pytest.mark.parametrize("first", [[503], [429, 503, 500], [float("nan"), float("inf"), -9999.0, 0.5], ["x", None]])
def test_a_served_teacher_is_asked_again(served, monkeypatch, caplog, first):
    """After an answer that it is away, and after one that cannot be."""
    monkeypatch.setattr(teacher, "RETRY_S", 0.01)
    Said.first = list(first)
    assert says_minus_a_tenth_of_each_id(ServedTeacher(served, alone(), wait_s=60.0).taught(groups_of(3, 2)))
    assert Said.asked == 5 + len(first) and f"config.teacher = '{served}' does not say" in caplog.text


@pytest.mark.parametrize(
    ("answer", "message", "asked"),
    [
        (503, "problem 'p0' .*answered 503", None),
        (400, "problem 'p0' .*answered 400", 1),
        (float("nan"), "problem 'p0' .token 1 of 5 has the log-probability nan", 5),
    ],
)
def test_a_served_teacher_that_does_not_come_back_ends_the_run(served, monkeypatch, answer, message, asked):
    monkeypatch.setattr(teacher, "RETRY_S", 0.01)
    Said.first = [answer] * 1000
    with pytest.raises(RunError, match=f"config.teacher = '{served}' does not say .*{message}"):
        ServedTeacher(served, alone(), wait_s=0.1).taught(groups_of(1))
    assert Said.asked == asked or (asked is None and Said.asked > 1)


def test_a_user_ends_a_run_whose_teacher_is_away(served):
    Said.first = [503] * 1000
    team = alone()
    team.raise_flag_if(lambda: True)
    with pytest.raises(Interrupted):
        ServedTeacher(served, team, wait_s=60.0).taught(groups_of(1))


def test_one_process_asks_for_all(served):
    company = Company(2, records=workdir.RECORDS)
    try:
        found = company.all(lambda team: ServedTeacher(served, team, wait_s=60.0).taught(groups_of(3)))
    finally:
        company.close()
    assert all(says_minus_a_tenth_of_each_id(groups) for groups in found) and Said.asked == 3


NUMBERS = (
    st.floats()
    | st.integers(-(10**400), 10**400)
    | st.sampled_from([0.0, 1e-7, 1e-3, -9999.0, None, "x", [], {}, True])
)


@given(st.lists(NUMBERS | st.floats(-30, 0), min_size=4, max_size=4), st.integers(0, 2))
def test_every_number_of_a_teacher_is_right_or_refused(numbers, more):
    """Tokens of a prompt and its completion; in the place of the first there is nothing."""
    said = [None, *({str(token): {"logprob": number}} for token, number in zip([4, 5, 6, 7], numbers, strict=True))]
    try:
        found = logprobs_of({"choices": [{"prompt_logprobs": said[: 5 - more]}]}, [3, 4, 5, 6, 7])
    except teacher.WRONG:
        assert more or any(type(x) not in (float, int, bool) or not -9999 < x <= 1e-4 for x in numbers)
        return
    assert not more and found.dtype == np.float32
    assert all(-9999 < x <= 1e-4 for x in found.tolist()) and found.tolist() == pytest.approx(
        [float(x) for x in numbers]
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"loss": LossConfig()},
            r"config.teacher = .* is learned from through the KL term alone: set config.loss.kl_coef=1",
        ),
        (
            {"loss": LossConfig(policy_loss="none"), "teacher": ""},
            r"policy_loss = 'none' learns from a teacher alone: set config.teacher",
        ),
        ({"teacher": "nowhere"}, r"nowhere"),
        (
            {"teacher": "http://h:1", "learner_temperature": 0.7},
            r"temperature is 0.7, its top_k 0: set",
        ),
    ],
)
def test_what_a_teacher_cannot_be(distilled, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        loop.train(dataclasses.replace(distilled, **changes), tmp_path / "run")


def test_a_teacher_of_other_tokens_is_refused(distilled, tmp_path):
    tasks.save_arithmetic_tokenizer(tmp_path / "other")
    path = tmp_path / "other" / "tokenizer.json"
    read = json.loads(path.read_text())
    vocabulary = read["model"]["vocab"]
    vocabulary["3"], vocabulary["7"] = vocabulary["7"], vocabulary["3"]
    path.write_text(json.dumps(read))
    model.save_checkpoint(tmp_path / "swapped", SHAPE, random_params(SHAPE), tokenizer_from=tmp_path / "other")
    with pytest.raises(InputError, match=r"swapped': it reads other tokens than the policy \('[37]' is"):
        loop.train(dataclasses.replace(distilled, teacher=str(tmp_path / "swapped")), tmp_path / "run")


def test_an_address_of_a_teacher_in_a_found_config_commands():
    from isocompute_jax.experiment.config import RunConfig
    from isocompute_jax.experiment.config.checks import check_trusted

    with pytest.raises(InputError, match=r"teacher = 'http://h:1'"):
        check_trusted(RunConfig(teacher="http://h:1"), "config.json")
    check_trusted(RunConfig(teacher="models/teacher"), "config.json")
