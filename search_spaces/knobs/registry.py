"""Registry of the knobs, in the order of the search tree: each after those that it depends on.

`accumulation` is none of them: it follows from the global batch, `micro_batch` and `data`.
"""

from search_spaces.knobs.communication import COMMUNICATION
from search_spaces.knobs.computation import COMPUTATION
from search_spaces.knobs.knob import Knob
from search_spaces.knobs.memory import MEMORY
from search_spaces.knobs.parallelism import PARALLELISM
from search_spaces.knobs.process import PROCESS
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec

KNOBS: tuple[Knob, ...] = (*PARALLELISM, *MEMORY, *COMPUTATION, *COMMUNICATION, *PROCESS)


def computes_exactly(plan: Plan, spec: SweepSpec) -> bool:
    """Returns True if the plan is lossless but for its micro-batch, which is another loss."""
    return set(lossy_knobs(plan, spec)) <= {"micro_batch"}


def lossy_knobs(plan: Plan, spec: SweepSpec) -> tuple[str, ...]:
    """Returns the knobs whose values change the numerics of the specified training."""
    return tuple(knob.name for knob in KNOBS if knob.lossy(getattr(plan, knob.name), spec))
