"""Grading in worker processes and on an event loop: what is worth what, and what hangs, dies, raises or lies."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import psutil
import pytest

from isocompute_jax.records.errors import InputError, RunError
from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import Grading, RewardConfig, get_grader, graded
from isocompute_jax.tasks.graders.protocol import InvalidRewardError, to_grade
from isocompute_jax.tasks.grading.pool import environment
from tests.tasks import rewards
from tests.tasks.groups import decode, group, rewards_of

ROOT = pathlib.Path(__file__).parents[3]
REWARDS = "tests.tasks.rewards"


def problem(answer="4", task="anything"):
    return Problem("p", "2+2=", answer, task)


@contextlib.contextmanager
def grading(function="", **options):
    name = f"{REWARDS}:{function}" if hasattr(rewards, function) else function
    engine = Grading(RewardConfig(function=name, **{"workers": 1, "deadline_s": 20.0, **options}), decode)
    with contextlib.closing(engine):
        yield engine


def test_inline_graders_start_nothing_and_grade_equal_completions_once():
    seen = []

    def once(batch):
        seen.extend(decode(batch))
        return decode(batch)

    engine = Grading(RewardConfig(), once)
    before = threading.enumerate()
    ungraded = group("3+1 is 4", "5", "3+1 is 4", "is 4", "5")
    done = engine.submit(ungraded, problem(task="numeric"))
    assert done.done() and rewards_of(done.result()) == [1, 0, 1, 1, 0]
    assert seen == ["3+1 is 4", "5", "is 4"] and threading.enumerate() == before
    assert ungraded.rewards is None and done.result().completions is ungraded.completions
    assert done.result().task == "numeric"


@pytest.mark.parametrize("task", ["numeric", "math", "exact"])
@pytest.mark.parametrize("marked", [False, True])
def test_unmarked_answers_are_counted_and_paid_unless_a_marker_is_asked_for(task, marked):
    with grading(marked=marked) as engine:
        found = engine.submit(group("5", r"\boxed{5}", "6", "#### 5"), Problem("p", "", "5", task)).result()
    assert rewards_of(found) == [float(not marked), 1, 0, 1]
    np.testing.assert_array_equal(found.reward_metrics["unmarked"], [1, 0, 0, 0])


@pytest.mark.parametrize("reward", [1e39, -1e39, 10**400])
def test_a_reward_beyond_float32_is_a_failed_one(reward):
    with pytest.raises(InvalidRewardError, match="not finite in float32"):
        to_grade(reward, "mine")


@pytest.mark.parametrize("function", ["batch_lengths", "waits", "batch_waits"])
def test_functions_of_every_kind(function):
    with grading(function) as engine:
        first = engine.submit(group("ab", "", "ab", "abc"), problem())
        second = engine.submit(group("x"), problem())
        assert rewards_of(first.result()) == [2, 0, 2, 3] and rewards_of(second.result()) == [1]


def test_metrics_stand_beside_the_reward():
    with grading("formatted") as engine:
        found = engine.submit(group("4", "", "44", "4"), problem()).result()
    assert rewards_of(found) == [1, 0, 0, 1]
    np.testing.assert_array_equal(found.reward_metrics["length"], [1, 0, 2, 1])
    np.testing.assert_array_equal(found.reward_metrics["ok"], [1, np.nan, 1, 1])


def test_whatever_a_function_does_is_counted_with_its_problem_and_the_others_are_graded(caplog):
    texts = ["raise", "hang", "exit", "segfault", "nan", "text", "none", "print", "fine", "fine", "nan"]
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with caplog.at_level(logging.WARNING), grading("as_told", deadline_s=1.0, workers=2) as engine:
        start = time.monotonic()
        found = engine.submit(group(*texts), problem()).result()
        assert time.monotonic() - start < 15
        assert rewards_of(found) == [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0]
        assert found.reward_failures == 8 and not found.dropped
        said = " ".join(record.getMessage() for record in caplog.records)
        for part in ("'p'", "LookupError", "within 1 s", "exit code 7", "SIGSEGV", "nan, which is not finite", "'1.0'"):
            assert part in said
        # What hung had started a process of its own (no other test sleeps as long): it is gone, too.
        assert not [
            p for p in psutil.process_iter(["cmdline"]) if "time.sleep(601)" in " ".join(p.info["cmdline"] or [])
        ]
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def test_what_an_asynchronous_function_does_wrong_is_counted_too():
    with grading("as_told_async", deadline_s=0.3) as engine:
        found = engine.submit(group("raise", "hang", "ignore", "nan", "fine"), problem()).result()
        assert rewards_of(found) == [0, 0, 0, 0, 1] and found.reward_failures == 4


def test_a_function_that_blocks_its_loop_is_named_and_ends_the_run(caplog):
    with caplog.at_level(logging.WARNING), grading("as_told_async", deadline_s=1.2) as engine:
        with pytest.raises(RunError, match=r"as_told_async on problem 'p' blocks the event loop.*def"):
            engine.submit(group("block"), problem()).result()
        assert "time.sleep(6)" in caplog.text  # where it is


def test_policies_on_failure():
    with grading("as_told", on_failure="drop_group") as engine:
        found = engine.submit(group("fine", "raise"), problem()).result()
        assert found.dropped and found.reward_failures == 1 and rewards_of(found) == [1, 0]
        assert not engine.submit(group("fine"), problem()).result().dropped
        assert not engine.submit(group("raise"), problem(), on_failure="zero").result().dropped
        [evaluated] = graded([group("fine", "raise")], {"p": problem()}, engine)
        assert not evaluated.dropped and rewards_of(evaluated) == [1, 0]
        # The message names problem and traceback.
        with pytest.raises(
            RunError, match=r"(?s)as_told raised on problem 'p'.*in as_told.*LookupError: no such thing"
        ):
            engine.submit(group("raise"), problem(), on_failure="stop").result()


def test_an_evaluation_stops_too_where_the_policy_says_so():
    engine = Grading(RewardConfig(function=f"{REWARDS}:as_told_async", on_failure="stop"), decode)
    with contextlib.closing(engine), pytest.raises(RunError, match="raised on problem 'p'"):
        graded([group("raise")], {"p": problem()}, engine)


def test_tasks_have_graders_of_their_own():
    tasks = {"long": f"{REWARDS}:length", "numeric": "exact"}
    with grading(tasks=tasks) as engine:
        found = [
            engine.submit(group("44444"), Problem(task, "", "5", task)).result()
            for task in ("long", "numeric", "exact")
        ]
    assert [rewards_of(one) for one in found] == [[0.5], [0.0], [0.0]]
    assert [one.task for one in found] == ["long", "numeric", "exact"]


def test_workers_import_no_training_and_stay_the_same():
    with grading("what_a_worker_has", tasks={"pid": f"{REWARDS}:pid"}) as engine:
        assert rewards_of(engine.submit(group("x"), problem()).result()) == [1.0]
        pids = {rewards_of(engine.submit(group("x"), problem(task="pid")).result())[0] for _ in range(3)}
        assert len(pids) == 1
        # A float32 holds it: process ids are below 2^22.
        worker = psutil.Process(int(pids.pop()))
        used = sum(worker.cpu_times()[:2])
        time.sleep(0.3)
        assert sum(worker.cpu_times()[:2]) == used  # idle workers cost nothing
        assert worker.memory_info().rss < 100e6


@pytest.mark.slow
def test_a_killed_parent_leaves_no_worker(tmp_path):
    """SIGKILL, while one worker is idle and another hangs."""
    source = f"""
        import sys, time
        import psutil
        from isocompute_jax.tasks import Grading, RewardConfig
        from tests.tasks.grading.test_engine import decode, group, problem
        engine = Grading(RewardConfig(function="{REWARDS}:as_told", workers=2), decode)
        engine.check([problem()])
        engine.submit(group("hang"), problem())
        while len(psutil.Process().children(recursive=True)) < 3:
            time.sleep(0.01)
        print(*(child.pid for child in psutil.Process().children()), flush=True)
        time.sleep(60)
        """
    command = [sys.executable, "-c", textwrap.dedent(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        stray = [child for worker in workers for child in worker.children()]
        parent.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(workers, timeout=10)
        for process in stray:  # the user's own child is the user's business
            process.kill()
    assert len(workers) == 2 and not alive


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:f", "there is no module 'nowhere'"),
        (f"{REWARDS}:nothing", "has no 'nothing'; its functions: .*length"),
        (f"{REWARDS}:NOT_A_FUNCTION", "is a int, not a function"),
        (f"{REWARDS}:wrong_names", r"its signature is \(prompt, answer\); write \(problem, completion\)"),
        (f"{REWARDS}:one_too_many", r"\(problem, completion, threshold\)"),
        ("not a name:f", "write package.module:function"),
        ("__main__:f", "put it in a module"),
        ("nosuchtask", "nosuchtask.*known: 'arithmetic'"),
        ("numerc", "did you mean 'numeric'"),
    ],
)
def test_a_reward_that_cannot_be_used_is_refused_with_the_remedy(name, message):
    with pytest.raises(InputError, match=f"(?s){message}"):
        get_grader(name)


def test_every_reward_is_tried_on_an_empty_completion_at_the_start():
    functions = {
        "returns_text": "returned no reward when it was tried .* returned '1.0', a str and not a number",
        "returns_nothing": "returned None, a NoneType",
        "fails_on_empty": r"raised when it was tried on problem 'p' and an empty completion, which a model may give: "
        r"\S*tests/tasks/rewards.py:\d+: IndexError: string index out of range$",
    }
    with grading(tasks={name: f"{REWARDS}:{name}" for name in functions}) as engine:
        for name, message in functions.items():
            with pytest.raises(InputError, match=f"(?s){message}"):
                engine.check([problem(task=name)])


def test_the_start_says_who_grades_what(caplog):
    problems = [problem(task="numeric"), problem(task="numeric"), problem(task="short"), problem(task="exact")]
    with caplog.at_level(logging.INFO), grading(tasks={"short": f"{REWARDS}:length"}) as engine:
        engine.check(problems)
    assert [record.getMessage() for record in caplog.records if "rewards:" in record.getMessage()] == [
        f"rewards: numeric grades 2 problems (their file says so); {REWARDS}:length grades 1 problems "
        "(config.reward.tasks says so); exact grades 1 problems (their file says so)"
    ]


def test_a_problem_made_by_hand_names_no_function_either():
    with grading() as engine, pytest.raises(InputError, match="is a function"):
        engine.check([problem(task=f"{REWARDS}:length")])
    with grading(allow=(f"{REWARDS}:length",)) as engine:
        assert rewards_of(engine.submit(group("abc"), problem(task=f"{REWARDS}:length")).result()) == [np.float32(0.3)]


SECRETS = ("ISOCOMPUTE_TOKEN", "ISOCOMPUTE_REWARD_TOKEN", "HF_TOKEN", "DATABASE_URL", "A_JUDGES_KEY")


def test_workers_see_no_secrets_but_those_that_the_config_names(monkeypatch):
    """Of a secret's name that looks like none as well: what passes is listed, and not what does not."""
    for name in SECRETS:
        monkeypatch.setenv(name, "s3cret")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    code = "import os; print(*os.environ)"
    for names in ((), ("A_JUDGES_KEY",)):
        seen = subprocess.run([sys.executable, "-c", code], env=environment(names), capture_output=True, text=True)
        assert set(SECRETS) & set(seen.stdout.split()) == set(names)
        assert {"PATH", "HOME", "OMP_NUM_THREADS"} <= set(seen.stdout.split())
    said = "workers are not given A_JUDGES_KEY: name it"
    with grading("needs_a_key") as engine, pytest.raises(InputError, match=said):
        engine.check([problem()])
    with grading("needs_a_key", environment=("A_JUDGES_KEY",)) as engine:
        engine.check([problem()])
        assert rewards_of(engine.submit(group("HF_TOKEN"), problem()).result()) == [6]


def test_a_module_that_cannot_be_imported_says_where(tmp_path, monkeypatch):
    (tmp_path / "broken_reward.py").write_text("import math\nx = 1 / 0\n")
    monkeypatch.chdir(tmp_path)  # the working directory is importable
    with (
        grading("broken_reward:f") as engine,
        pytest.raises(InputError, match=r"broken_reward\.py:2: ZeroDivisionError"),
    ):
        engine.check([problem()])


def test_too_few_rewards_of_a_batch_are_a_failure():
    with grading("too_few") as engine:
        found = engine.submit(group("a", "b"), problem()).result()
    assert rewards_of(found) == [0, 0] and found.reward_failures == 2


def test_closing_gives_up_what_is_being_graded():
    others = set(psutil.Process().children())
    with grading("as_told") as engine:
        pending = engine.submit(group("hang"), problem())
        while not set(psutil.Process().children()) - others:
            time.sleep(0.01)
        start = time.monotonic()
    assert time.monotonic() - start < 5 and pending.cancelled()
    assert os.getpid() == psutil.Process().pid


@pytest.mark.slow
@pytest.mark.parametrize("moment", [0.0, 0.005, 0.05, 0.2])
def test_closing_while_processes_start(moment):
    """Whenever it is: asyncio never finishes a process whose start was cancelled half-way."""
    others = set(psutil.Process().children(recursive=True))
    with grading("as_told", workers=2) as engine:
        pending = [engine.submit(group(text), problem()) for text in ("hang", "fine")]
        time.sleep(moment)
        start = time.monotonic()
    assert time.monotonic() - start < 10 and pending[0].cancelled()
    assert not set(psutil.Process().children(recursive=True)) - others
