"""A stand-in for SLURM: `sbatch`, `srun`, `squeue`, `scancel` and `scontrol` that start real processes on this machine.

`install` writes the programs into a folder for PATH. A job is a folder below $FAKE_SLURM/jobs: its script, arguments,
options, and a state that its runner keeps. Only the standard library is imported, so that each call is quick.
"""

import contextlib
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

NAMES = ("sbatch", "srun", "squeue", "scancel", "scontrol")
PARTITIONS = ("main", "other")
GRACE_S = 0.5
"""Between the TERM and the KILL of a cancelled job."""


def install(folder: pathlib.Path) -> dict[str, str]:
    """Writes the programs to `folder/bin`; returns the environment in which they are found."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for name in NAMES:
        path = programs / name
        path.write_text(f"#!{sys.executable} -IS\nimport runpy\nrunpy.run_path({__file__!r}, run_name={name!r})\n")
        path.chmod(0o755)
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
        "PATH": f"{programs}:{os.environ['PATH']}",
        "FAKE_SLURM": str(folder),
        "FAKE_NODES": "127.0.0.1",
    }


def jobs() -> list[pathlib.Path]:
    folder = pathlib.Path(os.environ["FAKE_SLURM"], "jobs")
    return sorted(folder.iterdir(), key=lambda path: path.name) if folder.exists() else []


def state(job: pathlib.Path) -> str:
    return (job / "state").read_text()


def set_state(job: pathlib.Path, value: str) -> None:
    (job / "state.new").write_text(value)
    (job / "state.new").replace(job / "state")


def refuse(program: str, *lines: str) -> None:
    for line in lines:
        print(f"{program}: error: {line}", file=sys.stderr)
    sys.exit(1)


def options_of(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Flags before the first other argument, and the rest."""
    found: dict[str, str] = {}
    while arguments and arguments[0].startswith("-"):
        name, _, value = arguments.pop(0).lstrip("-").partition("=")
        found[name] = value
    return found, arguments


def sbatch() -> None:
    given, (script, *arguments) = options_of(sys.argv[1:])
    text = pathlib.Path(script).read_text()
    written = [shlex.split(line) for line in re.findall(r"^#SBATCH (.*)$", text, re.MULTILINE)]
    options = options_of([word for words in written for word in words])[0] | given
    partition = options.get("partition", "main")
    if partition not in PARTITIONS:
        refuse(
            "sbatch", f"invalid partition specified: {partition}",
            "Batch job submission failed: Invalid partition name specified",
        )  # fmt: skip
    number = 1 + max([int(job.name.split("_")[0]) for job in jobs()], default=100)
    indices = range(int(options["array"].split("-")[1].split("%")[0]) + 1) if "array" in options else [None]
    for index in indices:
        name = str(number) if index is None else f"{number}_{index}"
        job = pathlib.Path(os.environ["FAKE_SLURM"], "jobs", name)
        (job / "steps").mkdir(parents=True)
        (job / "script").write_text(text)
        (job / "job.json").write_text(json.dumps({"options": options, "arguments": arguments, "script": script}))
        set_state(job, "PENDING")
        subprocess.Popen(
            [sys.executable, "-IS", __file__, "runner", str(job)], start_new_session=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=open(job / "runner", "w"),  # noqa: SIM115
        )  # fmt: skip
    print(number if "parsable" in options else f"Submitted batch job {number}")


def may_start(job: pathlib.Path, options: dict[str, str]) -> bool:
    """Whether what it depends on has come about, and its array leaves it room."""
    kind, _, numbers = options.get("dependency", "").partition(":")
    others = [other for other in jobs() if other.name.split("_")[0] in numbers.split(":")]
    if kind == "after":
        return all(state(other) != "PENDING" for other in others)
    if kind == "afterok":
        return all(state(other) == "COMPLETED" for other in others)
    if "array" in options:
        running = [o for o in jobs() if o.name.split("_")[0] == job.name.split("_")[0] and state(o) == "RUNNING"]
        return len(running) < int(options["array"].partition("%")[2] or 1000)
    return True


def runner(job: pathlib.Path) -> None:
    """Runs the script of a job, again as long as it is put back into the queue."""
    about = json.loads((job / "job.json").read_text())
    options, nodes = about["options"], os.environ["FAKE_NODES"].split(",")
    number, _, index = job.name.partition("_")
    nodes = nodes[: int(options.get("nodes", 1))]
    log = options.get("output", "slurm-%j.out").replace("%j", job.name).replace("%A", number).replace("%a", index)
    environment = dict(os.environ) | {
        "SLURM_JOB_ID": number, "SLURM_JOB_NODELIST": ",".join(nodes), "SLURM_JOB_NUM_NODES": str(len(nodes)),
        "SLURM_CPUS_ON_NODE": "4", "FAKE_JOB": str(job),
    }  # fmt: skip
    if index:
        environment |= {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": index}
    while True:
        while not may_start(job, options) and state(job) == "PENDING":
            time.sleep(0.05)
        if state(job) != "PENDING":
            return
        set_state(job, "RUNNING")
        with open(log, "ab") as output:
            script = subprocess.Popen(
                ["bash", str(job / "script"), *about["arguments"]], env=environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        (job / "pid").write_text(str(script.pid))
        code = script.wait()
        end_group(script.pid)
        if state(job) != "REQUEUED":
            break
        set_state(job, "PENDING")
        environment["SLURM_RESTART_COUNT"] = str(int(environment.get("SLURM_RESTART_COUNT", 0)) + 1)
    if state(job) == "RUNNING":
        set_state(job, "COMPLETED" if code == 0 else "FAILED")


def end_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def srun() -> None:
    given, command = options_of(sys.argv[1:])
    job = pathlib.Path(os.environ["FAKE_JOB"])
    hosts = given["nodelist"].split(",")
    count = int(given["ntasks"])
    assert count == len(hosts) * int(given["ntasks-per-node"]) and given["nodes"] == str(len(hosts))
    tasks = []
    for index in range(count):
        variables = {
            "SLURM_PROCID": index, "SLURM_STEP_NUM_TASKS": count, "SLURM_STEP_NODELIST": given["nodelist"],
            "SLURM_NODEID": index * len(hosts) // count, "SLURM_STEP_ID": os.getpid(), "SLURM_NTASKS": count,
        }  # fmt: skip
        environment = dict(os.environ) | {name: str(value) for name, value in variables.items()}
        tasks.append(subprocess.Popen(command, env=environment))

    def forward(number: int, _: object) -> None:
        for task in tasks:
            task.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, forward)
    step = job / "steps" / str(os.getpid())
    step.write_text(shlex.join(command))
    codes = [task.wait() for task in tasks]
    step.unlink()
    sys.exit(max(code if code >= 0 else 128 - code for code in codes))


def squeue() -> None:
    given, _ = options_of(sys.argv[1:])
    if (pathlib.Path(os.environ["FAKE_SLURM"]) / "down").exists():
        refuse("squeue", "Unable to contact slurm controller (connect failure)")
    listed = [job for job in jobs() if state(job) in ("PENDING", "RUNNING", "REQUEUED")]
    if "jobs" in given:
        listed = [job for job in listed if job.name.split("_")[0] in given["jobs"].split(",")]
        if not listed:
            refuse("slurm_load_jobs", "Invalid job id specified")
    for job in listed:
        print(given.get("format", "%i").replace("%i", job.name).replace("%T", state(job)))


def scancel() -> None:
    given, numbers = options_of(sys.argv[1:])
    chosen = [job for job in jobs() if job.name in numbers or job.name.split("_")[0] in numbers]
    chosen = [job for job in chosen if state(job) == given.get("state", state(job))]
    for job in chosen:
        if "signal" in given:
            if state(job) == "RUNNING":
                number = signal.Signals[f"SIG{given['signal'].removeprefix('SIG')}"]
                os.kill(int((job / "pid").read_text()), number)
            continue
        running = state(job) == "RUNNING"
        set_state(job, "CANCELLED")
        if running:
            for step in list((job / "steps").iterdir()):
                os.kill(int(step.name), signal.SIGTERM)
            subprocess.Popen([sys.executable, "-IS", __file__, "killer", str(job)], start_new_session=True)


def killer(job: pathlib.Path) -> None:
    time.sleep(GRACE_S)
    end_group(int((job / "pid").read_text()))


def scontrol() -> None:
    what, *rest = sys.argv[1:]
    if what == "show":
        print("\n".join(rest[1].split(",")))
    if what == "requeue":
        [job] = [job for job in jobs() if job.name == rest[0]]
        set_state(job, "REQUEUED")


if __name__ == "__main__":
    {"runner": runner, "killer": killer}[sys.argv[1]](pathlib.Path(sys.argv[2]))
elif __name__ in NAMES:
    globals()[__name__]()
