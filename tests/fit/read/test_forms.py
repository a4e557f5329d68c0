"""Every form of curves that trainers leave behind, made here, and read without flags but the unit."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isocompute_jax.fit.read import ReadOptions, read_curves
from isocompute_jax.records.errors import InputError
from tests.fit.read.tables import write

STEPS = "steps"


def read(*sources, compute: Any = STEPS, **options):
    """Run -> steps and rewards, and the sentences about how they were read."""
    runs, notes = read_curves([str(each) for each in sources], ReadOptions(compute=compute, **options))
    assert notes.read is not None
    metric = notes.read.metric
    return {run.run: (run.compute.tolist(), run.columns[metric].tolist()) for run in runs}, list(notes.texts)


def facts(*sources, **options):
    """Run -> n, problems per batch, seed, parameters of the model."""
    runs, _ = read_curves([str(each) for each in sources], ReadOptions(**options))
    known = ((run.run, run.facts) for run in runs)
    return {name: (of.group_size, of.problems_per_batch, of.seed, of.model_params) for name, of in known}


HISTORY = [
    {"step": 5, "reward": 0.1, "loss": "0.0219"}, {"step": 10, "reward": float("nan"), "loss": 0.0},
    {"step": 15, "reward": "0.22"}, {"step": 15, "train_runtime": 5538.3, "train_loss": 0.18},
]  # fmt: skip


def test_a_trainers_state_is_called_by_its_folder_and_the_last_checkpoint_has_all(tmp_path):
    for run in ("q4_n8_s1", "q4_n16_s1"):
        for step, rows in ((5, HISTORY[:1]), (15, HISTORY)):
            folder = tmp_path / "out" / run / f"checkpoint-{step}"
            folder.mkdir(parents=True)
            state = {"global_step": step, "epoch": 0.1, "log_history": rows, "best_metric": None}
            (folder / "trainer_state.json").write_text(json.dumps(state))
            (folder / "config.json").write_text('{"architectures": ["X"]}')
    found, notes = read(tmp_path / "out")
    assert found == dict.fromkeys(("q4_n16_s1", "q4_n8_s1"), ([5, 15], [0.1, 0.22]))
    assert any("2 files were read as log_history of a trainer's state: " in text for text in notes)
    assert any("2 files were passed over, because a later checkpoint" in text for text in notes)
    assert any("2 of 6 rows were left out because of reward" in text and "reward is nan" in text for text in notes)
    pattern = r"n(?P<group_size>\d+)_s(?P<seed>\d+)"
    known = facts(tmp_path / "out", run_pattern=pattern, constants={"problems_per_batch": 4})
    assert known == {"q4_n16_s1": (16, 4, 1, 0), "q4_n8_s1": (8, 4, 1, 0)}
    single, _ = read(tmp_path / "out" / "q4_n8_s1" / "checkpoint-15" / "trainer_state.json")
    assert [*single] == ["q4_n8_s1"]


@pytest.mark.parametrize("name", ["run_n4_s42.json", "run_n4_s42.jsonl"])
def test_an_array_of_logs(tmp_path, name):
    (tmp_path / name).write_text(json.dumps(HISTORY))
    found, notes = read(tmp_path / name)
    assert found == {"run_n4_s42": ([5, 15], [0.1, 0.22])}
    assert "reward is taken, the one column that clearly is a training reward;" in notes[0]
    assert any(f"1 file was read as JSON: {tmp_path / name}, 4 rows." == text for text in notes)


def test_series_and_traces(tmp_path):
    points = [{"x": x, "y": y} for x, y in ((0, 0.1), (10, 0.2), (20, 0.4))]
    (tmp_path / "a.json").write_text(json.dumps({"title": "val", "series": points}))
    with pytest.raises(InputError, match=r"columns with numbers are y; .*--metric=y"):
        read(tmp_path / "a.json")
    assert read(tmp_path / "a.json", metric="y")[0] == {"a": ([0, 10, 20], [0.1, 0.2, 0.4])}
    (tmp_path / "b.json").write_text(json.dumps({"n4": {"series": points}, "n8": {"series": points[:2]}}))
    assert read(tmp_path / "b.json", metric="y")[0] == {
        "n4": ([0, 10, 20], [0.1, 0.2, 0.4]),
        "n8": ([0, 10], [0.1, 0.2]),
    }
    runs = [
        {"experiment_id": f"x{n}", "group_size": n, "seed": 3, "peak_reward": 0.9, "reward_trace": [0.1, n / 10, 0.5]}
        for n in (2, 4)
    ]
    (tmp_path / "c.json").write_text(json.dumps({"experiments": runs}))
    found, notes = read(tmp_path / "c.json")
    assert found == {"x2": ([1, 2, 3], [0.1, 0.2, 0.5]), "x4": ([1, 2, 3], [0.1, 0.4, 0.5])}
    assert any("read as JSON" in text and "6 rows of 2 runs." in text for text in notes)
    assert facts(tmp_path / "c.json", compute=STEPS) == {"x2": (2, 0, 3, 0), "x4": (4, 0, 3, 0)}
    (tmp_path / "d.json").write_text(json.dumps({"reward_trace": [0.25, 0.5]}))
    assert read(tmp_path / "d.json")[0] == {"d": ([1, 2], [0.25, 0.5])}
    (tmp_path / "e.json").write_text(json.dumps({"step": [5, 9], "eval_reward": [0.25, 0.5], "other": [1, 2, 3]}))
    assert read(tmp_path / "e.json")[0] == {"e": ([5, 9], [0.25, 0.5])}


def test_a_melted_export(tmp_path):
    lines = [
        f"{run},{metric},{step},{value}"
        for run in ("lr_1e-5", "lr_3e-5")
        for step, reward in ((0, 0.03), (4, 0.08))
        for metric, value in (("eval/reward", reward), ("train/entropy", 0.41), ("eval/loss", 0.9))
    ]
    path = write(tmp_path / "melted.csv", "run_name,metric,step,value", *lines)
    found, notes = read(path)
    assert found == dict.fromkeys(("lr_1e-5", "lr_3e-5"), ([0, 4], [0.03, 0.08]))
    assert any("read as a melted table" in text and "12 numbers of 3 metrics." in text for text in notes)
    assert read(path, metric="train/entropy")[0]["lr_1e-5"] == ([0, 4], [0.41, 0.41])
    with pytest.raises(
        InputError, match=r"be the reward: b/acc, a/acc, c; say which one is meant, e\.g\. --metric=b/acc"
    ):
        read(write(path, "run,metric,step,value", "r,b/acc,1,0.2", "r,a/acc,1,0.1", "r,c,1,0.5"), metric="avg@4")


VERL = """\
\x1b[36m(TaskRunner pid=77)\x1b[0m + python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=8 data.train_batch_size=64
Training Progress:   0%|          | 0/140 [00:00<?, ?it/s]
\x1b[36m(TaskRunner pid=77)\x1b[0m step:0 - val-core/openai/gsm8k/reward/mean@1:np.float64(0.31) - val-aux/num_turns/mean:1.0
(TaskRunner pid=77) step:1 - actor/entropy:np.float64(0.401) - critic/rewards/mean:0.240 - training/global_step:1
Training Progress:   1%|          | 1/140 [00:49<1:53:43]\r(TaskRunner pid=77) step:2 - critic/rewards/mean:np.float32(0.25) - val-core/openai/gsm8k/reward/mean@1:0.4
{'not': 'a log'}
"""  # noqa: E501


def test_a_console_log_of_verl(tmp_path):
    path = tmp_path / "run_a.log"
    path.write_text(VERL)
    found, notes = read(path, compute="rollouts")
    assert found == {"run_a": ([0, 1024], [0.31, 0.4])}
    assert any("read as a console log of verl (trainer.logger=" in text and "3 of 7 lines" in text for text in notes)
    assert facts(path) == {"run_a": (8, 64, 0, 0)}
    assert read(path, metric="critic/rewards/mean")[0] == {"run_a": ([1, 2], [0.24, 0.25])}


def test_lines_of_trl_are_counted(tmp_path):
    rows = [{"loss": "0.02", "reward": f"{r}", "grad_norm": "nan", "epoch": 0.1} for r in (0.1, 0.2, 0.4)]
    lines = [str(row) for row in rows]
    lines[1] = lines[1].replace("'nan'", "nan")
    lines.insert(2, str({"eval_loss": 0.3, "eval_reward": 0.33, "epoch": 0.2}))
    path = write(
        tmp_path / "out.txt", "loading", *lines, "  5%|#  | 3/60 [00:01<1:00, 2s/it]", "{'train_runtime': 3.0}"
    )
    found, notes = read(path, metric="reward")
    assert found == {"out": ([1, 2, 3], [0.1, 0.2, 0.4])}
    assert any("a console log of TRL, whose lines are counted" in text and "4 of 7 lines" in text for text in notes)
    assert read(path)[0] == {"out": ([2], [0.33])}


def test_lines_of_pairs(tmp_path):
    path = write(tmp_path / "a.log", "[m] 800 examples", *(f"[m]  {i}/9 | loss=-0.5 | reward=0.{i}" for i in (1, 2, 3)))
    assert read(path)[0] == {"a": ([1, 2, 3], [0.1, 0.2, 0.3])}


def test_a_column_for_each_run_with_blanks(tmp_path):
    path = write(tmp_path / "w.csv", "Step,grpo_n4-s0,grpo_n8-s0,notes", "0,0.1,,x", "5,0.2,0.25,", "9,,0.3,")
    found, notes = read(path)
    assert found == {"grpo_n4-s0": ([0, 5], [0.1, 0.2]), "grpo_n8-s0": ([5, 9], [0.25, 0.3])}
    assert any("read with a column for each run, whose values are called reward" in text for text in notes)


def test_a_column_for_each_size_of_model(tmp_path):
    path = write(tmp_path / "w.csv", "Step,0.6b,14b,8b", "0,0.037,0.784,0.636", "1,,0.793,", "4,0.21,0.82,0.71")
    found, _ = read(path)
    assert found["0.6b"] == ([0, 4], [0.037, 0.21]) and found["14b"] == ([0, 1, 4], [0.784, 0.793, 0.82])
    sizes = {name: of[3] for name, of in facts(path, compute=STEPS).items()}
    assert sizes == {"0.6b": 600_000_000, "14b": 14_000_000_000, "8b": 8_000_000_000}


def test_event_files_of_a_folder_are_a_run(tmp_path, monkeypatch):
    writing = pytest.importorskip("tensorboardX")
    for run, reward in (("n4", 0.1), ("n8", 0.2)):
        folder = tmp_path / run / "runs" / f"Aug01_10-00-0{run[1]}_host"
        for steps in ((0, 10), (20, 30)):
            with writing.SummaryWriter(str(folder), filename_suffix=f".{steps[0]}") as writer:
                for step in steps:
                    writer.add_scalar("eval/reward", reward + step / 100, step)
                    writer.add_scalar("train/loss", 0.5, step)
    found, notes = read(tmp_path)
    for run, reward in (("n4", 0.1), ("n8", 0.2)):
        assert found[run][0] == [0, 10, 20, 30]
        np.testing.assert_allclose(found[run][1], reward + np.arange(4) / 10, rtol=1e-6)
    assert len(found) == 2 and any("2 in its folder, 2 scalars at 4 steps" in text for text in notes)
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX.proto.event_pb2", None)
    with pytest.raises(
        InputError, match=r"tensorboardX, which is not installed: pip install 'isocompute-jax\[track\]'"
    ):
        read(tmp_path)


def trackio_store(path, *, ids):
    """As trackio writes one: log calls are counted, TRL's own step stands among the metrics."""
    store = sqlite3.connect(path)
    own = "run_id TEXT, " * ids
    store.execute(
        f"CREATE TABLE metrics (id INTEGER PRIMARY KEY, {own}timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT)"
    )
    store.execute(f"CREATE TABLE configs (id INTEGER PRIMARY KEY, {own}run_name TEXT, config TEXT, created_at TEXT)")
    for key, name, n in (("k1", "kind-lake", 4), ("k2", "bold-hill", 8)):
        for call, (step, reward) in enumerate(((0, 0.1), (10, 0.3), (20, "NaN"))):
            values = [*([key] * ids), "t", name, call, json.dumps({"eval/reward": reward, "train/global_step": step})]
            store.execute(f"INSERT INTO metrics VALUES (NULL, {', '.join('?' * len(values))})", values)
        config = json.dumps(
            {"num_generations": n, "seed": 7, "learning_rate": 1e-6, "_Username": "x", "groups_per_batch": 2}
        )
        values = [*([key] * ids), name, config, "t"]
        store.execute(f"INSERT INTO configs VALUES (NULL, {', '.join('?' * len(values))})", values)
    store.commit()
    store.close()
    return path


@pytest.mark.parametrize("ids", [False, True])
def test_a_store_of_trackio(tmp_path, ids):
    path = trackio_store(tmp_path / "project.db", ids=ids)
    found, notes = read(tmp_path)
    assert found == dict.fromkeys(("kind-lake", "bold-hill"), ([0, 10], [0.1, 0.3]))
    assert any("read as trackio's store" in text and "6 rows of 2 runs." in text for text in notes)
    assert facts(path) == {"kind-lake": (4, 2, 7, 0), "bold-hill": (8, 2, 7, 0)}
    sqlite3.connect(tmp_path / "x.db").execute("CREATE TABLE other (a)").connection.close()
    with pytest.raises(InputError, match="an SQLite file that is not trackio's"):
        read(tmp_path / "x.db")


def test_four_rows_a_step_are_their_mean(tmp_path):
    rows = [{"step": step, "reward": step / 10 + k / 100} for step in (1, 2, 3) for k in (0, 1, 2, 3)]
    found, notes = read(write(tmp_path / "r.jsonl", *map(json.dumps, rows)))
    assert found["r"][0] == [1, 2, 3]
    np.testing.assert_allclose(found["r"][1], np.array([1, 2, 3]) / 10 + 0.015)
    assert any("1 run was given with several rows a step, of which the mean counts: r of" in text for text in notes)


def test_values_that_are_carried_on_count_once(tmp_path):
    rows = [{"step": step, "eval_acc": 0.1 + (step // 5) / 10, "loss": step / 7} for step in range(22)]
    found, notes = read(write(tmp_path / "r.jsonl", *map(json.dumps, rows)))
    assert found["r"][0] == [0, 5, 10, 15, 20]
    assert any("17 of 22 rows were left out as values carried on" in text and "every 5 rows" in text for text in notes)
    coarse = [0.1875, 0.1875, 0.1875, 0.1875, 0, 0.125, 0.125, 0, 0, 0.125, 0.6875, 0.6875]  # of 16 rollouts
    rows = [{"step": step, "reward": reward} for step, reward in enumerate(coarse)]
    assert read(write(tmp_path / "r.jsonl", *map(json.dumps, rows)))[0]["r"][1] == coarse


AGAIN = [*((s, s / 10) for s in (1, 2, 3, 4)), (1, 0.05), (2, 0.3), (3, 0.33), (5, 0.36)]


def test_steps_that_begin_again_are_another_run_and_later_ones_a_resumed_run(tmp_path):
    rows = [json.dumps({"step": step, "reward": reward, "loss": i / 7}) for i, (step, reward) in enumerate(AGAIN)]
    path = write(tmp_path / "r.jsonl", *rows)
    found, notes = read(path)
    assert found == {"r": ([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4]), "r (2)": ([1, 2, 3, 5], [0.05, 0.3, 0.33, 0.36])}
    assert any(
        f"names no run (a column `run` says otherwise): r (2) at {path}:5, where step falls to 1" in t for t in notes
    )
    named, notes = read(write(path, *(row.replace("{", '{"run": "r", ', 1) for row in rows)))
    assert named == {"r": ([1, 2, 3, 5], [0.05, 0.3, 0.33, 0.36])} and any("resumed run" in text for text in notes)
    resumed, notes = read(write(path, *rows[:4], rows[6], rows[3].replace("0.4", "0.5"), rows[7]))
    assert resumed == {"r": ([1, 2, 3, 4, 5], [0.1, 0.2, 0.33, 0.5, 0.36])} and any(
        "resumed run" in text for text in notes
    )


@pytest.mark.parametrize("order", [[50, 40, 30, 20, 10], [40, 50, 60, 10, 20, 30], [30, 10, 20, 40]])
def test_rows_out_of_order_are_one_run(tmp_path, order):
    rows = [json.dumps({"step": step, "reward": step / 100}) for step in order]
    found, _ = read(write(tmp_path / "r.jsonl", *rows))
    assert found == {"r": (sorted(order), [step / 100 for step in sorted(order)])}


def test_lists_in_a_cell(tmp_path):
    ends = [{"run": f"n{n}", "group_size": n, "steps": 100, "final_acc": [0.4, 0.5, n / 10]} for n in (4, 8)]
    pq.write_table(pa.Table.from_pylist(ends), tmp_path / "ends.parquet")
    found, notes = read(tmp_path / "ends.parquet")
    assert found["n8 [1]"] == ([100], [0.4]) and found["n8 [3]"] == ([100], [0.8]) and len(found) == 6
    assert any("1 column was of lists, read as ends of runs without curves: final_acc" in text for text in notes)
    path = write(tmp_path / "t.csv", "run,n,rewards", 'a,4,"[0.1, 0.2, 0.4]"', 'b,8,"[0.1 0.3]"')
    found, notes = read(path)
    assert found == {"a": ([1, 2, 3], [0.1, 0.2, 0.4]), "b": ([1, 2], [0.1, 0.3])}
    assert any("1 column was of lists, read as curves by position: rewards" in text for text in notes)
    write(path, "run,n,final_accs", 'a,4,"[0.1, 0.2]"', 'b,8,"[0.3, 0.4]"')
    ends = {"a [1]": ([1], [0.1]), "a [2]": ([1], [0.2]), "b [1]": ([1], [0.3]), "b [2]": ([1], [0.4])}
    assert read(path, metric="final_accs")[0] == ends
    write(path, "run,step,reward", 'a,1,"[0.1, 0.2]"', 'a,2,"[0.3, 0.5]"')
    assert read(path)[0]["a"] == ([1, 2], [pytest.approx(0.15), pytest.approx(0.4)])


def test_ends_without_steps(tmp_path):
    path = write(
        tmp_path / "t.csv",
        "run_name,num_generations,final_val_accuracy,best_val_accuracy",
        "a,4,0.5,0.7",
        "b,8,0.6,0.7",
    )
    with pytest.raises(InputError, match="its runs have a row each: --compute=steps compares their ends"):
        read(path, compute="rollouts")
    found, notes = read(path)
    assert found == {"a": ([1], [0.5]), "b": ([1], [0.6])} and any(
        "1 file was read as ends of runs without steps" in text for text in notes
    )
    assert facts(path, compute=STEPS)["b"] == (8, 0, 0, 0)


@pytest.mark.parametrize(
    "names",
    [
        "run_name,training/global_step,actor_rollout_ref.rollout.n,data.train_batch_size,data.seed,val-core/m/acc/mean@4",
        "Name,train/global_step,num_generations,groups_per_batch,seed,eval/reward",
        "exp_name,step,orchestrator.group_size,config.num_prompts_per_step,seed,eval/aime/avg@8",
    ],
)
def test_names_of_other_trainers(tmp_path, names):
    path = write(tmp_path / "t.csv", names, "a,0,4,32,5,0.1", "a,10,4,32,5,0.2", "b,10,8,32,6,0.3")
    assert read(path, compute="rollouts")[0] == {"a": ([0, 1280], [0.1, 0.2]), "b": ([2560], [0.3])}
    assert facts(path) == {"a": (4, 32, 5, 0), "b": (8, 32, 6, 0)}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["step,reward", *(f"{s},0.{s}" for s in (1, 2, 3)), *(f"{s},{s}7.5" for s in (4, 5, 6))],
         r"t.csv:5: reward is 47.5 after 0.3: 3 of 6 values look like percent, and the others like shares"),
        (["step,reward", "1,14.12%", "2,15.5%"],
         r"2 rows were left out because of reward: .*t.csv:2: reward is '14.12%', "
         r"not a number in \[0, 1\]; write it without a percent sign, and give --reward_range=0,100"),
        (["step,reward,n", '1,"1,024",3.5', '2,"1,025",4.5'], r"reward is '1,024'.*without marks of thousands"),
        (["step,acc", "2026-11-01 12:00:00,0.1", "2026-11-02 12:00:00,0.2"],
         r"2 rows were left out because of step: .*t.csv:2: step is '2026-11-01 12:00:00', not a number"),
        (["run,group_size,step,acc", "a,-4,1,0.1"], r"group_size is '-4', not a whole number of at least 1"),
        (["run,group_size,step,acc", "a,0.5,1,0.1"], r"group_size is '0.5', not a whole number"),
        (["run,step,step,acc", "a,0,10,0.1", "a,0,20,0.2"], "its header has step 2 times, with other cells"),
        (["step,eval/a/acc,eval/b/acc,train/reward", "1,0.1,0.2,0.3"],
         r"be the reward: eval/a/acc, eval/b/acc, train/reward; say which .*--metric=eval/a/acc"),
        (["step,Endgenauigkeit,gold", "1,0.1,2"],
         r"columns with numbers are Endgenauigkeit, gold; .*--metric=Endgenauigkeit"),
    ],
)  # fmt: skip
def test_bad_tables_are_refused_in_a_sentence(tmp_path, lines, said):
    with pytest.raises(InputError, match=said):
        read(write(tmp_path / "t.csv", *lines))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", "[1, 2", "it is not JSON"), ("a.json", '{"a": {"b": 1}}', "no column avg@4"),
        ("a.json", "[[1, 2]]", "JSON without rows"), ("a.log", "Hello, world\nthis is it\n", "neither a directory"),
        ("a.db", "SQLite format 3\0 and no more", "not trackio's, or damaged"),
        ("events.out.tfevents.1", "\x18\0\0\0\0\0\0\0abcd\x09\0\0brain.Event:2", "it has no scalars|damaged"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_in_a_sentence(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=said):
        read(tmp_path / name)


def test_what_wandb_thinned_out_is_said(tmp_path):
    head = ",".join(f"{run} - eval/acc{end}" for run in ("a", "b") for end in ("", "__MIN", "__MAX"))
    path = write(tmp_path / "p.csv", f"Step,{head}", "0,0.1,0.05,0.2,0.1,0.1,0.1", "10,0.2,0.1,0.3,0.15,0.08,0.2")
    found, notes = read(path)
    assert found["a"] == ([0, 10], [0.1, 0.2]) and len(found) == 2
    assert any("2 columns were averaged by W&B over buckets of steps" in text for text in notes)
    lines = [f"a,{7 * i},{7 * i},{i / 1000}" for i in range(500)]
    _, notes = read(write(path, "run_name,_step,train/global_step,eval/acc", *lines))
    assert any("1 run was given 500 rows, as many as W&B's history() samples" in text for text in notes)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.jsonl", "t.parquet", "t.json"])
def test_a_file_is_digested_while_it_is_read(tmp_path, name, monkeypatch):
    from tests.fit.read.tables import write_rows

    rows = [{"run": "a", "step": i, "reward": i / 100} for i in range(50)]
    path = tmp_path / name
    path.write_text(json.dumps(rows)) if name.endswith(".json") else write_rows(path, rows)
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(hashlib, "file_digest", None)  # which would read it again
    (run,), _ = read_curves([str(path)], ReadOptions(compute=STEPS))
    assert run.sha256 == expected
