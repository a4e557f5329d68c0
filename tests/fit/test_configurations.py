"""Configurations: everything that varies between runs tells them apart, and nothing leaves without a sentence."""

from __future__ import annotations

import json

import numpy as np
import pytest

from isocompute_jax.fit.configurations import average_seeds, ended_early, group_runs, group_schedules, rollouts_at
from isocompute_jax.fit.read import Notes, ReadOptions, RunCurve, memory_table, read_curves
from isocompute_jax.records.run_files import CONFIG, DONE, EVAL, RunFacts

COMPUTE = (0, 1000, 2000, 4000, 8000, 16000)
BATCH = 8


def truth(n: int, rate: float, compute: float) -> float:
    """A Hill curve, whose end depends on n and on the rate."""
    return 0.1 + (0.3 + 0.02 * n + 300 * rate) * compute / (compute + 500 * n)


def table(runs, *, noise=0.0, extra=None, compute=COMPUTE):
    """Rows of runs (name, n, rate, seed), as columns; each evaluation with noise of its own."""
    rng = np.random.default_rng(0)
    rows = []
    for name, n, rate, seed in runs:
        for c in compute:
            row = {"run": name, "group_size": n, "problems_per_batch": BATCH, "learning_rate": rate, "seed": seed}
            row |= {"step": c / BATCH / n, "compute": float(c), "avg@4": truth(n, rate, c) + noise * rng.normal()}
            rows.append(row | (extra(name, n, rate, seed, c) if extra else {}))
    return {name: [row[name] for row in rows] for name in rows[0]}


def grid(sizes=(4, 8), rates=(1e-4, 3e-4), seeds=(0, 1, 2)):
    return [(f"n{n}-lr{rate}-s{s}", n, rate, s) for n in sizes for rate in rates for s in seeds]


def groups_of(columns, **options):
    runs, notes = read_curves(memory_table(columns), ReadOptions(**options))
    return *group_runs(runs), notes


def test_sizes_times_rates_in_one_table_are_as_many_configurations():
    """Row 2 of the ordinary situations: the same seeds at every rate, and every curve is the truth of its own rate."""
    groups, texts, notes = groups_of(table(grid(), noise=0.004))
    assert notes == Notes() and texts == []
    assert [group.configuration.name for group in groups] == [
        f"n = {n}, learning rate = {rate}" for n in (4, 8) for rate in ("0.0001", "0.0003")
    ]
    for group in groups:
        found = group.configuration
        assert [run.facts.seed for run in group.runs] == [0, 1, 2]
        curve = average_seeds(group, "avg@4")
        assert curve is not None
        expected = [truth(found.group_size, found.learning_rate, c) for c in COMPUTE]
        np.testing.assert_allclose(curve.reward, expected, atol=0.01)


@pytest.mark.parametrize("drop", [("run",), ("run", "compute"), ("run", "step")])
def test_rates_tell_runs_apart_without_a_column_of_runs(drop):
    columns = {name: values for name, values in table(grid()).items() if name not in drop}
    groups, texts, notes = groups_of(columns)
    assert notes == Notes() and texts == []
    assert [(g.configuration.group_size, g.configuration.learning_rate, len(g.runs)) for g in groups] == [
        (n, rate, 3) for n in (4, 8) for rate in (1e-4, 3e-4)
    ]
    falling = columns | {"learning_rate": [1e-4 / (1 + i % len(COMPUTE)) for i in range(len(columns["seed"]))]}
    half = {name: values[: len(COMPUTE)] for name, values in falling.items()}
    ((one,), _, notes) = groups_of(half)
    assert notes == Notes() and len(one.runs) == 1 and one.configuration.learning_rate == 1e-4


def test_seeds_at_different_rates_are_not_averaged():
    """Row 3: seed 1 at one rate and seed 2 at another are two configurations."""
    groups, texts, notes = groups_of(table([("a", 8, 1e-4, 1), ("b", 8, 1e-3, 2)]))
    assert [group.configuration.name for group in groups] == [
        "n = 8, learning rate = 0.0001",
        "n = 8, learning rate = 0.001",
    ]
    assert [len(group.runs) for group in groups] == [1, 1] and texts == [] and notes == Notes()


def test_a_rate_that_falls_within_a_run_is_its_highest():
    """Seeds whose logs begin at slightly other steps are one configuration."""
    columns = table(grid(rates=(1e-4,), sizes=(8,)))
    rate = [1e-4 * (1 - 0.001 * s - 0.1 * i) for s in range(3) for i in range(len(COMPUTE))]
    ((group,), texts, _) = groups_of(columns | {"learning_rate": rate})
    assert (group.configuration.name, len(group.runs), texts) == ("n = 8", 3, [])
    assert group.configuration.learning_rate == pytest.approx(1e-4)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("temperature", (0.6, 1.0)), ("loss", ("grpo", "cispo")), ("config.kl_coef", (0.0, 0.01)), ("kl", (0.0, 0.01)),
        ("train_batch_size", (64, 128)), ("model", ("small", "large")), ("clip_high", (0.2, 0.28)),
    ],
)  # fmt: skip
def test_a_setting_that_differs_between_runs_is_part_of_the_configuration(column, values):
    runs = [(f"{value}-{s}", 8, 1e-4, s) for value in values for s in (0, 1)]
    columns = table(runs, extra=lambda name, *_: {column: next(v for v in values if name.startswith(f"{v}-"))})
    groups, texts, notes = groups_of(columns)
    assert texts == [] and notes == Notes()
    short = column.rsplit(".", 1)[-1]
    assert sorted(g.configuration.name for g in groups) == sorted(
        f"n = 8, {short} = {value:g}" if isinstance(value, float) else f"n = 8, {short} = {value}" for value in values
    )
    assert sorted(dict(g.configuration.settings)[column] for g in groups) == sorted(values)
    assert all(len(group.runs) == 2 for group in groups)


def test_what_is_measured_is_no_setting():
    """It changes within runs; or, of final scores, differs between all of them."""

    def measured(name, n, rate, seed, c):
        return {"kl": 0.01 * n + 0.001 * seed + 1e-7 * c, "entropy": 1 / (n + seed), "samples": 4 + seed}

    groups, _, _ = groups_of(table(grid(rates=(1e-4,)), extra=measured, compute=COMPUTE[-1:]))
    assert [(g.configuration.name, len(g.runs), g.configuration.settings) for g in groups] == [
        ("n = 4", 3, ()),
        ("n = 8", 3, ()),
    ]
    groups, _, _ = groups_of(table(grid(rates=(1e-4,)), extra=lambda *a: {"kl": measured(*a)["kl"]}))
    assert [len(group.runs) for group in groups] == [3, 3]


def test_settings_of_separate_files_tell_their_runs_apart(tmp_path):
    for name, temperature in (("a", 0.6), ("b", 1.0), ("c", 1.0)):
        rows = [{"step": s, "avg@4": 0.1 + s / 100, "temperature": temperature} for s in (1, 2, 4)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = ReadOptions(constants={"group_size": 8, "problems_per_batch": 4, "learning_rate": 2e-5})
    runs, notes = read_curves([str(tmp_path)], options)
    groups, _ = group_runs(runs)
    assert [(g.configuration.name, len(g.runs)) for g in groups] == [
        ("n = 8, temperature = 0.6", 1),
        ("n = 8, temperature = 1", 2),
    ]
    assert groups[0].configuration.learning_rate == 2e-5
    assert notes.texts == (
        "2 runs were numbered as seeds in order of their names, because nothing tells their seeds: b: 0; c: 1.",
    )


def test_a_rate_in_the_names_of_runs_is_found_by_the_pattern():
    columns = {name: values for name, values in table(grid()).items() if name not in ("learning_rate", "seed")}
    groups, texts, notes = groups_of(columns, run_pattern=r"lr(?P<learning_rate>[\d.e-]+)-s(?P<seed>\d+)")
    assert [group.configuration.learning_rate for group in groups] == [1e-4, 3e-4] * 2
    assert notes == Notes() and texts == []
    groups, texts, notes = groups_of(columns, run_pattern=r"-s(?P<seed>\d+)")
    assert [len(group.runs) for group in groups] == [3, 3]
    assert texts == [
        "6 of 12 runs were left out, because another run has the same configuration and seed: "
        "n4-lr0.0003-s0 of curves repeats n4-lr0.0001-s0 (seed 0), n4-lr0.0003-s1 of curves repeats n4-lr0.0001-s1 "
        "(seed 1), n4-lr0.0003-s2 of curves repeats n4-lr0.0001-s2 (seed 2), n8-lr0.0003-s0 of curves repeats "
        "n8-lr0.0001-s0 (seed 0), n8-lr0.0003-s1 of curves repeats n8-lr0.0001-s1 (seed 1) and 1 more. "
        "If they differ in a setting, name its column."
    ]


def test_rows_and_runs_that_are_dropped_are_counted_with_their_cause():
    """Row 10: 8 of 31 rows for their rewards, 5 of 6 runs without the metric, 600 of 800 rows given again."""
    compute, reward = [float(i) for i in range(400)], [0.5] * 400
    reward[:8] = [float("nan")] * 8
    (run,), notes = read_curves(memory_table({"compute": compute, "avg@4": reward}), ReadOptions())
    assert len(run.compute) == 392 and notes == Notes()  # a row without the metric is a log line of something else
    reward[:8] = [2.0] * 8
    _, notes = read_curves(memory_table({"compute": compute, "avg@4": reward}), ReadOptions())
    assert (notes.rows, notes.runs) == (8, 0) and notes.texts[0].startswith(
        "8 of 400 rows were left out because of avg@4: "
    )

    columns = table([(name, 8, 1e-4, s) for s, name in enumerate("abcdef")])
    columns["avg@4"] = [
        value if run == "a" else None for run, value in zip(columns["run"], columns["avg@4"], strict=True)
    ]
    runs, notes = read_curves(memory_table(columns), ReadOptions())
    assert (len(runs), notes.rows, notes.runs) == (1, 0, 5)
    assert notes.texts == (
        "5 of 6 runs were left out without avg@4 on validation: b of curves; c of curves; d of curves; and 2 more.",
    )

    repeated = {"compute": sorted(float(i) for i in range(200) for _ in range(4)), "avg@4": [0.5, 0.6, 0.7, 0.8] * 200}
    (run,), notes = read_curves(memory_table(repeated), ReadOptions())
    assert notes.rows == 0
    np.testing.assert_allclose(run.columns["avg@4"], 0.65)
    assert notes.texts[0].startswith("1 run was given with several rows a step, of which the mean counts: curves of")


def test_a_run_all_of_whose_rows_are_wrong_is_counted():
    columns = table([("a", 8, 1e-4, 0), ("b", 8, 1e-4, 1)])
    columns["compute"] = [-1.0 if run == "b" else c for run, c in zip(columns["run"], columns["compute"], strict=True)]
    runs, notes = read_curves(memory_table(columns), ReadOptions())
    assert [run.run for run in runs] == ["a"] and (notes.rows, notes.runs) == (len(COMPUTE), 1)
    assert "1 of 2 runs was left out because every row is wrong: b of curves." in notes.texts


@pytest.mark.parametrize("seeds", [(0, 1), (0, 1, 2)])
def test_clean_data_leave_no_note(seeds):
    """Row 11: nobody asked for best@4, and configurations may have different numbers of seeds."""
    runs = [*grid(rates=(1e-4,), seeds=seeds), ("more", 4, 1e-4, 9)]
    groups, texts, notes = groups_of(table(runs))
    assert notes == Notes() and texts == [] and ended_early(groups) == []


def write_directory(path, n, seed, **optimizer):
    path.mkdir(parents=True)
    facts = {"group_size": n, "problems_per_batch": 8, "num_steps": 9, "problem_set_size": 50, "model_params": 1000}
    optimizer = {"base_lr": 1e-6, "base_batch": 16, "lr_scaling_exponent": 0.5} | optimizer
    config = {"seed": seed, "optimizer": optimizer}
    (path / CONFIG).write_text(json.dumps(facts | {"seed": seed, "config": config}))
    lines = [{"step": s, "compute": 8 * n * s, "eval_set": "validation", "avg@4": 0.1 + 0.01 * s} for s in range(9)]
    (path / EVAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / DONE).touch()


def test_rates_of_run_directories_follow_from_their_configs(tmp_path):
    for n in (2, 8):
        for seed in (0, 1):
            write_directory(tmp_path / f"n{n}-s{seed}", n, seed)
            write_directory(tmp_path / f"half-n{n}-s{seed}", n, seed, base_lr=5e-7)
    runs, notes = read_curves([str(tmp_path)], ReadOptions())
    groups, texts = group_runs(runs)
    assert notes == Notes() and texts == []
    assert [(g.configuration.name, len(g.runs)) for g in groups] == [
        ("n = 2, learning rate = 5e-7", 2), ("n = 2, learning rate = 1e-6", 2),
        ("n = 8, learning rate = 1e-6", 2), ("n = 8, learning rate = 2e-6", 2),
    ]  # fmt: skip
    assert all(group.configuration.settings == () for group in groups)


def run(n=8, seed=0, compute=(0, 100, 200, 400), reward=(0.1, 0.2, 0.3, 0.4), batch=4, **swept) -> RunCurve:
    facts = RunFacts(n, batch, 0, 100, 10, seed)
    rate, schedule, finished = swept.pop("rate", 0.0), swept.pop("schedule", ""), swept.pop("finished", True)
    columns = {"avg@4": np.array(reward, dtype=float), "compute": np.array(compute, dtype=float)}
    return RunCurve(
        f"n{n}-{seed}", "table", "", facts, swept, finished, columns["compute"], columns, learning_rate=rate,
        schedule=schedule,
    )  # fmt: skip


def curve_of(*runs):
    (group,), _ = group_runs(runs)
    curve = average_seeds(group, "avg@4")
    assert curve is not None
    return curve


def test_names_say_what_tells_configurations_apart():
    groups, _ = group_runs([run(n=4), run(n=8, batch=4), run(n=8, batch=16)])
    assert [g.configuration.name for g in groups] == ["n = 4, B = 4", "n = 8, B = 4", "n = 8, B = 16"]
    groups, _ = group_runs([run(n=n, batch=64 // n, rate=1e-6 * n) for n in (2, 8)])
    assert [g.configuration.name for g in groups] == ["n = 2", "n = 8"]
    groups, _ = group_runs([run(seed=s, width=w, note="same") for w in (0.1, 0.2) for s in (0, 1)])
    assert [(g.configuration.name, len(g.runs)) for g in groups] == [
        ("n = 8, width = 0.1", 2),
        ("n = 8, width = 0.2", 2),
    ]
    assert groups[0].configuration.settings == (("width", 0.1),)
    apart = [run(a=1, b=1, c=1, d=i, e=i) for i in (1, 2)]
    groups, texts = group_runs([*apart, run(a=2, b=2, c=2, d=3, e=3)])
    assert groups[0].configuration.name == "n = 8, a = 1, b = 1, c = 1 (1)"
    assert texts[0].startswith("2 configurations have numbers in their names, because")


def test_scheduled_runs_stand_apart():
    runs = [run(), run(schedule="n auto", seed=0), run(schedule="n auto", seed=1), run(schedule="n 4 then 8")]
    assert [len(group.runs) for group in group_runs(runs)[0]] == [1]
    groups, _ = group_schedules(runs)
    assert [(g.configuration.name, g.configuration.group_size, len(g.runs)) for g in groups] == [
        ("n 4 then 8", 0, 1),
        ("n auto", 0, 2),
    ]


def test_seeds_are_averaged_at_common_compute():
    curve = curve_of(run(seed=0), run(seed=1, reward=(0.1, 0.4, 0.5, 0.8)))
    assert curve.seeds == (0, 1)
    np.testing.assert_allclose(curve.compute, [0, 100, 200, 400])
    np.testing.assert_allclose(curve.reward, [0.1, 0.3, 0.4, 0.6])


def test_the_mean_ends_where_the_first_seed_ends_and_rounding_of_compute_is_interpolated():
    curve = curve_of(
        run(seed=0, compute=(100, 200, 400, 420), reward=(0.1, 0.2, 0.3, 0.4)),
        run(seed=1, compute=(99, 201, 404), reward=(0.3, 0.4, 0.5)),
    )
    assert not curve.pooled
    np.testing.assert_allclose(curve.compute, [100, 200, 400])
    np.testing.assert_allclose(curve.per_seed, [[0.1, 0.2, 0.3], [0.3, 0.4, 0.5]], atol=0.002)


@pytest.mark.parametrize("second", [(100, 400), (150, 300, 600), (1000, 2000), (100, 200, 300, 400, 800)])
def test_evaluations_of_seeds_on_different_grids_are_pooled(second):
    first, reward = (100, 200, 400, 800), tuple(0.05 * i for i in range(len(second)))
    one, two = run(compute=(0, *first), reward=(0.02, 0.1, 0.2, 0.3, 0.4)), run(seed=3, compute=second, reward=reward)
    curve = curve_of(one, two)
    assert curve.pooled and curve.seeds == (0, 3)
    assert curve.compute.tolist() == sorted((0, *first, *second)) and curve.count.tolist() == [1] * len(curve.compute)
    for own, expected in zip(
        curve.per_seed, (((0, *first), (0.02, 0.1, 0.2, 0.3, 0.4)), (second, reward)), strict=True
    ):
        known = np.isfinite(own)
        np.testing.assert_array_equal((curve.compute[known], own[known]), expected)
    alone = average_seeds(group_runs([one, two])[0][0], "avg@4", seed=3)
    assert alone is not None and alone.compute.tolist() == list(second) and not alone.pooled


@pytest.mark.parametrize("short", [(100, 200), (300, 400, 500)])
def test_a_seed_that_broke_off_or_began_late_takes_nothing_from_the_others(short):
    """Nor do they from it: a run that is carried further than the others, say because --next said so, counts whole."""
    full = {"compute": (100, 200, 300, 400, 500), "reward": (0.1, 0.2, 0.3, 0.4, 0.5)}
    rewards = tuple(0.3 + 0.1 * i for i in range(len(short)))
    curve = curve_of(run(seed=0, **full), run(seed=1, **full), run(seed=2, compute=short, reward=rewards))
    assert curve.pooled and curve.seeds == (0, 1, 2) and len(curve.compute) == 10 + len(short)
    known = np.isfinite(curve.per_seed[2])
    np.testing.assert_array_equal((curve.compute[known], curve.per_seed[2, known]), (short, rewards))


def test_runs_of_tables_that_ended_early_are_one_sentence():
    runs = [run(seed=s, finished=None) for s in (0, 1)] + [
        run(seed=2, finished=None, compute=(0, 100), reward=(0.1, 0.2)),
        run(n=4, finished=None, compute=(0, 50), reward=(0.1, 0.2)),
    ]
    assert ended_early(group_runs(runs)[0]) == [
        "2 of 4 runs ended early and may have crashed (a table does not say which runs are finished): n4-0 at compute "
        "50, 50% of the 100 that every other run reaches at least; n8-2 at compute 100, 25% of the 400 that another "
        "run of n = 8 reaches."
    ]


def test_rollouts_in_another_unit():
    (group,), _ = group_runs([run()])
    assert rollouts_at(group, 150) == 150 and rollouts_at(group, 800) == 800
