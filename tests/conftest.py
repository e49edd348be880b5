"""Settings of the suite: a compilation cache that outlives a run, and rank promotion as an error."""

import os
import pathlib
from collections.abc import Iterator

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(__file__).parent.parent / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
# Each pytest worker has one core; XLA's own threads would only fight over it.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

MAPPINGS = pathlib.Path("/proc/self/maps")
MOST_MAPPINGS = 30_000
"""A process may hold 65,530 by default, and each compiled program takes about ten: one too many ends the process."""


@pytest.fixture(autouse=True, scope="module")
def let_go_of_programs() -> Iterator[None]:
    """Drops compiled programs after a module where there are very many; those needed again come from the disk."""
    yield
    if MAPPINGS.exists() and sum(1 for _ in MAPPINGS.open()) > MOST_MAPPINGS:
        import jax

        jax.clear_caches()
