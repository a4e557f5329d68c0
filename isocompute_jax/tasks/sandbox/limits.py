"""What a program may use up."""

from __future__ import annotations

import dataclasses
import math

from isocompute_jax.options import check, described, option


@described
@dataclasses.dataclass(frozen=True)
class SandboxLimits:
    """What the untrusted programs of one completion may use up before they are ended."""

    wall_s: float = option(30.0, "Seconds that all tests of one completion may take together.", low=0.05)
    test_s: float = option(
        6.0, "Seconds that one test may take; after one that took longer, no other is run.", low=0.05
    )
    cpu_s: float = option(10.0, "CPU seconds of one process, rounded up to whole ones.", low=0.05)
    memory_mb: int = option(512, "Address space of one process, in MiB.", low=64)
    output_kb: int = option(1024, "KiB that one test may print, or all function results together.", low=1)
    file_mb: int = option(8, "Largest file, in MiB.", low=1)
    scratch_mb: int = option(32, "All files of one completion together, in MiB, where the kernel hides files.", low=1)
    files: int = option(1024, "Number of those files and directories.", low=16)
    open_files: int = option(32, "Files and pipes that one process may hold open.", low=8)
    processes: int = option(16, "Processes and threads at a time.", low=1)

    def __post_init__(self) -> None:
        check(self)

    def for_server(self) -> dict[str, int | float]:
        """The same in the units of the kernel (`inside.program`, `inside.keeper`)."""
        in_bytes: dict[str, int | float] = {
            "cpu_s": math.ceil(self.cpu_s),
            "memory_bytes": self.memory_mb << 20,
            "file_bytes": self.file_mb << 20,
        }
        return dataclasses.asdict(self) | in_bytes
