r"""One training run as a Kubernetes JobSet.

    python launch/kubernetes/render.py --out=hard-7b.yaml --name=hard-7b --claim=runs \
        --image=registry.example/isocompute:1 --learners=2 --learner_resources=nvidia.com/gpu=8 \
        --servers=16 --server_resources=nvidia.com/gpu=1 \
        --model=/runs/models/Qwen2.5-7B --tls_secret=isocompute-tls --token_secret=isocompute-token -- \
        python -m isocompute_jax.train --config=configs/isocompute_hard_qwen2_5_7b.py --workdir=/runs/hard \
        --config.service.endpoints={endpoints} --config.service.token_file={token_file} \
        --config.service.ca_file={ca_file}
    kubectl apply -f hard-7b.yaml

The command after `--` is every learner's; `{endpoints}`, `{token_file}` and `{ca_file}` in it are filled in. Several
learners find each other by themselves (`--cluster=jobset` of isocompute_jax.train). See docs/clusters.md for the rest.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import shlex
import string
import sys
from collections.abc import Sequence
from typing import Any, Literal

import yaml
from absl import app as absl_app
from absl import flags

from isocompute_jax import app
from isocompute_jax.distributed.environment import PORT
from isocompute_jax.options import check, define_flags, from_flags, option
from isocompute_jax.records.errors import InputError

TEMPLATE = pathlib.Path(__file__).with_name("jobset.yaml")
SECRETS = "/var/run/isocompute"
TLS_FOLDER, TOKEN_FILE = f"{SECRETS}/tls", f"{SECRETS}/token/token"
BEGIN_SERVERS = "  - name: servers\n"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
LONGEST_NAME = 24
"""JobSet makes a label value, of at most 63 characters, of `NAME-learners-0-0.NAME`."""


def _resources(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """`nvidia.com/gpu=8,memory=512Gi` as a mapping."""
    pairs = [text.partition("=") for text in texts]
    if bad := next((name for name, equals, value in pairs if not (name and equals and value)), None):
        raise InputError(f"{flag}: {bad!r} is no NAME=VALUE, as in {flag}=nvidia.com/gpu=8,memory=512Gi")
    return {name: value for name, _, value in pairs}


@dataclasses.dataclass(frozen=True)
class Run:
    """A run on Kubernetes; each field but the command is a flag of its name."""

    name: str = option(help="Of the JobSet: a DNS label of at most 24 characters.")
    image: str = option(help="Image of the learners: this package with [train,serve] and JAX for their devices.")
    command: tuple[str, ...] = option(help="Every learner's, from `--` on.", flag=None)
    namespace: str = option("default", "Namespace, of secrets and claim too.")
    learners: int = option(1, "Learner processes: pods, one on each host.", low=1)
    servers: int = option(0, "Sampler servers: pods; 0: the learner samples in its own process.", low=0)
    engine: Literal["vllm", "jax"] = option("vllm", "Engine of the servers.")
    model: str = option("", "Hugging Face directory that the servers load, as they see it.")
    server_image: str = option("", "Image of the servers: [serve] and their engine; that of the learners by default.")
    server_python: str = option("python3", "Python of that image.")
    server_args: str = option("", "More flags of isocompute_jax.serve, as on a command line.")
    learner_resources: dict[str, str] = option(
        default_factory=dict, help="Of each learner: `nvidia.com/gpu=8,memory=1500Gi,...`.", parse=_resources
    )
    server_resources: dict[str, str] = option(default_factory=dict, help="Of each server.", parse=_resources)
    learner_nodes: dict[str, str] = option(
        default_factory=dict,
        help="Labels of the learners' nodes: `cloud.google.com/gke-nodepool=h200,...`.",
        parse=_resources,
    )
    server_nodes: dict[str, str] = option(default_factory=dict, help="Labels of the servers' nodes.", parse=_resources)
    claim: str = option("", "PersistentVolumeClaim (ReadWriteMany) for run directories and models.")
    mount: str = option("/runs", "Where --claim is mounted, in learners and servers.")
    shm: str = option("64Gi", "Size of /dev/shm: two copies of the weights that a host sends or receives.")
    tls_secret: str = option(
        "", "Secret with tls.crt and tls.key for `*.NAME.NAMESPACE.svc`, and ca.crt; none: no TLS."
    )
    token_secret: str = option("", "Secret whose `token` weight updates need; none: whoever reaches a server may.")
    port: int = option(50051, "Port of the servers.", low=1, high=65535)
    metrics_port: int = option(9100, "Port of the servers' Prometheus metrics.", low=1, high=65535)
    queue: str = option("", "LocalQueue of Kueue that the run waits in; none: it starts at once.")
    max_restarts: int = option(50, "Failures of learners after which the run is given up.", low=0)
    restart: Literal["all", "learners"] = option(
        "all",
        "What is started again when a learner fails: `learners` leaves the servers running, and needs JobSet 0.12 with "
        "its feature gate RestartJob.",
    )

    def __post_init__(self) -> None:
        check(self, "--")
        if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", self.name) or len(self.name) > LONGEST_NAME:
            raise InputError(
                f"--name={self.name}: at most {LONGEST_NAME} small letters, digits and dashes, beginning with a letter"
            )
        if not self.command:
            raise InputError("no command: give it after `--`, with {endpoints} where the servers' addresses go")
        if self.servers and not self.model:
            raise InputError("--model is missing: give the Hugging Face directory that the servers load")
        for place, flag in (("endpoints", "servers"), ("token_file", "token_secret"), ("ca_file", "tls_secret")):
            if not getattr(self, flag) and any(f"{{{place}}}" in part for part in self.command):
                raise InputError(f"the command has {{{place}}}, and --{flag} is missing")

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The addresses of the servers, by names that their certificate holds."""
        domain = f"{self.name}.{self.namespace}.svc"
        return tuple(f"{self.name}-servers-0-{number}.{domain}:{self.port}" for number in range(self.servers))


def render(run: Run) -> list[dict[str, Any]]:
    """The objects of a run, as `kubectl apply` or the Kubernetes client take them."""
    return list(yaml.safe_load_all(as_yaml(run)))


def as_yaml(run: Run) -> str:
    """The same as text, with the comments of the template."""
    plain = ("name", "namespace", "image", "learners", "servers", "max_restarts", "port", "metrics_port")
    plain += ("learner_nodes", "server_nodes", "learner_resources", "server_resources")
    values = {name: getattr(run, name) for name in plain} | {
        "labels": {"app.kubernetes.io/name": "isocompute"} | ({QUEUE_LABEL: run.queue} if run.queue else {}),
        "restart": "RestartJob" if run.restart == "learners" else "RestartJobSet",
        "command": [_filled(part, run) for part in run.command],
        "learner_count": str(run.learners),  # a variable's value is text
        "team_port": PORT,
        "jax_port": PORT + 1,
        "server_image": run.server_image or run.image,
        "server_args": _serve(run),
        "answers": [*_health(run), "--answers"],
        "serving": _health(run),
    }
    for side, tls in (("learner", ("ca.crt",)), ("server", ("ca.crt", "tls.crt", "tls.key"))):
        values[f"{side}_mounts"], values[f"{side}_volumes"] = _files(run, tls)
    as_json = {name: json.dumps(value) for name, value in values.items()}  # JSON is YAML
    template = TEMPLATE.read_text(encoding="utf-8")
    if not run.servers:
        template = template.partition(BEGIN_SERVERS)[0]
    return string.Template(template).substitute(as_json)


def _filled(part: str, run: Run) -> str:
    places = {"endpoints": ",".join(run.endpoints), "token_file": TOKEN_FILE, "ca_file": f"{TLS_FOLDER}/ca.crt"}
    for name, value in places.items():
        part = part.replace(f"{{{name}}}", value)
    return part


def _serve(run: Run) -> list[str]:
    """The command of a server. Its weights come from the learner, when it was started again too."""
    tls = [f"--tls_cert={TLS_FOLDER}/tls.crt", f"--tls_key={TLS_FOLDER}/tls.key"]
    return [
        *(run.server_python, "-m", "isocompute_jax.serve", f"--engine={run.engine}", f"--model={run.model}"),
        *("--host=0.0.0.0", f"--port={run.port}", f"--metrics_port={run.metrics_port}", "--wait_for_weights"),
        *(tls if run.tls_secret else ["--insecure"]),
        *([f"--token_file={TOKEN_FILE}"] if run.token_secret else []),
        *shlex.split(run.server_args),
    ]


def _health(run: Run) -> list[str]:
    """The command of a probe: those that Kubernetes has built in for gRPC know no TLS."""
    name = run.endpoints[0].rpartition(":")[0] if run.servers else ""
    return [
        *(run.server_python, "-m", "isocompute_jax.health", f"--address=localhost:{run.port}"),
        *([f"--ca_file={TLS_FOLDER}/ca.crt", f"--tls_name={name}"] if run.tls_secret else []),
    ]


def _files(run: Run, tls: Sequence[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(volumeMounts, volumes) of a pod that sees `tls` of the TLS secret."""
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": run.shm}}]
    secrets = (("tls", TLS_FOLDER, run.tls_secret, tls), ("token", f"{SECRETS}/token", run.token_secret, ["token"]))
    for name, folder, secret, keys in secrets:
        if secret:
            items = [{"key": key, "path": key} for key in keys]
            mounts.append({"name": name, "mountPath": folder, "readOnly": True})
            volumes.append({"name": name, "secret": {"secretName": secret, "defaultMode": 0o400, "items": items}})
    if run.claim:
        mounts.append({"name": "runs", "mountPath": run.mount})
        volumes.append({"name": "runs", "persistentVolumeClaim": {"claimName": run.claim}})
    return mounts, volumes


def _main(arguments: Sequence[str]) -> None:
    def run() -> None:
        text = as_yaml(from_flags(Run, command=tuple(arguments[1:])))
        if OUT.value:
            pathlib.Path(OUT.value).write_text(text, encoding="utf-8")
        else:
            print(text, end="")

    sys.exit(app.exit_code(run))


if __name__ == "__main__":
    define_flags(Run)
    OUT = flags.DEFINE_string("out", None, "File to write it to; standard output where absent.")
    absl_app.run(_main)
