"""Settings of the suite: a compilation cache that outlives a run, its two tiers, and who runs what.

The first tier, which ``pytest -n auto`` runs, asks every room, verb, mechanism, door and page once, in minutes. What
sweeps over mechanisms, sizes, kills, devices or random settings at large is marked ``exhaustive`` and runs by
``pytest -n auto -m exhaustive``. Of a parametrized test ``@pytest.mark.first_tier(*ids)`` names the cases of the first
tier. What the first tier may cost is counted, not timed: compiled programs, and processes.
"""

import gc
import importlib.metadata
import os
import pathlib
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

try:
    from xdist.scheduler import LoadFileScheduling
except ImportError:  # it is not needed to run one file
    LoadFileScheduling = object

gc.disable()  # until all tests are imported
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(__file__).parent.parent / ".jax_cache"))
# A program from the disk costs half of what compiling the smallest one does.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
# No source lines in programs that nobody reads.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# Compilers allocate and free all the time: what they free is kept for the next program, in the processes that are
# started from here (pytest's workers and the tests' own), and does not go back to the system page by page.
for kept in ("MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
    os.environ.setdefault(kept, str(2**25))
# And no threads that spin while they look for work: XLA's (it reads NPROC), and those of NumPy's products.
for threads in ("NPROC", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(threads, "1")
# The processes that tests start would compile the package's source each time where bytecode is not written.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Tests exchange parts of the library, which a program kept from before would not show.
os.environ["JAXACCT_CACHE"] = "off"
# Each pytest worker has one core; XLA's own threads would only fight over it. And most of a cold suite is compilation:
# all of it is done fast (jaxacct.numerics.elementary.FAST), in a third of the time, and in one piece, for no core is
# idle that could take another. What only code that is compiled well could show, .ci/run asks in a second, short run
# without these flags. XLA ends a process for a flag that it does not know.
EMITTERS = "" if importlib.metadata.version("jaxlib") >= "0.11" else "--xla_cpu_use_fusion_emitters=false "
os.environ.setdefault(
    "XLA_FLAGS",
    f"--xla_cpu_multi_thread_eigen=false {EMITTERS}--xla_backend_optimization_level=0 "
    "--xla_disable_hlo_passes=while-loop-invariant-code-motion,while-loop-trip-count-annotator,"
    "simplify-while-loops "
    "--xla_cpu_parallel_codegen_split_count=1",
)


# A shell's background jobs are started with Ctrl-C ignored, and so would be the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Tracing makes millions of objects, of which most live on: few looks for garbage, and none at what is imported."""
    gc.freeze()
    gc.set_threshold(2_000_000, 20, 20)
    gc.enable()
    if "jax" in sys.modules:
        sys.modules["jax"].monitoring.register_event_duration_secs_listener(_count)


@pytest.fixture(autouse=True, scope="session")
def compiled_well() -> Iterator[None]:
    """With ``JAXACCT_TESTS=well`` eager calls are compiled as JAX compiles by default, as all is that users trace."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("JAXACCT_TESTS") == "well":
            from jaxacct.numerics.elementary import By

            patch.setattr("jaxacct.numerics.elementary.ways", lambda: (By.XLA,))
        yield


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Nobody looks for garbage among what the end of the process frees: pytest would, five times."""
    gc.freeze()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["spent"] = spent


collect_ignore_glob = ["typed/*", "*/conftest.py"]
"""Programs for type checkers (tests/project/test_typed.py runs what runs), and conftest.py, which all have one name: as
modules with docstrings to run, two of them would be one."""

MAPPINGS, LIMIT = pathlib.Path("/proc/self/maps"), pathlib.Path("/proc/sys/vm/max_map_count")
MOST_MAPPINGS = 0.45 * int(LIMIT.read_text()) if LIMIT.exists() else float("inf")
"""Each compiled program takes about ten of the 65,530 that a process may hold by default: one too many ends it. At this
share of them a process holds about 6 GB."""

MANY = 100
"""Programs from one look at the mappings to the next, which takes some ten milliseconds."""

_programs: list[str] = []
"""Those that came into memory since the last look, compiled or from the disk."""


spent = {"programs": 0, "processes": 0}
"""What this worker's tests have compiled (or found on the disk) and started so far."""

BUDGET = {"programs": 6400, "processes": 40}
"""Most of each in all of the first tier, on however many workers. Programs take most of its minutes, about a tenth of a
second each where nothing is cached; a process of the tests' own imports JAX, which takes one to three seconds."""


def _count(event: str, seconds: float, **more: Any) -> None:
    if event.endswith("backend_compile_duration"):
        _programs.append(event)
        spent["programs"] += 1


def _count_processes(event: str, args: Any) -> None:
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork"):
        spent["processes"] += 1


sys.addaudithook(_count_processes)


def over_budget(total: dict[str, int]) -> list[str]:
    """Returns a line for each kind of cost of which the first tier has more than its budget."""
    return [
        f"The first tier has {total[kind]} {kind}, and may have {most}: mark what sweeps at large as exhaustive."
        for kind, most in BUDGET.items()
        if total[kind] > most
    ]


def _is_whole_first_tier(config: pytest.Config) -> bool:
    """Whether this run is README's command: no file, no name and no other mark chosen, and not a thorough run."""
    option, chosen = config.option, config.args_source is pytest.Config.ArgsSource.TESTPATHS
    is_usual = option.markexpr == "not exhaustive" and "JAXACCT_TESTS" not in os.environ
    return (
        chosen and is_usual and not (option.keyword or vars(option).get("lf") or option.collectonly or option.deselect)
    )


class Budget:
    """Adds up what all workers spent, and ends the run as failed where the first tier costs more than its budget."""

    def __init__(self) -> None:
        self.total = dict.fromkeys(BUDGET, 0)

    def add(self, cost: dict[str, int]) -> None:
        for kind in self.total:
            self.total[kind] += cost.get(kind, 0)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        """Takes what a worker spent as it ends."""
        self.add(getattr(node, "workeroutput", {}).get("spent", {}))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Compares the sum with the budget."""
        if not session.config.getoption("numprocesses", None):
            self.add(spent)
        self.over = over_budget(self.total) if _is_whole_first_tier(session.config) else []
        if self.over and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Says what was spent, and what is over the budget."""
        terminalreporter.write_line(", ".join(f"{count:,} {kind}" for kind, count in self.total.items()))
        for line in self.over:
            terminalreporter.write_line(line, red=True)


def pytest_configure(config: pytest.Config) -> None:
    """Counts costs where results are gathered, and lets tests that are asked for by name run, of either tier."""
    if any("::" in asked for asked in config.args) and config.option.markexpr == "not exhaustive":
        config.option.markexpr = ""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Budget(), "budget")


@pytest.fixture(autouse=True)
def let_go_of_programs() -> Iterator[None]:
    """Drops compiled programs where there are very many; those needed again come from the disk."""
    yield
    if len(_programs) < MANY or not MAPPINGS.exists():
        return
    _programs.clear()
    if len(MAPPINGS.read_bytes().splitlines()) > MOST_MAPPINGS:
        import jax

        from jaxacct.numerics import programs

        programs.forget()
        jax.clear_caches()


class FromBothEnds(LoadFileScheduling):
    """Gives every other worker its files from the end of the queue, and no file to two.

    Nearly all of the time is compilation. Tests of a file, and mostly of a folder, share their programs: two workers at
    the same file would compile each program twice, at the same time.
    """

    def _assign_work_unit(self, node) -> None:
        if list(self.assigned_work).index(node) % 2:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Takes the place of the scheduler that deals tests out one by one, unless ``--dist`` names another."""
    if config.option.dist != "load":
        return None
    config.option.loadscopereorder = False
    return FromBothEnds(config, log)


def _mark_other_cases(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the cases that a test's ``first_tier`` leaves out as exhaustive; raises where it names one that is not."""
    named: dict[str, set[str]] = {}
    for item in items:
        chosen = item.get_closest_marker("first_tier")
        if chosen is None:
            continue
        case = item.callspec.id if hasattr(item, "callspec") else ""
        named.setdefault(item.nodeid.partition("[")[0], set(chosen.args)).discard(case)
        if case not in chosen.args:
            item.add_marker("exhaustive")
    wrong = {test: ids for test, ids in named.items() if ids}
    if wrong and not any("[" in asked for asked in config.args):  # which collects single cases
        raise pytest.UsageError(f"first_tier names cases that there are not: {wrong}")


@pytest.hookimpl(tryfirst=True)  # marks are selected by afterwards
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deals the tests out: tiers, then places.

    What takes longest is at either end, and the many short files, docstrings above all, are where the ends meet.
    """
    _mark_other_cases(config, items)
    root = pathlib.Path(__file__).parent
    whole = ("certified", "project", "numerics")
    accounting = (*whole, "prv", "saddlepoint", "mechanisms", "gdp", "tradeoff", "sweep", "calibrate")
    training = "train"

    def place(item: pytest.Item) -> int:
        room = item.path.relative_to(root).parts[0] if item.path.is_relative_to(root) else None
        if room in accounting:
            return accounting.index(room)
        return len(accounting) + (1 if room is None else 2 if room == training else 0)

    items.sort(key=place)
