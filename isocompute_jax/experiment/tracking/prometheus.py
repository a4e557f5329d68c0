"""What a run logged last, for Prometheus."""

from __future__ import annotations

import json
import logging
import pathlib
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

import prometheus_client
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from isocompute_jax.experiment.tracking import PREFIXES
from isocompute_jax.records import run_files

LOG = logging.getLogger(__name__)

GROUPS = {"learner_device_hours": "device", "sampler_device_hours": "device", "phase_s": "phase", "speed": "of"}
"""Columns of several numbers -> the label that tells these apart."""


class Prometheus(Collector):
    """Answers scrapes with the last line of each log, and with the health of the fleet.

    `isocompute_train_*` are the columns of metrics.jsonl, `isocompute_eval_*{eval_set=}` those of eval.jsonl,
    `isocompute_agreement_*` those of agreement.jsonl; `isocompute_train_alarm{alarm=}` is 1 for each alarm that is on;
    `isocompute_sampler_*{endpoint=}` is what the learner knows of its servers. Each has the label `run`.

    Args:
      path: the run's directory.
      address: to listen on.
      port: to listen on; 0 takes a free one.
    """

    def __init__(self, path: pathlib.Path, address: str, port: int):
        self._path = path
        self._last: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._when = time.time()
        registry = CollectorRegistry()
        registry.register(self)
        self._server, self._thread = prometheus_client.start_http_server(port, address, registry)
        self.port = self._server.server_port
        LOG.info("Prometheus metrics: http://%s:%d/metrics", address, self.port)

    def start(self, step: int) -> None:
        """Nothing: scrapes see the next line first."""

    def log(self, name: str, line: Mapping[str, Any]) -> None:
        """From now on this line is the log's last one."""
        if name in PREFIXES:
            self._last[name, line.get("eval_set", "")] = line
            self._when = time.time()

    def close(self) -> None:
        """Stops to answer."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Every number, in families of one name."""
        gauges = _Gauges(self._path.name)
        gauges.add("last_line_timestamp_seconds", self._when, {}, "When the run last logged anything.")
        for (name, eval_set), line in list(self._last.items()):
            labels = {"eval_set": eval_set} if eval_set else {}
            for key, value in line.items():
                column = f"{PREFIXES[name]}_{key}"
                for part, number in value.items() if isinstance(value, Mapping) else ():
                    gauges.add(column, number, {**labels, GROUPS.get(key, "part"): part})
                gauges.add(column, value, labels)
            for alarm in line.get("alarms", ()):
                gauges.add("train_alarm", 1, {"alarm": alarm}, "Alarms that are on.")
        for member in self._fleet():
            labels = {"endpoint": member["endpoint"]}
            for key, value in member.items():
                gauges.add(f"sampler_{key}", value, labels)
        return gauges.families.values()

    def _fleet(self) -> list[dict[str, Any]]:
        try:
            return json.loads((self._path / run_files.FLEET).read_text(encoding="utf-8"))["members"]
        except (FileNotFoundError, ValueError, KeyError):
            return []


class _Gauges:
    """Families of gauges, by name."""

    def __init__(self, run: str):
        self.families: dict[str, GaugeMetricFamily] = {}
        self._run = run

    def add(self, name: str, value: Any, labels: Mapping[str, str], text: str = "") -> None:
        """One number; anything else is left out."""
        if not isinstance(value, int | float):
            return
        name = "isocompute_" + re.sub(r"\W", "_", name)
        text = text or "A column of the run's logs (docs/runs.md)."
        family = self.families.setdefault(name, GaugeMetricFamily(name, text, labels=["run", *labels]))
        family.add_metric([self._run, *labels.values()], float(value))
