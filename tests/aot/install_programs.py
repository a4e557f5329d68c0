"""Run by test_install.py in the environments that clusters have."""

import functools
import importlib.metadata
import platform

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from isocompute_jax.model.grouped_product import MODULES
from isocompute_jax.model.kernels import splash, tokamax
from isocompute_jax.model.kernels.imports import why_missing


def installed():
    """Python's version, and those of all distributions."""
    found = {canonicalize_name(each.name): each.version for each in importlib.metadata.distributions()}
    return {"python": ".".join(platform.python_version_tuple()[:2]), "versions": found}


def missing_kernels(fused):
    """Why each of them cannot be had; None where it has been imported."""
    asked = {name: functools.partial(tokamax.missing, name) for name in ("mosaic", "triton")}
    asked |= {"splash": splash.missing}
    asked |= {f"experts: {name}": functools.partial(why_missing, *given) for name, given in MODULES.items()}
    return {name: asked[name]() for name in fused}


def closure(names):
    """What these distributions need, themselves included, by the metadata of what is installed."""
    found, left = set(), [(canonicalize_name(name), frozenset()) for name in names]
    while left:
        name, extras = left.pop()
        if (name, extras) in found:
            continue
        found.add((name, extras))
        for line in importlib.metadata.requires(name) or ():
            needed = Requirement(line)
            if any(needed.marker is None or needed.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                left.append((canonicalize_name(needed.name), frozenset(needed.extras)))
    return sorted({name for name, _ in found})
