"""`python -m isocompute_jax.health`: whether a server serves, for probes of a cluster that cannot ask over TLS.

    python -m isocompute_jax.health --address=localhost:50051 --ca_file=ca.crt --tls_name=sampler.example

Exit code 0: it does. 1: it does not, as while it waits for weights; with --answers: it cannot be reached.
"""

from __future__ import annotations

from absl import flags

from isocompute_jax import app
from isocompute_jax.records.errors import RunError

with app.imports():
    from grpc_health.v1 import health_pb2

    from isocompute_jax.service.client.connection import ask

ADDRESS = flags.DEFINE_string("address", "localhost:50051", "host:port, or unix:PATH.")
CA_FILE = flags.DEFINE_string("ca_file", None, "PEM certificates that signed the server's; without, no TLS.")
TLS_NAME = flags.DEFINE_string("tls_name", None, "Name that the certificate is for, where it is not that of --address.")
ANSWERS = flags.DEFINE_bool("answers", False, "Be content with any answer.")
TIMEOUT_S = flags.DEFINE_float("timeout_s", 8.0, "Seconds that it may take to answer.", lower_bound=0.1)


def main() -> None:
    """Flags -> one call."""
    answer = ask(ADDRESS.value, ca_file=CA_FILE.value, tls_name=TLS_NAME.value, timeout_s=TIMEOUT_S.value)
    if not ANSWERS.value and answer != health_pb2.HealthCheckResponse.SERVING:
        raise RunError(f"{ADDRESS.value}: {health_pb2.HealthCheckResponse.ServingStatus.Name(answer)}")


if __name__ == "__main__":
    app.run(main)
