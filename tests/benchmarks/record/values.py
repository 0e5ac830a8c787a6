"""A recording's subject, space and reports, for tests."""

from __future__ import annotations

from typing import Any

from benchmarks.record.rows import Cells, ModelShape, Subject, row_of
from benchmarks.record.table import set_id
from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Outcome
from tests.orchestrator.records import LLAMA, make_plan, make_spec
from tests.outcomes import CPU_FINGERPRINT, make_measured

SPEC = make_spec(space={"engine": ["torch"], "batching": ["padded"], "micro_batch": [1, 2, 4]})
SHAPE = ModelShape(hidden=192, heads=6, key_value_heads=2, feed_forward=512)


def subject(spec: SweepSpec = SPEC) -> Subject:
    """A small Llama with all its numbers."""
    return Subject(name="tiny", spec=spec, facts=LLAMA, shape=SHAPE, set_id=set_id(spec, "tiny"))


def row(outcome: Outcome | None = None, knobs: tuple[str, ...] = (), **changes: Any) -> Cells:
    """A measurement as a row; `changes` are knobs of the plan."""
    plan: Plan = make_plan(**changes)
    ended = outcome or make_measured()
    return row_of(subject(), plan, 1, ended, CPU_FINGERPRINT, knobs)
