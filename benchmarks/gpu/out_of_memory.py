"""Thirty trials in a row that run out of memory: each is told, and leaves nothing behind.

A plan that the device limits, whose speed hardly varies, is measured twice before and after.
"""

from benchmarks.gpu.cases import LLAMA_1B, TINY_GIB, reference
from benchmarks.gpu.run import Run

ROW, TINY_ROW = 30, 3
_REPEATS = 2
# scores of attention in fp32: some 300 GiB
_TOO_LARGE = {"micro_batch": 16, "attention": "eager", "precision": "fp32"}


def measure(run: Run) -> None:
    """Runs the reference, what runs out of memory, and the reference again."""
    around, plan = LLAMA_1B.one_plan(reference(tiny=run.tiny), tiny=run.tiny, memory_gib=TINY_GIB)
    spec, large = LLAMA_1B.one_plan(_TOO_LARGE, tiny=run.tiny, memory_gib=TINY_GIB)
    for repeat in range(_REPEATS):
        run.trial(f"before {repeat}", around, plan, way="reference before")
    others = []
    for number in range(TINY_ROW if run.tiny else ROW):
        outcome = run.trial(f"{number}", spec, large)
        if outcome.kind != "out_of_memory":
            others.append(f"trial {number} ended with {outcome.kind}")
    for repeat in range(_REPEATS):
        run.trial(f"after {repeat}", around, plan, way="reference after")
    run.write("verdict", {"failed": "; ".join(others)})
