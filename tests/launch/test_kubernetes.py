"""The objects of a run on Kubernetes: against their schemas, and what they start."""

import copy
import os
import pathlib
import signal
import subprocess
import sys

import kubernetes_validate
import pytest
import yaml

from isocompute_jax.distributed.environment import PORT, Place, find_place
from isocompute_jax.records.errors import InputError
from launch.kubernetes import render
from tests import mains

ROOT = pathlib.Path(__file__).parents[2]
FLAGS = [
    *("--name=hard", "--namespace=rl", "--image=registry.example/isocompute:1", "--claim=runs", "--queue=research"),
    *("--learners=2", "--learner_resources=nvidia.com/gpu=8,memory=1500Gi", "--servers=3", "--model=/runs/base"),
    *("--server_resources=nvidia.com/gpu=1", "--learner_nodes=pool=h200", "--tls_secret=tls", "--token_secret=token"),
    *("--server_image=registry.example/vllm:1", "--server_args=--tensor_parallel=1 --grace_s=20"),
]
COMMAND = ["python", "-m", "isocompute_jax.train", "--config=configs/arithmetic_hard.py", "--workdir=/runs/hard"]
PLACES = ["--config.service.endpoints={endpoints}", "--config.service.token_file={token_file}"]


def run(**options) -> render.Run:
    return render.Run(**{"name": "a", "image": "i", "command": ("true",), **options})


def main(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "launch/kubernetes/render.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def jobset() -> dict:
    """What the command line prints."""
    done = main(*FLAGS, "--", *COMMAND, *PLACES, "--config.service.ca_file={ca_file}")
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


def job(jobset: dict, name: str) -> dict:
    return next(job for job in jobset["spec"]["replicatedJobs"] if job["name"] == name)["template"]["spec"]


def container(jobset: dict, name: str) -> dict:
    [found] = job(jobset, name)["template"]["spec"]["containers"]
    return found


def check(jobset: dict) -> None:
    """Raises for what JobSet or Kubernetes would not know: neither drops nor changes a field."""
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet  # takes seconds

    for replicated in jobset["spec"]["replicatedJobs"]:
        as_job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, **replicated["template"]}
        kubernetes_validate.validate(as_job, "1.37", strict=True)
        for port in (port for each in as_job["spec"]["template"]["spec"]["containers"] for port in each["ports"]):
            port.setdefault("protocol", "TCP")  # which the models write out
    understood = JobsetV1alpha2JobSet.from_dict(copy.deepcopy(jobset))
    assert understood is not None and understood.to_dict() == jobset


def test_the_objects_fit_their_schemas(jobset):
    check(jobset)
    for options in ({}, {"servers": 1, "model": "m"}, {"learners": 64, "restart": "learners", "queue": "q"}):
        [rendered] = render.render(run(**options))
        check(rendered)
    assert [job["name"] for job in render.render(run())[0]["spec"]["replicatedJobs"]] == ["learners"]


@pytest.mark.parametrize("path", ["spec", "spec.failurePolicy", "spec.replicatedJobs.0.template.spec.template.spec"])
def test_a_misspelt_field_is_found(jobset, path):
    jobset = found = copy.deepcopy(jobset)
    for part in path.split("."):
        found = found[int(part) if part.isdigit() else part]
    found["replicaz"] = 1
    with pytest.raises((AssertionError, kubernetes_validate.ValidationError)):
        check(jobset)


def test_the_learners_find_each_other_and_the_servers(jobset):
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    learner = container(jobset, "learners")
    domain = "hard.rl.svc"
    endpoints = ",".join(f"hard-servers-0-{number}.{domain}:50051" for number in range(3))
    assert learner["command"] == [
        *COMMAND,
        f"--config.service.endpoints={endpoints}",
        "--config.service.token_file=/var/run/isocompute/token/token",
        "--config.service.ca_file=/var/run/isocompute/tls/ca.crt",
    ]
    at = jobset["spec"]["coordinator"]
    coordinator = f"hard-{at['replicatedJob']}-{at['jobIndex']}-{at['podIndex']}.hard"
    annotations = {"metadata.annotations['jobset.sigs.k8s.io/coordinator']": coordinator}
    environ = {
        variable["name"]: variable.get("value") or annotations[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        for variable in learner["env"]
    }
    for index in range(job(jobset, "learners")["completions"]):
        place = find_place(
            cluster="auto",
            coordinator=None,
            process_count=None,
            process_index=None,
            environ=environ | {"JOB_COMPLETION_INDEX": str(index)},  # which Kubernetes sets
        )
        assert place == Place(index, 2, f"hard-learners-0-0.hard:{PORT}", "jobset")
    assert {port["containerPort"] for port in learner["ports"]} == {PORT, PORT + 1}


def test_files_lie_where_the_commands_look(jobset):
    for name in ("learners", "servers"):
        pod, main = job(jobset, name)["template"]["spec"], container(jobset, name)
        folders = {mount["name"]: mount["mountPath"] for mount in main["volumeMounts"]}
        assert folders.keys() == {volume["name"] for volume in pod["volumes"]}
        there = {
            f"{folders[volume['name']]}/{item['path']}"
            for volume in pod["volumes"]
            for item in volume.get("secret", {}).get("items", ())
        }
        words = [
            *main["command"],
            *main.get("args", ()),
            *main.get("startupProbe", {"exec": {"command": []}})["exec"]["command"],
        ]
        named = {word.partition("=")[2] for word in words if "=/var/run/isocompute" in word}
        assert named == there
        assert folders["runs"] == "/runs" and folders["shm"] == "/dev/shm"


def test_commands_of_the_servers_have_flags_that_exist(jobset):
    server = container(jobset, "servers")
    assert server["livenessProbe"]["exec"] == server["startupProbe"]["exec"]
    probes = [server[f"{probe}Probe"]["exec"]["command"] for probe in ("startup", "readiness")]
    for command in (server["args"], *probes):
        assert command[:2] == ["python3", "-m"]
        done = mains.run(command[2], [*command[3:], "--only_check_args"])
        assert (command[2], done.returncode, done.stderr) == (command[2], 0, "")
    assert "--tls_name=hard-servers-0-0.hard.rl.svc" in probes[1]


def test_what_is_started_again(jobset):
    learners, servers = job(jobset, "learners"), job(jobset, "servers")
    for each in (learners, servers):
        [rule] = each["podFailurePolicy"]["rules"]
        assert rule["action"] == "FailJob" and rule["onExitCodes"]["values"] == [2]
    assert learners["backoffLimit"] == 0 and "backoffLimitPerIndex" in servers
    policy = jobset["spec"]["failurePolicy"]
    assert [rule["action"] for rule in policy["rules"]] == ["FailJobSet", "RestartJobSet"]
    assert policy["rules"][0]["onJobFailureReasons"] == ["PodFailurePolicy"]
    assert jobset["spec"]["successPolicy"]["targetReplicatedJobs"] == ["learners"]
    [alone] = render.render(run(restart="learners"))
    assert alone["spec"]["failurePolicy"]["rules"][1]["action"] == "RestartJob"


@pytest.mark.parametrize(
    ("program", "number", "code"),
    [
        ("exit 2", None, 2),
        ("exit 0", None, 143),
        ("kill -9 $$", None, 137),
        ("trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done", signal.SIGTERM, 143),
        ("trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done", signal.SIGTERM, 5),
    ],
)
def test_a_server_that_ends_in_order_is_not_taken_for_done(jobset, program, number, code):
    command = [*container(jobset, "servers")["command"], "sh", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as server:
        assert server.stdout
        if number:
            assert server.stdout.readline() == b"up\n"
            os.kill(server.pid, number)
        assert server.wait(20) == code


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--image=i", "--", "true"], "--name is missing"),
        (["--name=a", "--image=i"], "no command: give it after `--`"),
        (["--name=A", "--image=i", "--", "true"], "--name=A: at most 24 small letters"),
        ([f"--name={'a' * 25}", "--image=i", "--", "true"], "at most 24"),
        (["--name=a", "--image=i", "--servers=1", "--", "true"], "--model is missing"),
        (["--name=a", "--image=i", "--", "x", "{endpoints}"], "the command has {endpoints}, and --servers is missing"),
        (["--name=a", "--image=i", "--", "x={ca_file}"], "the command has {ca_file}, and --tls_secret is missing"),
        (["--name=a", "--image=i", "--learner_resources=8", "--", "x"], "--learner_resources: '8' is no NAME=VALUE"),
    ],
)
def test_what_is_refused(flags, message):
    done = main(*flags)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_the_longest_name_makes_a_label_that_fits():
    [longest] = render.render(run(name="a" * render.LONGEST_NAME))
    name = longest["metadata"]["name"]
    assert len(f"{name}-learners-0-0.{name}") <= 63
    with pytest.raises(InputError):
        run(name="a" * (render.LONGEST_NAME + 1))
