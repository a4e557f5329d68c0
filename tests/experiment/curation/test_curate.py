"""Curation as a whole: rates are recounted, samplers give the same, and what cannot be continued is refused."""

import dataclasses
import functools
import json
import re
import shutil

import numpy as np
import pytest

from benchmarks.simulated_sampler import SimulatedSampler
from isocompute_jax import model
from isocompute_jax.experiment.config import MeshConfig, RunConfig
from isocompute_jax.experiment.curation import curate as room
from isocompute_jax.experiment.curation.config import CurationConfig
from isocompute_jax.experiment.curation.curate import curate
from isocompute_jax.experiment.curation.measure import naming_flags
from isocompute_jax.experiment.curation.record import BLOCK
from isocompute_jax.experiment.samplers import make_sampler
from isocompute_jax.records.checksums import PIECE, PIECES, model_digest
from isocompute_jax.records.errors import CONFIG, InputError, RunError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.sampling import InProcessSampler, SampleRequest, SamplingParams
from isocompute_jax.service.client.service_config import ServiceConfig
from isocompute_jax.tasks import ProblemFile, RewardConfig, load_tokenizer, read_problems
from tests.model.tiny import random_params
from tests.service import fleet_builders

ALL = CurationConfig(ranges={"all": (0.0, 1.0)}, sets=(), validation_size=4)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr(room, "draw_pictures", lambda *_: None)


@pytest.fixture
def source(base_run):
    return RunConfig(model=base_run.model, sampling=base_run.sampling)


@pytest.fixture
def problems(base_run):
    """They are cut, so that some of them are in no file of the test's."""
    return read_problems(base_run.train_set)


def simulated(config, shape, params, *, workdir, tokenizer, mesh, interrupted):
    return SimulatedSampler(tokenizer, length=2, tail=0.0)


def no_sampler(*_, **__):
    raise AssertionError("everything was drawn already")


def solved(out, samples) -> dict[str, int]:
    return {p.id: round(p.measured[f"avg@{samples}"] * samples) for p in read_problems(out / "measured.jsonl")}


def lines(path) -> list[str]:
    return sorted(path.read_text().splitlines())


def test_measured_rates_are_a_recount_of_what_the_model_answers(base_run, problems, source, tmp_path):
    config = dataclasses.replace(ALL, samples=24, seed=3, groups_in_flight=16)
    source = dataclasses.replace(source, sampling=dataclasses.replace(source.sampling, max_rollouts_per_dispatch=64))
    curate(ProblemFile(base_run.train_set), tmp_path, source=source, config=config)
    # Sampled anew, decoded and compared here: 16 rollouts, and 8 of the next block.
    tokenizer = load_tokenizer(base_run.model)
    shape = model.load_config(base_run.model)
    sampler = InProcessSampler(
        shape,
        model.load_params(base_run.model, shape),
        pad_token=tokenizer.pad_id,
        max_prompt_tokens=source.sampling.max_prompt_tokens,
        max_rollouts_per_dispatch=64,
    )
    params = SamplingParams(temperature=1.0, top_p=1.0, max_tokens=source.sampling.max_tokens)
    expected, answers = dict.fromkeys((p.id for p in problems), 0), {p.id: p.answer for p in problems}
    for block, count in ((0, BLOCK), (1, 8)):
        sampler.submit(
            [
                SampleRequest(p.id, tokenizer.encode(p.text), count, 3, block, tokenizer.eos_ids, params)
                for p in problems
            ]
        )
        for group in sampler.completed():
            texts = tokenizer.decode([completion.tokens.tolist() for completion in group.completions])
            # The last number, unless it is an operand ("3-5"); special tokens are spelt out, and stand between numbers.
            numbers = [re.search(r"(?:^|[=,>\ufffd])([-+]?\d+)(?:[=,\ufffd]|<\w+>)*$", text) for text in texts]
            answer = int(answers[group.problem_id])
            expected[group.problem_id] += sum(found is not None and int(found[1]) == answer for found in numbers)
    assert solved(tmp_path, 24) == expected
    assert list(solved(tmp_path, 24)) == [p.id for p in problems]
    assert 0 < sum(expected.values()) < 24 * len(problems)
    summary = json.loads((tmp_path / "curation.json").read_text())
    assert summary["rollouts"] == 24 * len(problems) and summary["mean"] == pytest.approx(
        np.mean(list(expected.values())) / 24
    )
    assert 0 < summary["truncation_rate"] < 1 and 24 * 16 < summary["tokens"] <= 24 * 16 * 2


@pytest.mark.slow
def test_a_mesh_measures_the_same(problems, source, tmp_path):
    curate(problems, tmp_path / "one", source=source, config=ALL)
    meshed = dataclasses.replace(source, mesh=MeshConfig(data=2, fsdp=2))
    curate(problems, tmp_path / "mesh", source=meshed, config=ALL)
    assert lines(tmp_path / "mesh" / "counts.jsonl") == lines(tmp_path / "one" / "counts.jsonl")


def test_a_fleet_that_loses_a_server_measures_the_same(problems, source, tmp_path):
    """Two servers, one of which dies when some groups are there; again with one that lives."""
    path = tmp_path / "model"
    shape = fleet_builders.CONFIG
    model.save_checkpoint(path, shape, random_params(shape), tokenizer_from=source.model)
    found = []
    for name, count in (("two", 2), ("one", 1)):
        with fleet_builders.live(count) as servers:
            endpoints = ",".join(server.address for server in servers)
            service = ServiceConfig(endpoints=endpoints, shared_dir=str(tmp_path), stall_s=30.0)
            curate(
                problems,
                tmp_path / name,
                source=dataclasses.replace(source, model=str(path), service=service),
                config=dataclasses.replace(ALL, samples=40, groups_in_flight=8),
                make_sampler=functools.partial(losing, servers[: count - 1]),
            )
        found.append(lines(tmp_path / name / "counts.jsonl"))
    assert found[0] == found[1] and len(found[0]) == 1 + 3 * len(problems)


def losing(servers, *arguments, **options):
    """The fleet of the config, of which some servers end when the third group is there."""
    sampler = make_sampler(*arguments, **options)
    completed = sampler.completed

    def then_lost(**lane):
        for number, group in enumerate(completed(**lane)):
            if number == 3:
                for server in servers:
                    server.stop()
            yield group

    sampler.completed = then_lost
    return sampler


def test_asked_again_it_only_cuts(problems, source, tmp_path):
    config = dataclasses.replace(ALL, samples=32)
    problems = [dataclasses.replace(problem, answer="1") for problem in problems]
    source = dataclasses.replace(source, sampling=dataclasses.replace(source.sampling, max_tokens=3))
    curate(problems, tmp_path, source=source, config=config, make_sampler=simulated)
    before = (tmp_path / "counts.jsonl").read_bytes()
    again = dataclasses.replace(config, sets=("easy",), ranges={"low": (0.0, 0.5)}, samples=16, validation_size=1)
    counts = curate(problems, tmp_path, source=source, config=again, make_sampler=no_sampler)
    assert (tmp_path / "counts.jsonl").read_bytes() == before
    rates = [p.measured["avg@16"] for p in read_problems(tmp_path / "measured.jsonl")]
    assert counts == {"easy": sum(0.3 <= rate <= 0.6 for rate in rates), "low": sum(rate <= 0.5 for rate in rates)}
    curate(
        problems,
        tmp_path / "small",
        source=source,
        config=dataclasses.replace(config, samples=16),
        make_sampler=simulated,
    )
    assert solved(tmp_path / "small", 16) == solved(tmp_path, 16)  # the first 16 are those of a smaller k


def test_problems_may_join(problems, source, tmp_path):
    curate(problems[:10], tmp_path / "out", source=source, config=ALL, make_sampler=simulated)
    curate(problems[2:], tmp_path / "out", source=source, config=ALL, make_sampler=simulated)
    curate(problems, tmp_path / "whole", source=source, config=ALL, make_sampler=simulated)
    assert lines(tmp_path / "out" / "counts.jsonl") == lines(tmp_path / "whole" / "counts.jsonl")
    assert list(solved(tmp_path / "out", 16)) == [p.id for p in problems[2:]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.7}, "temperature: 1.0 there, 0.7 here"),
        ({"max_tokens": 1}, "max_tokens: 2 there, 1 here"),
        ({"seed": 1}, "seed: 0 there, 1 here"),
        ({"dtype": "bfloat16"}, "dtype: 'float32' there, 'bfloat16' here"),
        ({"reward": RewardConfig("exact")}, "reward: the problems' own tasks there, 'exact' here"),
    ],
)
def test_samples_of_another_measurement_are_refused(problems, source, tmp_path, change, message):
    curate(problems, tmp_path, source=source, config=ALL, make_sampler=simulated)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    fields = {field.name for field in dataclasses.fields(source.sampling)}
    other = dataclasses.replace(
        source,
        sampling=dataclasses.replace(source.sampling, **{k: v for k, v in change.items() if k in fields}),
        dtype=change.get("dtype", "float32"),
        reward=change.get("reward", RewardConfig()),
    )
    config = dataclasses.replace(ALL, seed=change.get("seed", 0))
    with pytest.raises(InputError, match=re.escape(f"another measurement ({message})") + ".* [Cc]hoose another --out"):
        curate(problems, tmp_path, source=other, config=config, make_sampler=no_sampler)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize("change", [{"prompt": "8+8="}, {"answer": "7"}, {"task": "exact"}, {"extra": {"tests": 1}}])
def test_a_problem_that_has_changed_is_refused(problems, source, tmp_path, change):
    curate(problems, tmp_path, source=source, config=ALL, make_sampler=simulated)
    changed = [*problems[:3], dataclasses.replace(problems[3], **change), *problems[4:]]
    with pytest.raises(InputError, match=r"counts.jsonl:\d+: problem 'p3' was measured with another prompt, answer"):
        curate(changed, tmp_path, source=source, config=ALL, make_sampler=no_sampler)


def test_other_weights_are_another_model(base_run, tmp_path):
    shape = model.load_config(base_run.model)
    for seed in (0, 1):
        params = random_params(shape, seed)
        model.save_checkpoint(tmp_path / f"{seed}", shape, params, tokenizer_from=base_run.model)
    shutil.copytree(tmp_path / "0", tmp_path / "copy")
    assert model_digest(tmp_path / "0") == model_digest(tmp_path / "copy") != model_digest(tmp_path / "1")
    tokenizer = tmp_path / "copy" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    assert model_digest(tmp_path / "0") != model_digest(tmp_path / "copy")


def test_large_weights_are_told_apart_by_pieces(tmp_path):
    data = np.zeros(3 * PIECE * PIECES + 5, np.uint8)
    found = []
    for value in (0, 1):
        data[:: PIECE // 2] = value  # two numbers of each piece
        data.tofile(tmp_path / "model.safetensors")
        found.append(model_digest(tmp_path))
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            Problem("long", "1+1+1+1=", "4", "numeric"),
            "problem 'long': its prompt has 8 tokens; between 1 and --max_prompt_",
        ),
        (Problem("p0", "1+1=", "2", "numeric"), "problem 'p0' is there twice"),
    ],
)
def test_a_bad_problem_is_found_before_anything_is_drawn(problems, source, tmp_path, bad, message):
    with pytest.raises(InputError, match=re.escape(message)):
        curate([*problems, bad], tmp_path / "out", source=source, config=ALL, make_sampler=no_sampler)
    assert not (tmp_path / "out").exists()


def test_what_lacks_a_server_or_a_device_names_flags(problems, source, tmp_path):
    for change, message in (
        ({"service": ServiceConfig(endpoints="nowhere")}, "--endpoints: 'nowhere' is neither host:port"),
        ({"mesh": MeshConfig(tensor=3)}, "--tensor = 3 does not divide the model's 2 heads"),
        (
            {"mesh": MeshConfig(expert=2)},
            "--expert = 2: the model has no experts; set it to 1, and give its devices to --fsdp or",
        ),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            curate(problems, tmp_path / "out", source=dataclasses.replace(source, **change), config=ALL)
    with (
        pytest.raises(RunError, match=r"^no server; start one \(--wait_s\), --dtype; see config.json$"),
        naming_flags(),
    ):
        raise RunError(f"no server; start one ({CONFIG.service.wait_s}), {CONFIG.dtype}; see config.json")


def test_two_at_work_in_one_directory_are_refused(problems, source, tmp_path):
    def second(*arguments, **options):
        with pytest.raises(InputError, match="another curation is at work in"):
            curate(problems, tmp_path, source=source, config=ALL, make_sampler=no_sampler)
        return simulated(*arguments, **options)

    curate(problems, tmp_path, source=source, config=ALL, make_sampler=second)
