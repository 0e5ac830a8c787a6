"""Fixtures and order of all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.covering import spread
from tests.parts import PARTS, part_of
from tests.time_limit import places, skip_if_late
from workers.models import isolation
from workers.models.trust import TRUST_VARIABLE

if TYPE_CHECKING:
    from tests.rigs.postgres import Server

# Importing what 5,000 tests need makes a million objects that stay: looking through them while they
# are made takes half of it. Once they are there they are left out of every later collection.
gc.disable()


def pytest_collection_finish() -> None:
    """Leaves all that was imported to be looked through no more."""
    gc.freeze()
    gc.enable()


# the same examples every run: a red build means a change, not luck
settings.register_profile(
    "plimsoll",
    deadline=None,
    derandomize=True,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("plimsoll"), max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "plimsoll"))

# Forks that describe models find those of most tests imported, however long a test takes
isolation.IDLE_SECONDS = 1200.0
isolation.IMPORTED += [
    f"transformers.models.{name}.modeling_{name}" for name in ("bert", "gpt2", "llama", "mixtral")
]

# Models of tests and benchmarks are used from folders of all kinds
os.environ[TRUST_VARIABLE] = "benchmarks,tests"

# What a shell starts with `&` ignores Ctrl-C, and so would all that the tests start and interrupt
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of databases are made and thrown away, and a disk is asked to keep each transaction: in
# memory, where there is room, the tests of the study take a third of the time.
_IN_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 << 30


def _has_room(folder: Path) -> bool:
    if not os.access(folder, os.W_OK):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize > _ROOM_BYTES and not found.f_flag & os.ST_NOEXEC


if _has_room(_IN_MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_IN_MEMORY))  # of pytest's own folders

# What was compiled for DeepSpeed is found by tests whose processes have another home too
try:
    _BUILD = version("torch").partition("+")[2]
except PackageNotFoundError:  # pure tests run without it
    _BUILD = ""
if _BUILD == "cpu":
    _PYTHON = f"py{sys.version_info.major}{sys.version_info.minor}"
    _COMPILED = Path.home() / ".cache" / "torch_extensions" / f"{_PYTHON}_cpu"
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(_COMPILED))

# These stay in one process of a parallel run: they share groups of ranks
_WORKERS = "tests/workers/"
# but not these, most of which have none
_ALONE = tuple(f"{_WORKERS}{name}" for name in ("models/", "probe/", "test_local.py", "tracing/"))
_WITH_RANKS = tuple(
    f"{_WORKERS}{name}.py"
    for name in ("models/test_deferred_init", "models/test_rounding", "tracing/test_model_work")
)
_SWEEPS = "tests/orchestrator/cluster/"  # take longest beside them
# and these take minutes each
_LONG = (
    *("tests/test_readme.py", "tests/test_shared_guide.py", "tests/test_tutorial.py"),
    *("tests/benchmarks/chaos/test_campaign.py", "tests/plimsoll/test_base_install.py"),
    *("tests/benchmarks/gpu/", "tests/diaries/"),
    *("tests/k8s/test_running.py", "tests/orchestrator/export/test_ray"),
)
# These look at one sweep, and share a head, which each process would start for itself
_ON_ONE_HEAD = tuple(f"{_SWEEPS}test_{name}.py" for name in ("sweep", "eventful_sweep", "submit"))


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keeps tests that share ranks or a head in one process of a parallel run; else by file."""
    from tests.by_file import ByFile

    return ByFile(config, log, _scope_of)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the time limit of a run, and the choice of a part."""
    parser.addoption("--until", type=float, help="seconds since 1970 after which no test begins")
    parser.addoption("--part", choices=[*PARTS], help="run the tests of this part alone")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test that comes too late, before anything is set up for it."""
    skip_if_late(item)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks property tests and cases for the thorough run; puts first what takes longest.

    The order is for a parallel run.
    """
    if part := config.getoption("part"):
        others = [item for item in items if part_of(item.nodeid) != part]
        items[:] = [item for item in items if part_of(item.nodeid) == part]
        config.hook.pytest_deselected(items=others)
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("property")
        if item.get_closest_marker("cases_by_default") and not item.get_closest_marker("thorough"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for alike in cases.values():
        (count,) = alike[0].get_closest_marker("cases_by_default").args
        for place in set(range(len(alike))) - spread(len(alike), count):
            alike[place].add_marker("thorough")
    if config.getoption("until") is not None:
        place = places(_file_of(item) for item in items)
        items.sort(key=lambda item: place[_file_of(item)])
    if hasattr(config, "workerinput"):  # as pytest-xdist marks its processes
        items.sort(key=_turn)


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _turn(item: pytest.Item) -> int:
    if _shares_ranks(item.nodeid):
        return 0
    if item.nodeid.startswith(_ON_ONE_HEAD):
        return 1
    return 2 if item.nodeid.startswith((_SWEEPS, *_LONG)) else 3


def _scope_of(nodeid: str) -> str:
    if nodeid.startswith(_ON_ONE_HEAD):
        return _SWEEPS
    return _WORKERS if _shares_ranks(nodeid) else nodeid.partition("::")[0]


def _shares_ranks(nodeid: str) -> bool:
    return nodeid.startswith(_WITH_RANKS) or (
        nodeid.startswith(_WORKERS) and not nodeid.startswith(_ALONE)
    )


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One PostgreSQL server for all tests of this process."""
    from tests.rigs.postgres import postgres_server

    with postgres_server() as server:
        yield server


@pytest.fixture
def database(postgres: Server) -> str:
    """The URL of a database of the test's own."""
    return postgres.new_database()
