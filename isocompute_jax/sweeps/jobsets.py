"""Runs as JobSets on Kubernetes, through its official client: one object per run, which Kueue queues where it is there.

The object is that of launch/kubernetes, filled in from one file for the whole sweep; when and where its pods run is the
cluster's business, and so is starting failed learners again. Books of what became of a run are kept by the sweep that
watches, from the object's status: nothing in a pod knows of them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import pathlib
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import urllib3
import yaml
from kubernetes import client, config

from isocompute_jax.records.errors import InputError
from isocompute_jax.sweeps.jobs import Active, Job, Unreachable

KUBERNETES = "kubernetes"
RENDER = pathlib.Path(__file__).parents[2] / "launch" / "kubernetes" / "render.py"
GROUP, VERSION, PLURAL = "jobset.x-k8s.io", "v1alpha2", "jobsets"
SWEEP_LABEL = "isocompute/sweep"
RUN_ANNOTATION = "isocompute/run"
OWN_FIELDS = ("name", "command", "model")
"""Fields of launch/kubernetes that the sweep fills in."""
GONE_S = 300.0
"""A deleted JobSet whose pods have not ended after so many seconds is in the way of a new one."""
POLL_S = 0.5
ENDED = COMPLETED, _ = ("Completed", "Failed")
"""Conditions of a JobSet after which no pod of it runs."""


class JobSetScheduler:
    """Kubernetes, by the user's kubeconfig or, in a pod, by its service account."""

    name: Literal["kubernetes"] = KUBERNETES

    def __init__(self, root: pathlib.Path, settings: str, render: pathlib.Path = RENDER):
        """`settings` is a YAML file with fields of launch/kubernetes/render.py's `Run`.

        Raises:
          InputError: a file is missing or wrong, or no cluster is configured.
        """
        self._root = root.absolute()
        self._settings = read_settings(settings)
        self._namespace = self._settings.get("namespace", "default")
        self._launch = _load(render)
        try:
            config.load_config()
        except config.ConfigException as error:
            raise InputError(
                f"--executor=kubernetes: no cluster is configured ({error}); see `kubectl config`"
            ) from error
        self._api = client.CustomObjectsApi()

    def submit(self, jobs: Sequence[Job], *, at_once: int | None) -> list[str]:
        """One JobSet each; an old one of the same run that has ended is replaced."""
        if at_once is not None and not self._settings.get("queue"):
            raise InputError("--workers: how many runs Kubernetes runs at a time is said by a quota of Kueue (`queue`)")
        rendered = [self._objects(job) for job in jobs]  # all, before one is created
        names = []
        for job, objects in zip(jobs, rendered, strict=True):
            name = self.name_of(job.name)
            self._replace(name, objects)
            names.append(name)
        return names

    def active(self, jobs: Collection[str]) -> dict[str, Active]:
        """By one call for all of the sweep's JobSets."""
        found: dict[str, Active] = {}
        for each in self._listed():
            name, status = each["metadata"]["name"], each.get("status", {})
            if name not in jobs or _end(each) is not None:
                continue
            active = any(
                part.get("active", 0) or part.get("ready", 0) for part in status.get("replicatedJobsStatus", [])
            )
            found[name] = "queued" if each["spec"].get("suspend") or not active else "running"
        return found

    def why(self, job: str) -> str:
        """What the object says."""
        ends = [_end(each) for each in self._listed() if each["metadata"]["name"] == job]
        if not ends or ends[0] is None:
            return f"the JobSet {job} is gone: deleted by somebody else"
        kind, message = ends[0]
        return "" if kind == COMPLETED else message or kind

    def stop(self, jobs: Collection[str]) -> None:
        """Deletes them: pods get TERM, and their grace period for a last checkpoint."""
        for name in jobs:
            self._delete(name)

    def requeue(self, jobs: Collection[str]) -> None:
        """Creates them anew when the old ones, pods and all, are gone."""
        objects = {each["metadata"]["name"]: each for each in self._listed()}
        for name in jobs:
            old = objects[name]
            spec = {key: value for key, value in old["spec"].items() if key != "suspend"}
            kept = {key: old["metadata"].get(key) for key in ("name", "namespace", "labels", "annotations")}
            body = {"apiVersion": old["apiVersion"], "kind": old["kind"], "metadata": kept, "spec": spec}
            self._replace(name, [body])

    def name_of(self, run: str) -> str:
        """A DNS label of at most 24 characters, the same for the same run of the same sweep."""
        return f"isocompute-{hashlib.blake2b(f'{self._root}/{run}'.encode(), digest_size=6).hexdigest()}"

    @property
    def _sweep(self) -> str:
        return hashlib.blake2b(str(self._root).encode(), digest_size=6).hexdigest()

    def _objects(self, job: Job) -> list[dict[str, Any]]:
        """What launch/kubernetes makes of a run, labelled as this sweep's."""
        directory = "--workdir" if job.main == "train" else "--out"
        command = ["python", "-m", f"isocompute_jax.{job.main}", f"{directory}={job.workdir}", *job.flags]
        for field, flag in (("servers", "endpoints"), ("token_secret", "token_file"), ("tls_secret", "ca_file")):
            command += [f"--{flag}={{{flag}}}"] if self._settings.get(field) else []
        values = self._settings | {"name": self.name_of(job.name), "command": tuple(command), "model": job.model}
        try:
            objects = self._launch.render(self._launch.Run(**values))
        except TypeError as error:
            raise InputError(f"--kubernetes: {error}; the fields are those of launch/kubernetes/render.py") from error
        for each in objects:
            labels = each["metadata"].setdefault("labels", {})
            labels[SWEEP_LABEL] = self._sweep
            each["metadata"].setdefault("annotations", {})[RUN_ANNOTATION] = job.name
        return objects

    def _listed(self) -> list[dict[str, Any]]:
        """The sweep's JobSets."""
        try:
            found = self._api.list_namespaced_custom_object(
                GROUP, VERSION, self._namespace, PLURAL, label_selector=f"{SWEEP_LABEL}={self._sweep}"
            )
        except client.ApiException as error:
            raise Unreachable(_said(error)) from error
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(str(error)) from error
        assert isinstance(found, dict)
        return list(found["items"])

    def _replace(self, name: str, objects: Sequence[dict[str, Any]]) -> None:
        """Creates the objects of a run when those of its last start, pods and all, are gone."""
        try:
            self._delete(name)
            deadline = time.monotonic() + GONE_S
            while name in {each["metadata"]["name"] for each in self._listed()}:
                if time.monotonic() > deadline:
                    raise InputError(
                        f"the JobSet {name} of the last start does not go: `kubectl describe jobset {name}`"
                    )
                time.sleep(POLL_S)
            for each in objects:
                self._api.create_namespaced_custom_object(GROUP, VERSION, self._namespace, PLURAL, each)
        except client.ApiException as error:
            raise InputError(f"the cluster refused the JobSet {name}: {_said(error)}") from error
        except (Unreachable, urllib3.exceptions.HTTPError) as error:
            raise InputError(f"--executor=kubernetes: the cluster does not answer ({error})") from error

    def _delete(self, name: str) -> None:
        """With its pods; one that is gone is nothing to complain of."""
        try:
            self._api.delete_namespaced_custom_object(
                GROUP, VERSION, self._namespace, PLURAL, name, propagation_policy="Foreground"
            )
        except client.ApiException as error:
            if error.status != 404:
                raise InputError(f"the cluster does not delete the JobSet {name}: {_said(error)}") from error


def read_settings(path: str) -> dict[str, Any]:
    """The fields in a YAML file. Raises InputError, naming the file."""
    if not path:
        raise InputError(
            "--kubernetes is missing: a YAML file with image, claim, learners, servers, queue and the like"
        )
    try:
        found = yaml.safe_load(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise InputError(f"--kubernetes={path}: cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise InputError(f"--kubernetes={path}: must be fields and their values, one a line")
    if own := [name for name in OWN_FIELDS if name in found]:
        raise InputError(f"--kubernetes={path}: {own[0]} is filled in by the sweep; leave it out")
    return found


def _load(path: pathlib.Path) -> Any:
    """launch/kubernetes/render.py, which is no part of the package."""
    if not path.exists():
        raise InputError(f"--executor=kubernetes: {path} is missing: install from a checkout (pip install -e .)")
    spec = importlib.util.spec_from_file_location("isocompute_launch_kubernetes", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def _end(jobset: Mapping[str, Any]) -> tuple[str, str] | None:
    """How a JobSet has ended, and its message; None for one that has not."""
    conditions = jobset.get("status", {}).get("conditions", [])
    ends = [each for each in conditions if each["type"] in ENDED and each.get("status") == "True"]
    return next(((each["type"], each.get("message", "")) for each in ends), None)


def _said(error: client.ApiException) -> str:
    """The server's message."""
    try:
        body: Mapping[str, Any] = yaml.safe_load(error.body or "") or {}  # JSON is YAML
        return str(body.get("message") or error.reason)
    except (yaml.YAMLError, AttributeError):
        return str(error.reason)
