"""Parts of the thorough run: whoever changes a folder runs the part that goes with it."""

from collections.abc import Mapping

# Path prefixes of test files; the longest that fits decides.
PARTS: Mapping[str, tuple[str, ...]] = {
    "workers": ("tests/workers/", "tests/search_spaces/"),
    "sweeps": ("tests/orchestrator/", "tests/plimsoll/", "tests/diaries/"),
    "faults": (
        "tests/benchmarks/",
        "tests/simulation/",
        "tests/test_fuzz_",
        "tests/rigs/",
        "tests/orchestrator/host/",
        *(
            f"tests/orchestrator/cluster/test_{name}.py"
            for name in (
                *("host_memory", "hosts", "machine_fails", "nodes"),
                *("shared_study", "submit", "tune", "unwoken_sweep"),
            )
        ),
        *(
            f"tests/orchestrator/study/test_{name}.py"
            for name in ("connection_loss", "driver_lock", "power_loss")
        ),
    ),
    "exports": (
        *("tests/orchestrator/export/", "tests/orchestrator/cli/test_verify.py"),
        *("tests/k8s/", "tests/test_"),
    ),
}


def part_of(nodeid: str) -> str:
    """Returns the part that a test belongs to.

    Raises:
        LookupError: If no prefix fits its file.
    """
    prefixes = {prefix: part for part, those in PARTS.items() for prefix in those}
    fitting = [prefix for prefix in prefixes if nodeid.startswith(prefix)]
    if not fitting:
        raise LookupError(f"{nodeid} belongs to no part of the thorough run: see tests/parts.py")
    return prefixes[max(fitting, key=len)]
