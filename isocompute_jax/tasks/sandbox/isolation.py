"""What is kept from untrusted programs on this machine, and what is not, in sentences."""

from __future__ import annotations

import dataclasses
import os
import sys

from isocompute_jax.tasks.sandbox.inside.jail import MEASURES
from isocompute_jax.tasks.sandbox.launch import Sandbox

_HOW = "allow user namespaces (sysctl kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
_MISSING = {
    "processes": (
        "Processes: programs share the process ids of this machine. What they leave is looked for and killed, but they "
        "can see other processes{signals}."
    ),
    "network": "Network: programs can reach whatever this machine can reach{tcp}.",
    "files": (
        "Files: programs can read every file that {reader} may read, problem sets with their answers too, write where "
        "that user may, and fill that disk."
    ),
    "disk": "Files: rules hide them, but programs can fill the disk of the temporary directory while they run.",
    "shared_memory": "Shared memory: System V segments that programs make are not limited, and remain after them.",
    "library": (
        "Library: Python's standard library lies where the programs' user cannot read it; they can import its common "
        "modules alone. Use a Python that every user may read."
    ),
    "system_calls": (
        "System calls: this kernel, or this processor, has no filter for them that we know; programs can make them "
        "all, bpf, io_uring_setup and perf_event_open among them."
    ),
    "memory": "Memory: this system does not limit it for each process.",
    "count": "Number of processes: this system does not limit it for the programs alone.",
}


@dataclasses.dataclass(frozen=True)
class Isolation:
    """What is in force on this machine.

    Attributes:
      processes: a process-id namespace for each program: it sees and signals nobody else, and nothing outlives it.
      network: no network.
      files: nothing of the file system but Python, the system's libraries and one small directory.
      shared_memory: no System V shared memory.
      user: another user id than ours.
      landlock: rules of the kernel, which stand in where files cannot be hidden.
      system_calls: a filter refuses those that no program needs (`inside.seccomp`).
      library: programs can import all of the standard library.
      missing: a sentence for each measure that is not in force.
    """

    processes: bool
    network: bool
    files: bool
    shared_memory: bool
    user: bool
    landlock: bool
    system_calls: bool
    library: bool
    missing: tuple[str, ...]

    def __str__(self) -> str:
        names = [field.name for field in dataclasses.fields(self) if getattr(self, field.name) is True]
        in_force = ", ".join(name.replace("_", " ") for name in names if name != "library") or "limits alone"
        namespaces = self.processes and self.network and self.files and self.shared_memory
        remedy = "" if os.geteuid() == 0 or sys.platform != "linux" or namespaces else f" To have more, {_HOW}."
        return " ".join([f"The sandbox for code isolates: {in_force}.", *self.missing]) + remedy


def isolation(sandbox: Sandbox | None = None) -> Isolation:
    """What is in force, as a sandbox that was started found out.

    Args:
      sandbox: the one to ask; by default one that tries everything is started for it.

    Raises:
      RunError: it cannot be started on this machine.
    """
    if sandbox is None:
        with Sandbox() as own:
            return isolation(own)
    found = sandbox.measures()
    held = {name: name in found for name in (*MEASURES, "library")}
    return Isolation(**held, missing=tuple(_sentences(held, found)))


def _sentences(held: dict[str, bool], found: frozenset[str]) -> list[str]:
    """One for each thing that a program is not kept from. That it is our own user matters where it can reach us."""
    words = {
        "signals": "" if held["user"] or "no_signals" in found else ", and signal those of the user who started this",
        "tcp": ", but not by TCP" if "no_tcp" in found else "",
        "reader": "an unprivileged user" if held["user"] else "the user who started this",
    }
    names = [name for name in held if not held[name] and name in _MISSING]
    if held["system_calls"] and "shared_memory" in names:
        names.remove("shared_memory")  # the filter refuses it
    if held["landlock"]:
        names[names.index("files")] = "disk"
    if sys.platform != "linux":
        names += ["memory", "count"]
    elif os.geteuid() == 0 and not held["user"]:  # Linux counts everybody's processes but root's
        names.append("count")
    return [_MISSING[name].format(**words) for name in names]
