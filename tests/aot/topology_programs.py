"""Run by test_topologies.py where the compilers are."""

from isocompute_jax.plan.topology import parse_topology
from isocompute_jax.records.errors import InputError


def devices(name):
    return [{"kind": device.device_kind, "host": device.process_index} for device in parse_topology(name).devices()]


def refusal(name):
    try:
        parse_topology(name).devices()
    except InputError as error:
        return str(error)
    return "it is known"
