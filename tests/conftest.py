"""What tests run under: eight fake CPU devices, one compilation cache, checked annotations, reproducible Hypothesis."""

import ctypes
import gc
import os
import pathlib

_ROOT = pathlib.Path(__file__).parent.parent

# Through the environment, so that the processes that tests start share them. Set JAX_PLATFORMS to test an accelerator.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_ROOT / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # small programs are most of them
# Most of the tests' time is compiling: without LLVM's optimisation it is half of that, and with XLA's older code for
# fusions a third of what is left, of which a fifth goes into splitting a program for threads that here have no core.
# The Makefile's other test targets set this: they compile what a user's XLA does.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
    " --xla_cpu_parallel_codegen_split_count=1",
)
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test that needs the network is a mistake

import hypothesis  # noqa: E402  (JAX reads the variables above when it is first imported)
import jax  # noqa: E402
import jaxtyping  # noqa: E402
import psutil  # noqa: E402
import pytest  # noqa: E402
from jax._src import lru_cache  # noqa: E402

import tests.annotations  # noqa: E402

# Not through the environment: the processes that tests start see one device, as a user's would.
jax.config.update("jax_num_cpu_devices", 8)

# Every call of the numerical rooms is held to its annotations: types, dtypes, and shapes across the arguments.
CHECKED = ["isocompute_jax.learner", "isocompute_jax.model", "isocompute_jax.sampling"]
jaxtyping.install_import_hook(CHECKED, f"{tests.annotations.checked.__module__}.checked")

# One example sequence for everybody: a failure seen once is seen again. No deadline: the first call compiles.
hypothesis.settings.register_profile("isocompute", deadline=None, derandomize=True)
hypothesis.settings.load_profile("isocompute")


def _put_whole(self: lru_cache.LRUCache, key: str, value: bytes) -> None:
    """Writes an entry of the compilation cache aside, and moves it in: JAX's own way lets others read half of it."""
    entry = pathlib.Path(str(self.path)) / f"{key}-cache"
    if not entry.exists():
        part = pathlib.Path(f"{entry}.{os.getpid()}")
        part.write_bytes(value)
        part.replace(entry)


lru_cache.LRUCache.put = _put_whole

# Garbage: a process holds a million objects of modules and tests, which the collector would go through again and again.
gc.set_threshold(10_000, 10, 10)


def pytest_collection_finish() -> None:
    """Leaves what has been imported and collected out of every later collection of garbage."""
    gc.freeze()


MEMORY = 2_500_000_000
"""In bytes. A process that holds more forgets its compiled programs after a module; the cache on disk has them."""


@pytest.fixture(scope="module", autouse=True)
def bounded_memory():
    yield
    if psutil.Process().memory_info().rss > MEMORY:
        jax.clear_caches()
        gc.collect()
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):  # glibc keeps what was freed, which is more than half of it
            libc.malloc_trim(0)
