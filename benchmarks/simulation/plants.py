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
        "self.state = replace(self.state, retries=(*self.state.retries, again))",
        "pass",
    ),
    Plant(
        "a trial that found room keeps waiting for it, and runs again",
        "orchestrator.core.schedule",
        "_forget_pending(step)\n        return True",
        "return True",
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
        "if completed_trials(state) + len(state.running) >= budget.trials:",
        "if completed_trials(state) + len(state.running) > budget.trials:",
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
        "if step.state.sweep.running:\n        return False",
        "if any(trial.validation for trial in step.state.sweep.running):\n        return False",
    ),
    Plant(
        "a trial waits for nodes without end",
        "orchestrator.core.schedule",
        "if since is not None and step.now - since < state.wait_seconds:",
        "if True:",
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
        "if group is None or group.trial is None:",
        "if True:",
    ),
    Plant(
        "a plan is blamed for the first death of its workers",
        "orchestrator.core.failures",
        "retry=not second, replace=WorkersCrashed",
        "retry=False, replace=WorkersCrashed",
    ),
    Plant(
        "trials go on after the study became unavailable",
        "orchestrator.core.handle",
        "step.state = replace(step.state, ended=True, awaited=None)",
        "step.state = replace(step.state, awaited=None)",
    ),
    Plant(  # a fault of the earlier controller, which the simulation found
        "a driver that lost its lock goes on after another one has written",
        "orchestrator.study.study",
        "if self._lock is not None:\n                    self._lock.check()",
        "if False:\n                    self._lock.check()",
    ),
    Plant(  # another one that it found
        "trials start in the step whose write fails",
        "orchestrator.core.schedule",
        "isinstance(one, Store | Abandon | StartGroup) for one",
        "isinstance(one, StartGroup) for one",
    ),
    Plant(
        "leaders are measured again without end",
        "orchestrator.core.repeats",
        "return spec.validation.repeats - len(repeats_at_the_end(records)) - len(running)",
        "return 1",
    ),
    Plant(
        "a plan whose repeat is interrupted counts as untried",
        "orchestrator.core.state",
        "return isinstance(ended.outcome, Cancelled) and not any(",
        "return isinstance(ended.outcome, Cancelled) or not any(",
    ),
    Plant(
        "the plan with the lowest mean wins",
        "orchestrator.core.best",
        "leader = max(plans, key=rank)",
        "leader = min(plans, key=rank)",
    ),
    Plant(
        "a study that became unavailable counts as a mistake of the user's",
        "orchestrator.cli.exit_codes",
        "case StudyLost() | TrackingLost() | MachineError():\n"
        "            return ExitCode.TRY_AGAIN",
        "case StudyLost() | TrackingLost() | MachineError():\n"
        "            return ExitCode.USER_ERROR",
    ),
    Plant(  # a fault of earlier versions
        "a plan is blamed for workers that did not start, or for a full disk",
        "orchestrator.core.failures",
        'outcome.cause in ("start_failed", "disk_full")',
        "outcome.cause in ()",
    ),
    Plant(  # the same
        "a plan is blamed for the machine on which a measured plan fails as well",
        "orchestrator.core.blame",
        "if is_loss_of_processes(outcome) and checkable:",
        "if False:",
    ),
    Plant(  # the same
        "all plans are blamed that were under way when two drivers died",
        "orchestrator.core.handle",
        "if before is None or not (alone and before.alone):",
        "if before is None:",
    ),
    Plant(  # a fault of earlier versions
        "a driver whose head died leaves its trials running",
        "orchestrator.controller",
        "self._write(each)",
        "pass",
    ),
    Plant(  # a fault of earlier versions
        "a sweep that the machine ended counts as finished",
        "orchestrator.cli.exit_codes",
        "if (state.ended and ended_by_machine(state.ended.reason)) or",
        "if",
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
    for value in before.values():
        if isinstance(value, type) and id(value) in replaced:
            heirs: list[type] = value.__subclasses__()
            for heir in heirs:
                heir.__bases__ = tuple(replaced.get(id(base), base) for base in heir.__bases__)
    for other in list(sys.modules.values()):
        if isinstance(other, ModuleType) and other.__name__.startswith(("orchestrator", "bench")):
            for name, value in list(vars(other).items()):
                if id(value) in replaced and other is not module:
                    setattr(other, name, replaced[id(value)])
