"""Sweeps on Kubernetes: the official client against a small server that keeps objects as an API server does."""

import http.server
import json
import re
import threading
import urllib.parse

import pytest
from kubernetes.config import kube_config

from isocompute_jax.experiment.config import RunConfig
from isocompute_jax.records import run_files
from isocompute_jax.records.errors import InputError
from isocompute_jax.sweeps import books, grid, jobsets, scheduled

BASE = RunConfig(model="m", train_set="t.jsonl", group_size=4, problems_per_batch=8, max_compute=1024)
RENDER = """
import dataclasses
@dataclasses.dataclass(frozen=True)
class Run:
    name: str
    image: str
    command: tuple
    model: str = ""
    namespace: str = "default"
    servers: int = 0
    queue: str = ""
    token_secret: str = ""
def render(run):
    labels = {"kueue.x-k8s.io/queue-name": run.queue} if run.queue else {}
    spec = {"suspend": bool(run.queue), "replicatedJobs": [{"command": list(run.command), "image": run.image}]}
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
             "metadata": {"name": run.name, "namespace": run.namespace, "labels": labels}, "spec": spec}]
"""
"""In place of launch/kubernetes/render.py, which has tests of its own."""


class ApiServer(http.server.ThreadingHTTPServer):
    """JobSets by name; those named in `lingering` stay for one more list after they were deleted."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, dict] = {}
        self.lingering: set[str] = set()
        self.ending: set[str] = set()
        self.refuses = ""
        self.calls: list[str] = []


class Handler(http.server.BaseHTTPRequestHandler):
    server: ApiServer

    def answer(self, code: int, body: dict) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = body["metadata"]["name"]
        self.server.calls.append(f"create {name}")
        if self.server.refuses:
            return self.answer(403, {"message": self.server.refuses})
        if name in self.server.objects:
            return self.answer(409, {"message": f"{name} already exists"})
        self.server.objects[name] = body
        return self.answer(201, body)

    def do_GET(self):
        query = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)
        key, _, value = query["labelSelector"][0].partition("=")
        found = [each for each in self.server.objects.values() if each["metadata"]["labels"].get(key) == value]
        self.answer(200, {"items": found})
        for name in self.server.ending:
            del self.server.objects[name]
        self.server.ending.clear()

    def do_DELETE(self):
        name = urllib.parse.urlparse(self.path).path.rpartition("/")[2]
        self.server.calls.append(f"delete {name}")
        if name not in self.server.objects:
            return self.answer(404, {"message": "not found"})
        if name in self.server.lingering:
            self.server.ending.add(name)
        else:
            del self.server.objects[name]
        return self.answer(200, {})

    def log_message(self, *_):
        return None


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The server, and a scheduler that talks to it."""
    with ApiServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        where = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        kubeconfig = {
            "apiVersion": "v1", "kind": "Config", "clusters": [where], "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }  # fmt: skip
        (tmp_path / "config").write_text(json.dumps(kubeconfig))
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
        monkeypatch.setattr("kubernetes.config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
        monkeypatch.setattr(jobsets, "POLL_S", 0.01)
        monkeypatch.setattr(scheduled, "LOOK_S", 0.05)
        (tmp_path / "render.py").write_text(RENDER)
        try:
            yield server, lambda **fields: scheduler(tmp_path, fields)
        finally:
            server.shutdown()
            thread.join()


def scheduler(folder, fields) -> jobsets.JobSetScheduler:
    (folder / "settings.yaml").write_text(json.dumps({"image": "i"} | fields))
    return jobsets.JobSetScheduler(folder / "sweep", str(folder / "settings.yaml"), folder / "render.py")


def runs_of(*seeds: int) -> list[grid.PlannedRun]:
    return grid.grid(BASE, {"seed": seeds})


def test_each_run_is_a_jobset_with_its_queue_and_is_not_handed_in_twice(cluster, tmp_path):
    server, make = cluster
    found = make(servers=2, queue="gpus", token_secret="s")
    result = scheduled.run_scheduled(runs_of(0, 1), tmp_path / "sweep", found, wait=False)
    assert result.names("queued") == ("seed=0", "seed=1")
    name = found.name_of("seed=0")
    assert re.fullmatch("[a-z][-a-z0-9]{1,23}", name) and set(server.objects) == {name, found.name_of("seed=1")}
    made = server.objects[name]
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert made["metadata"]["annotations"] == {"isocompute/run": "seed=0"}
    root = (tmp_path / "sweep").absolute()
    assert made["spec"]["replicatedJobs"][0]["command"] == [
        "python", "-m", "isocompute_jax.train", f"--workdir={root / 'seed=0'}",
        f"--resolved_config={root / 'configs' / 'seed=0.json'}",
        "--trust_config", "--endpoints={endpoints}", "--token_file={token_file}",
    ]  # fmt: skip
    assert found.active([name]) == {name: "queued"}
    made["spec"]["suspend"], made["status"] = False, {"replicatedJobsStatus": [{"name": "learners", "ready": 1}]}
    assert found.active([name]) == {name: "running"}
    calls = len(server.calls)
    again = scheduled.run_scheduled(runs_of(0, 1), tmp_path / "sweep", found, wait=False)
    assert len(server.calls) == calls and len(again.names("queued")) == 2
    # One has ended well, one has failed: what failed is handed in again, in place of the old object.
    made["status"]["conditions"] = [{"type": "Completed", "status": "True"}]
    (root / "seed=0").mkdir()
    (root / "seed=0" / run_files.DONE).touch()
    other = server.objects[found.name_of("seed=1")]
    other["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    ended = scheduled.run_scheduled(runs_of(0, 1), tmp_path / "sweep", found, wait=False)
    assert ended.done == ("seed=0",) and ended.names("queued") == ("seed=1",)
    assert "status" not in server.objects[found.name_of("seed=1")]


def test_with_the_template_of_launch_kubernetes(cluster, tmp_path):
    server, _ = cluster
    fields = {"servers": 2, "learners": 2, "queue": "gpus", "token_secret": "s", "tls_secret": "t", "engine": "jax"}
    (tmp_path / "settings.yaml").write_text(json.dumps({"image": "i", "namespace": "rl"} | fields))
    found = jobsets.JobSetScheduler(tmp_path / "sweep", str(tmp_path / "settings.yaml"))
    scheduled.run_scheduled(runs_of(0), tmp_path / "sweep", found, wait=False)
    [made] = server.objects.values()
    learners, servers = made["spec"]["replicatedJobs"]
    [container] = learners["template"]["spec"]["template"]["spec"]["containers"]
    name = found.name_of("seed=0")
    endpoints = ",".join(f"{name}-servers-0-{i}.{name}.rl.svc:50051" for i in range(2))
    assert f"--endpoints={endpoints}" in container["command"] and learners["template"]["spec"]["completions"] == 2
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    [container] = servers["template"]["spec"]["template"]["spec"]["containers"]
    assert f"--model={tmp_path.cwd() / 'm'}" in container["args"]


def test_watching_books_what_ends_and_cancel_and_requeue_take_the_whole_jobset(cluster, tmp_path):
    server, make = cluster
    root, found = tmp_path / "sweep", make()
    scheduled.run_scheduled(runs_of(0, 1), root, found, wait=False)
    names = {seed: found.name_of(f"seed={seed}") for seed in (0, 1)}
    server.lingering = {names[0]}  # its pods take their time to end
    assert scheduled.requeue(root, found, ["seed=0"]) == ["seed=0"]
    assert server.calls[-2:] == [f"delete {names[0]}", f"create {names[0]}"]
    assert scheduled.cancel(root, found, ["seed=1"]) == ["seed=1"]
    assert set(server.objects) == {names[0]}
    assert books.read_state(runs_of(0, 1), root).states["seed=1"] == "interrupted"
    server.objects[names[0]]["status"] = {"replicatedJobsStatus": [{"name": "learners", "active": 1}]}
    watcher = scheduled._Scheduled(books.read_state(runs_of(0), root), found)
    assert watcher.look() == [] and books.read_state(runs_of(0), root).states == {"seed=0": "running"}
    failed = {"type": "Failed", "status": "True", "message": "learners failed with exit code 2"}
    server.objects[names[0]]["status"] = {"conditions": [failed]}
    assert watcher.look() == ["seed=0"]
    record = books.read_record(root, "seed=0")
    assert record and (record.state, record.reason) == ("failed", "learners failed with exit code 2")


def test_what_is_wrong_is_named(cluster, tmp_path, monkeypatch):
    server, make = cluster
    root = tmp_path / "sweep"
    server.refuses = "jobsets.jobset.x-k8s.io is forbidden: User cannot create"
    with pytest.raises(InputError, match=r"the cluster refused the JobSet .*User cannot create"):
        scheduled.run_scheduled(runs_of(0), root, make())
    with pytest.raises(InputError, match=r"--kubernetes: .*gpus.*; the fields are those of launch/kubernetes"):
        scheduled.run_scheduled(runs_of(0), root, make(gpus=8))
    with pytest.raises(InputError, match="command is filled in by the sweep"):
        make(command=["x"])
    with pytest.raises(InputError, match="--kubernetes is missing"):
        jobsets.read_settings("")
    with pytest.raises(InputError, match="a quota of Kueue"):
        make().submit([], at_once=2)
    monkeypatch.setattr("kubernetes.config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(InputError, match="no cluster is configured"):
        make()
