"""launch/slurm on a stand-in for SLURM: its programs start real processes here.

In most tests a small script takes the place of Python: it writes down how it was called, and ends as the test asks.
"""

import pathlib
import stat
import subprocess
import sys

import pytest

from isocompute_jax.experiment.loop import train
from isocompute_jax.records import run_files
from tests.experiment import builders
from tests.launch import processes, slurm_programs

SCRIPTS = processes.ROOT / "launch" / "slurm"
STUB = """#!/bin/bash
# python -m isocompute_jax.NAME FLAGS...
name=${2##*.} flags=("${@:3}")
echo "${SLURM_PROCID}/${SLURM_STEP_NUM_TASKS} ${flags[*]}" >>"$STUB/$name.calls"
code=$(cat "$STUB/$name.$(wc -l <"$STUB/$name.calls").code" 2>/dev/null) && exit "$code"
if [[ $name == serve ]]; then
  for flag in "${flags[@]}"; do [[ $flag == --port_file=* ]] && echo listening >"${flag#*=}"; done
fi
trap 'echo TERM >>"$STUB/$name.signals"; exit "$(cat "$STUB/$name.on_term" 2>/dev/null || echo 130)"' TERM
while [[ ! -e $STUB/$name.done ]]; do sleep 0.05; done
"""


class Slurm:
    """The stand-in, a stub for Python, and what both have written."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.stub = folder / "stub"
        self.stub.mkdir()
        self.environment = slurm_programs.install(folder / "slurm") | {"STUB": str(self.stub)}
        self.program = folder / "python"
        self.program.write_text(STUB)
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        self.workdir = folder / "runs" / "hard"
        self.cluster = folder / "runs" / "hard.cluster"

    def call(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False, cwd=self.folder
        )

    def submit(self, *flags: str, sbatch: tuple[str, ...] = ()) -> str:
        """Submits run.sh; returns the job's number."""
        before, _, after = " ".join(flags).partition("-- ")
        script = [str(SCRIPTS / "run.sh"), f"--workdir={self.workdir}", f"--python={self.program}", *before.split()]
        done = self.call("sbatch", "--parsable", *sbatch, *script, "--", *after.split())
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, job: str) -> str:
        return (self.folder / "slurm" / "jobs" / job / "state").read_text()

    def wait_for_state(self, job: str, *states: str) -> str:
        processes.wait_until(lambda: self.state(job) in states, f"{states} of {self.log(job)}", seconds=30)
        return self.state(job)

    def log(self, job: str) -> str:
        path = self.folder / f"slurm-{job}.out"
        return path.read_text() if path.exists() else ""

    def calls(self, name: str) -> list[str]:
        path = self.stub / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for_calls(self, name: str, count: int) -> None:
        processes.wait_until(lambda: len(self.calls(name)) >= count, f"{count} of {name}", seconds=30)

    def write(self, name: str, text: str = "") -> None:
        (self.stub / name).write_text(text)


@pytest.fixture
def slurm(tmp_path):
    found = Slurm(tmp_path)
    yield found
    for job in (tmp_path / "slurm" / "jobs").glob("*"):
        found.call("scancel", job.name)
    processes.wait_until(lambda: not processes.find(str(tmp_path)), "something is left behind", seconds=20)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_learners_and_servers_share_a_job_find_each_other_and_end_together(slurm, count):
    slurm.environment["FAKE_NODES"] = "127.0.0.1,127.0.0.2,127.0.0.3"
    job = slurm.submit(
        "--server_nodes=1 --servers_per_node=2 --model=m --server_args=--max_groups=7 -- --config=c.py",
        sbatch=(f"--nodes={count + 1}",),
    )
    slurm.wait_for_calls("train", count)
    addresses = [f"127.0.0.{count + 1}:{10000 + int(job) * 16 % 20000 + i}" for i in range(2)]
    token = slurm.cluster / "token"
    assert sorted(slurm.calls("train")) == [
        f"{i}/{count} --workdir={slurm.workdir} --endpoints={','.join(addresses)} --token_file={token} --config=c.py"
        for i in range(count)
    ]
    assert len(token.read_text()) == 64 and stat.S_IMODE(token.stat().st_mode) == 0o600
    serving = [call.split() for call in slurm.calls("serve")]
    assert {word for call in serving for word in call if "--port=" in word} == {
        f"--port={address.rpartition(':')[2]}" for address in addresses
    }
    assert all({"--max_groups=7", "--insecure", f"--token_file={token}"} <= set(call) for call in serving)
    slurm.write("train.done")
    assert slurm.wait_for_state(job, "COMPLETED", "FAILED") == "COMPLETED", slurm.log(job)
    assert (slurm.stub / "serve.signals").read_text() == "TERM\nTERM\n"


@pytest.mark.slow
def test_failed_learners_start_again_and_refused_ones_do_not(slurm):
    slurm.write("train.1.code", "1")
    slurm.write("train.2.code", "2")
    job = slurm.submit("-- --config=c.py")
    assert slurm.wait_for_state(job, "COMPLETED", "FAILED") == "FAILED"
    assert slurm.calls("train") == [f"0/1 --workdir={slurm.workdir} --config=c.py"] * 2  # sampling in the learner
    assert "exit code 1; all again in 0 s (1 of 10)" in slurm.log(job)


@pytest.mark.slow
def test_restarts_are_bounded(slurm):
    slurm.write("train.1.code", "1")
    slurm.write("train.2.code", "137")
    job = slurm.submit("--restarts=0 -- --config=c.py")
    assert slurm.wait_for_state(job, "COMPLETED", "FAILED") == "FAILED"
    assert len(slurm.calls("train")) == 1 and "failed 1 times in a row (exit code 1)" in slurm.log(job)


@pytest.mark.slow
def test_a_dead_server_comes_back_at_its_address(slurm):
    job = slurm.submit("--servers_per_node=1 --model=m -- --config=c.py")
    slurm.wait_for_calls("train", 1)
    [pid] = processes.find("isocompute_jax.serve", str(slurm.program), "/bin/bash")
    processes.kill(pid)
    slurm.wait_for_calls("serve", 2)
    first, second = slurm.calls("serve")
    assert first == second
    assert "server 0 at 127.0.0.1" in slurm.log(job) and "died (exit code 137" in slurm.log(job)


@pytest.mark.slow
def test_a_refused_server_ends_the_job(slurm):
    slurm.write("serve.1.code", "2")
    job = slurm.submit("--servers_per_node=1 --model=m -- --config=c.py")
    assert slurm.wait_for_state(job, "COMPLETED", "FAILED") == "FAILED"
    assert "server 0" in slurm.log(job) and "bad input; log:" in slurm.log(job)
    assert slurm.calls("train") == []


@pytest.mark.slow
def test_before_the_time_limit_a_checkpoint_is_written_and_the_job_goes_back_into_the_queue(slurm):
    job = slurm.submit("--servers_per_node=1 --model=m -- --config=c.py")
    slurm.wait_for_calls("train", 1)
    slurm.call("scancel", "--signal=USR1", "--batch", job)
    slurm.wait_for_calls("train", 2)
    assert (slurm.stub / "train.signals").read_text() == "TERM\n"
    assert "goes back into the queue" in slurm.log(job)
    slurm.write("train.done")
    assert slurm.wait_for_state(job, "COMPLETED", "FAILED") == "COMPLETED"


@pytest.mark.slow
@pytest.mark.parametrize(("on_term", "state"), [("0", "COMPLETED"), ("130", "FAILED")])
def test_told_to_stop_or_done_in_time_it_does_not_go_back(slurm, on_term, state):
    job = slurm.submit("-- --config=c.py")
    slurm.wait_for_calls("train", 1)
    slurm.write("train.on_term", on_term)
    slurm.call("scancel", f"--signal={'USR1' if on_term == '0' else 'TERM'}", "--batch", job)
    assert slurm.wait_for_state(job, "COMPLETED", "FAILED") == state
    assert len(slurm.calls("train")) == 1


@pytest.mark.slow
def test_two_jobs_find_each_other_and_the_servers_end_with_the_learners(slurm):
    run = ["--servers=--partition=other", "--learners=--nodes=1", "--", f"--workdir={slurm.workdir}"]
    run += [f"--python={slurm.program}", "--servers_per_node=1", "--model=m", "--", "--config=c.py"]
    done = slurm.call(str(SCRIPTS / "two_jobs.sh"), *run)
    assert done.stdout == "servers: job 101; learners: job 102\n", done.stderr
    slurm.wait_for_calls("train", 1)
    assert "--endpoints=127.0.0.1:11616 " in slurm.calls("train")[0]
    # The servers' job moves: the learners take a checkpoint and start again with the new addresses.
    (slurm.cluster / "endpoints").write_text("127.0.0.9:1\n")
    slurm.wait_for_calls("train", 2)
    assert "--endpoints=127.0.0.9:1 " in slurm.calls("train")[1]
    slurm.write("train.done")
    assert slurm.wait_for_state("102", "COMPLETED", "FAILED") == "COMPLETED", slurm.log("102")
    assert slurm.wait_for_state("101", "COMPLETED", "FAILED") == "COMPLETED", slurm.log("101")


@pytest.mark.slow
def test_a_refused_half_takes_the_other_with_it(slurm):
    run = ["--learners=--partition=none", "--", f"--workdir={slurm.workdir}", "--servers_per_node=1", "--model=m"]
    done = slurm.call(str(SCRIPTS / "two_jobs.sh"), *run)
    assert done.returncode == 2
    assert (
        "invalid partition specified: none" in done.stderr and "that of the servers, 101, is cancelled" in done.stderr
    )
    assert slurm.state("101") == "CANCELLED"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--worker=3", "unknown flag --worker=3"),
        ("--role=server", "--role=server: both, servers or learners"),
        ("--servers_per_node=x", "--servers_per_node=x: must be a whole number"),
        ("--servers_per_node=1", "--model is missing"),
        ("--server_nodes=1 --servers_per_node=1 --model=m", "leaves none of 1 nodes to learners"),
        ("--servers_per_node=9 --model=m", "4 CPUs of a node are too few"),
        ("--role=servers", "--role=servers needs --servers_per_node"),
    ],
)
def test_what_is_wrong_is_named(slurm, flags, message):
    slurm.environment |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a", "SLURM_CPUS_ON_NODE": "4"}
    done = slurm.call(str(SCRIPTS / "run.sh"), f"--workdir={slurm.workdir}", *flags.split())
    assert done.returncode == 2 and message in done.stderr


def test_outside_a_job_it_says_so(slurm):
    done = slurm.call(str(SCRIPTS / "run.sh"), f"--workdir={slurm.workdir}")
    assert (done.returncode, done.stderr) == (2, "error: this is no SLURM job: submit it with sbatch\n")


def test_the_scripts_pass_shellcheck():
    scripts = sorted(map(str, SCRIPTS.glob("*.sh")))
    done = subprocess.run(
        [pathlib.Path(sys.executable).parent / "shellcheck", *scripts], capture_output=True, text=True, check=False
    )
    assert scripts and done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_real_run_whose_learner_is_killed_and_whose_job_is_requeued_draws_what_an_undisturbed_one_draws(
    slurm, tmp_path
):
    config = builders.make_inputs(tmp_path)
    slurm.environment |= builders.compile_cache(tmp_path / "cache") | {"PYTHONPATH": str(processes.ROOT)}
    slurm.program = pathlib.Path(sys.executable)
    resolved = builders.write_config(tmp_path / "config.json", config)
    server = f"--servers_per_node=1 --model={config.model} --server_args=--max_slots=64"
    job = slurm.submit(f"{server} -- --resolved_config={resolved}")
    metrics = slurm.workdir / run_files.METRICS
    processes.wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 3, "some steps")
    learner = f"-m isocompute_jax.train --workdir={slurm.workdir} "
    processes.kill((set(processes.find(learner)) - set(processes.find("-IS", learner))).pop())  # and not its srun
    processes.wait_until(lambda: "all again in" in slurm.log(job), "the learner is started again")
    processes.wait_until(lambda: "resuming from step" in slurm.log(job), "it resumes")
    slurm.call("scancel", "--signal=USR1", "--batch", job)
    train(config, tmp_path / "undisturbed")  # sampling in its own process
    processes.wait_until(lambda: slurm.state(job) in ("COMPLETED", "FAILED"), "the run ends")
    assert slurm.state(job) == "COMPLETED", slurm.log(job)
    assert "goes back into the queue" in slurm.log(job)
    runs = [builders.log_lines(path, run_files.METRICS) for path in (slurm.workdir, tmp_path / "undisturbed")]
    columns = ("step", "compute", "tokens", "reward", "zero_variance_share", "trained_tokens")
    ours, theirs = ([[line[name] for name in columns] for line in lines] for lines in runs)
    assert len(ours) == config.num_steps and ours == theirs
