"""What tests run under: eight fake CPU devices, one compilation cache, checked annotations, reproducible Hypothesis."""

import os
import pathlib

_ROOT = pathlib.Path(__file__).parent.parent

# Through the environment, so that the processes that tests start share them. Set JAX_PLATFORMS to test an accelerator.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_ROOT / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test that needs the network is a mistake

import hypothesis  # noqa: E402  (JAX reads the variables above when it is first imported)
import jax  # noqa: E402
import jaxtyping  # noqa: E402

# Not through the environment: the processes that tests start see one device, as a user's would.
jax.config.update("jax_num_cpu_devices", 8)

# Every call of the numerical rooms is held to its annotations: types, dtypes, and shapes across the arguments.
# The other rooms pass no arrays whose shapes are annotated.
jaxtyping.install_import_hook([f"isocompute_jax.{room}" for room in ("model", "sampling")], "beartype.beartype")

# One example sequence for everybody: a failure seen once is seen again. No deadline: the first call compiles.
hypothesis.settings.register_profile("isocompute", deadline=None, derandomize=True)
hypothesis.settings.load_profile("isocompute")
