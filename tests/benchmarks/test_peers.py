"""The harness that runs this library beside others: its account of a step, its clock and table, and our own run."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.peers import clock, limit, run_ours, settings, table
from benchmarks.peers.job import Job, Timed, exact
from isocompute_jax import model
from isocompute_jax.tasks import load_tokenizer

JOB = Job("model", "problems", 4, 3, 9, 9, 2, 4, "directory")


@pytest.mark.slow
def test_the_account_is_what_the_compiled_products_count():
    shape = dataclasses.replace(settings.SMOKE, num_layers=1, vocab_size=256, embed_dim=128, mlp_dim=512)
    params = model.init_params(shape, jax.random.key(0))
    tokens, mask = jnp.zeros((12, 9), jnp.int32), jnp.ones((12, 9), bool)

    def logits(params: model.Params) -> jax.Array:
        return model.logits(shape, params, model.prefill(shape, params, tokens, mask)[0])

    cost: Any = jax.jit(logits).lower(params).compile().cost_analysis()
    # A prompt of one token, and completions of all nine: no prompt is shared, and the last position is not read.
    found = limit.step_flops(
        shape, dataclasses.replace(JOB, group_size=1, problems_per_batch=12), prompt=1, completion=9
    )
    # The program has every pair of the 81, norms and softmax; the account has those that see each other.
    assert found.decode + found.prefill == pytest.approx(cost["flops"], rel=0.05)
    assert found.backward == 2 * found.forward


def test_prompts_are_counted_once_for_their_group():
    def of(group_size, problems):
        job = dataclasses.replace(JOB, group_size=group_size, problems_per_batch=problems)
        return limit.step_flops(model.EMBEDDED, job, prompt=9, completion=6.5)

    assert of(16, 2).decode == of(4, 8).decode
    assert of(4, 8).prefill == 4 * of(16, 2).prefill


def test_the_clock_leaves_the_first_steps_out(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(clock.time, "perf_counter", lambda: float(next(now)))
    watch = clock.Clock()
    for step in range(5):
        with watch.phase("sampling"):
            pass
        watch.add("update", 10.0 * step)
        watch.sampled([step, step + 2])
        watch.graded([0.0, 1.0, 1.0, 0.0])
        watch.end_step()
    timed = watch.timed(2, "1.0")
    assert timed.step_s == [3.0, 3.0, 3.0]
    assert timed.phase_s == [{"sampling": 1.0, "update": 10.0 * step} for step in (2, 3, 4)]
    assert timed.completion_tokens == 4.0
    assert timed.reward == 0.5


def test_the_table_compares_within_rounds():
    def timed(step_s):
        phases = [{"sampling": 0.25 * step_s, "update": 0.5 * step_s}] * 3
        return table.summary(Timed([step_s] * 3, phases, 6.0, 0.0, ""), rollouts=12)

    # The machine is half as fast in the second round, and the peer always half as fast as we are.
    rounds = [{"ours": timed(1.0), "TRL": timed(2.0)}, {"ours": timed(2.0), "TRL": timed(4.0)}]
    ours, theirs = table.lines("tiny", 4, rounds)
    cells = [cell.strip() for cell in theirs.strip("|").split("|")]
    rates, seconds = ["4.50", "3.00 .. 6.00", "27.00"], ["0.750", "0.000", "1.500", "0.750"]
    assert cells == ["tiny", "4", "TRL", *rates, *seconds, "2.00x", "2.00 .. 2.00"]
    assert ours.count("|") == theirs.count("|") == len(table.HEAD) + 1


def test_only_the_answer_earns_anything():
    assert exact(["50,48", "50,4", ""], ["50,48", "50,48", "1"]) == [1.0, 0.0, 0.0]


@pytest.mark.slow
def test_random_weights_never_end_a_completion(tmp_path):
    setting = settings.SETTINGS["smoke"]
    settings.make_files("smoke", setting, tmp_path)
    job, shape = settings.make_job("smoke", setting, tmp_path, 4), setting.shape
    tokenizer, params = load_tokenizer(job.model), model.load_params(job.model, shape)
    prompts = np.stack(tokenizer.encode_batch([problem["prompt"] for problem in job.read_problems()[:8]]))
    assert prompts.shape == (8, setting.prompt)
    assert settings.mean_prompt(job) == setting.prompt
    hidden, _ = model.prefill(shape, params, jnp.asarray(prompts), jnp.ones(prompts.shape, bool))
    drawn = jax.nn.softmax(model.logits(shape, params, hidden))
    never = [*tokenizer.eos_ids, tokenizer.pad_id, shape.vocab_size - 1]  # the last id has no token
    assert drawn[..., never].max() < 1e-12


@pytest.mark.slow
def test_our_run_of_a_job(tmp_path):
    setting = settings.SETTINGS["smoke"]
    settings.make_files("smoke", setting, tmp_path)
    timed = run_ours.run(settings.make_job("smoke", setting, tmp_path, 4))
    assert timed.completion_tokens == setting.completion
    assert len(timed.step_s) == len(timed.phase_s) == setting.steps
    for step, phases in zip(timed.step_s, timed.phase_s, strict=True):
        assert 0 < sum(phases.values()) <= step * 1.01
