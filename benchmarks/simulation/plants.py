"""Faults planted in controller and study, each of which the simulation has to find."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True)
class Plant:
    """A fault: a passage of a module, and what it is replaced by."""

    name: str
    module: str
    old: str
    new: str


PLANTS = (
    Plant(
        "an interrupted trial is not retried",
        "orchestrator.core.step",
        "if retry and not trial.validation and not trial.is_repeat:",
        "if False:",
    ),
    Plant(
        "a trial that found room keeps waiting for it, and runs again",
        "orchestrator.core.schedule",
        "step.change(pending=_without(step.state.pending, kind))\n            return Next.STARTED",
        "return Next.STARTED",
    ),
    Plant(
        "a lost node is forgotten, while the cluster still lists it",
        "orchestrator.core.handle",
        "lost_at={**state.lost_at, **dict.fromkeys(report.lost_nodes, step.now)},",
        "lost_at=state.lost_at,",
    ),
    Plant(
        "a trial has no deadline",
        "orchestrator.core.schedule",
        "deadline_seconds=trial.deadline_seconds,\n            placement",
        "deadline_seconds=1e9,\n            placement",
    ),
    Plant(
        "a group that does not report is awaited for ever",
        "orchestrator.core.handle",
        "if group.trial is not None and step.now >= group.overdue_at:",
        "if False:",
    ),
    Plant(
        "one trial more than the budget",
        "orchestrator.core.budget",
        "if _completed(state) + len(state.running) >= budget.trials:",
        "if _completed(state) + len(state.running) > budget.trials:",
    ),
    Plant(
        "a report that comes twice counts twice",
        "orchestrator.core.handle",
        "if group is None or group.trial != report.number:\n        return",
        "if group is None:\n        return",
    ),
    Plant(
        "a validation starts beside trials",
        "orchestrator.core.schedule",
        "if step.state.sweep.running:\n        return Next.LATER",
        "if any(trial.validation for trial in step.state.sweep.running):\n"
        "        return Next.LATER",
    ),
    Plant(
        "a trial waits for nodes without end",
        "orchestrator.core.schedule",
        "return step.now - trial.since >= step.state.wait_seconds",
        "return False",
    ),
    Plant(
        "workers on other nodes are kept",
        "orchestrator.core.schedule",
        "fresh=reason is not None,",
        "fresh=False,",
    ),
    Plant(
        "a trial whose group died is forgotten",
        "orchestrator.core.handle",
        "if group is not None and group.trial is not None:",
        "if False:",
    ),
    Plant(
        "a plan is blamed for the first death of its workers",
        "orchestrator.core.failures",
        "return FailureDecision(retry=not second, replace=reason, prune=second)",
        "return FailureDecision(retry=False, replace=reason, prune=second)",
    ),
    Plant(
        "trials go on after the study became unavailable",
        "orchestrator.core.handle",
        "step.change(ended=True, awaited=None)",
        "step.change(awaited=None)",
    ),
    Plant(  # a fault of the earlier controller, which the simulation found
        "a second trial for a kind of nodes displaces the one that waits",
        "orchestrator.core.schedule",
        "if plan.accelerator in ready:",
        "if True:",
    ),
    Plant(  # another one that it found
        "a driver that lost its lock goes on after another one has written",
        "orchestrator.study.writer",
        "if self._lock.times_taken == self._times_taken:",
        "if True:",
    ),
    Plant(  # another one that it found
        "trials start in the step whose write fails",
        "orchestrator.core.schedule",
        "return not step.has_written and not step.starts_group",
        "return not step.starts_group",
    ),
    Plant(
        "leaders are measured again without end",
        "orchestrator.core.repeats",
        "if len(made) + len(running) >= spec.validation.repeats:",
        "if False:",
    ),
    Plant(
        "a plan whose repeat is interrupted counts as untried",
        "orchestrator.core.step",
        "if not trial.validation and not trial.is_repeat:\n            self.count",
        "if not trial.validation:\n            self.count",
    ),
    Plant(
        "the plan with the lowest mean wins",
        "orchestrator.core.answer",
        "leader = max(plans, key=speeds.score)",
        "leader = min(plans, key=speeds.score)",
    ),
    Plant(
        "a study that became unavailable counts as a mistake of the user's",
        "orchestrator.cli.exit_codes",
        "return ExitCode.STUDY_LOST",
        "return ExitCode.USER_ERROR",
    ),
)


def plant(fault: Plant) -> None:
    """Plants a fault in this process.

    Raises:
        ValueError: If the passage is not in the module once.
    """
    module = importlib.import_module(fault.module)
    assert module.__file__ is not None
    source = Path(module.__file__).read_text("utf-8")
    if source.count(fault.old) != 1:
        raise ValueError(f"{fault.name}: the passage occurs {source.count(fault.old)} times")
    before = dict(vars(module))
    exec(compile(source.replace(fault.old, fault.new), module.__file__, "exec"), vars(module))  # noqa: S102
    replaced = {
        id(value): vars(module)[name]
        for name, value in before.items()
        if getattr(value, "__module__", None) == module.__name__
    }
    for other in list(sys.modules.values()):
        if isinstance(other, ModuleType) and other.__name__.startswith(("orchestrator", "bench")):
            for name, value in list(vars(other).items()):
                if id(value) in replaced and other is not module:
                    setattr(other, name, replaced[id(value)])
