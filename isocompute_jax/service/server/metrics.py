"""What a server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

UPDATE_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Metrics:
    """A registry of its own, so that a process may have several servers.

    Attributes:
      registry: what is exported.
      rollouts: completions that were sent.
      tokens: of those completions.
      refused: calls that ended with an error, by method and status code.
      update_seconds: `apply_s` of the updates.
    """

    def __init__(self):
        self.registry = CollectorRegistry()
        self.rollouts = Counter("isocompute_rollouts", "Completions sent.", registry=self.registry)
        self.tokens = Counter("isocompute_tokens", "Tokens of the completions sent.", registry=self.registry)
        self.refused = Counter(
            "isocompute_refused", "Calls that ended with an error.", ["method", "code"], registry=self.registry
        )
        self.update_seconds = Histogram(
            "isocompute_update_seconds",
            "Seconds from the last byte of new weights until they served.",
            buckets=UPDATE_BUCKETS,
            registry=self.registry,
        )

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Exports a number that is asked for when it is scraped."""
        Gauge(f"isocompute_{name}", text, registry=self.registry).set_function(value)

    def watch_total(self, name: str, text: str, value: Callable[[], float]) -> None:
        """The same of a number that only grows, so that rates can be asked for."""
        self.registry.register(_Total(f"isocompute_{name}", text, value))


class _Total(Collector):
    """A counter that somebody else keeps."""

    def __init__(self, name: str, text: str, value: Callable[[], float]):
        self._name, self._text, self._value = name, text, value

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Its value now."""
        return [CounterMetricFamily(self._name, self._text, value=self._value())]
