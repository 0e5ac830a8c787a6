"""Reasons, notes and outcomes in words."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from orchestrator.core import notes, reasons
from orchestrator.core.fingerprints import Difference
from orchestrator.core.placement import GROUP_BYTES, CapacityRequest, Node, capacities
from orchestrator.report.format import plural, relative_spread
from search_spaces.errors import Fault
from search_spaces.safety.files import packaged_table
from search_spaces.specification.sections import Metric
from search_spaces.trial import (
    Cancelled,
    CrashKind,
    DriverDied,
    Interruption,
    Measured,
    NodesLost,
    NoRoom,
    Outcome,
    OutOfMemory,
    Stopped,
    WorkersFailed,
)

_TEXTS = packaged_table(__package__, "words.yaml")
_BEST: Mapping[Metric, str] = _TEXTS["best_plans"]
_LIMITS: Mapping[str, str] = _TEXTS["limits"]
_MACHINE_FAILURES: Mapping[CrashKind, str] = _TEXTS["machine_failures"]
_COMPARATIVES = (
    ("faster than", "slower than"),
    ("more samples per price than", "fewer samples per price than"),
)
_NAMED_KNOBS = 2  # of those that a proposal changes


def sentence(value: object) -> str:
    """Returns the sentence of words.yaml for a value's class, with the value's fields."""
    words: str = _TEXTS["sentences"][type(value).__name__]
    return words.format(it=value)


def reason_words(reason: reasons.TrialReason) -> str:
    """Describes why a plan is tried."""
    match reason:
        case reasons.Retry():
            return _retry(reason)
        case reasons.Promising():
            return "; ".join(_promise(reason))
        case _:
            return sentence(reason)


def _retry(reason: reasons.Retry) -> str:
    trial, cause = reason.trial, reason.cause
    match cause:
        case DriverDied(times=times):
            again = "" if times == 1 else f", and {times - 1} before it"
            return f"trial {trial} was running when its driver died{again}"
        case NodesLost():
            return f"{interruption_words(cause)} during trial {trial}"
        case WorkersFailed(outcome=outcome):
            return f"trial {trial} {outcome_sentence(outcome)}"
        case NoRoom() | Stopped():
            return f"retry of trial {trial}: {interruption_words(cause)}"


def _promise(reason: reasons.Promising) -> Iterator[str]:
    likely = f"{reason.fits:.0%} likely to fit"
    if reason.reaches is not None:
        likely += f", {reason.reaches:.0%} likely to reach the required speed"
    if reason.gain is None:
        yield f"expected to be the {_BEST[reason.metric]} that fits"
    elif reason.metric == "headroom":
        lower = reason.gain / (1 + reason.gain)
        direction = "lower" if lower >= 0 else "higher"
        yield f"expected peak {abs(lower):.0%} {direction} than the best's"
    else:
        better, worse = _COMPARATIVES[reason.metric == "samples_per_price"]
        yield f"expected {abs(reason.gain):.0%} {better if reason.gain >= 0 else worse} the best"
    yield likely
    if reason.changes:
        named = ", ".join(f"{name} {value}" for name, value in reason.changes[:_NAMED_KNOBS])
        unnamed = len(reason.changes) - _NAMED_KNOBS
        more = f" and {unnamed} more" if unnamed > 0 else ""
        yield f"tests {named}{more} against the best"
    if not reason.forecast:
        yield "without a forecast"
    if reason.measured_by is not None:
        yield f"measured in study {reason.measured_by}, repeated here for comparison"


def interruption_words(cause: Interruption) -> str:
    """Describes why a trial ended through no fault of its plan."""
    match cause:
        case WorkersFailed(outcome=outcome):
            return outcome_sentence(outcome)
        case NodesLost(nodes=nodes):
            lost = "was lost" if len(nodes) == 1 else "were lost"
            return f"node{'s' if len(nodes) > 1 else ''} {', '.join(nodes)} {lost}"
        case NoRoom():
            minutes, available = cause.minutes, capacity_words(cause.available)
            waited = f" for {minutes:g} minutes (cluster.wait_minutes)" if minutes else ""
            return f"no room for {_ranks(cause)}{waited}; available: {available}"
        case _:
            return sentence(cause)


def _ranks(room: NoRoom) -> str:
    shared = room.ranks_per_node
    together = f", at least {shared} of them on each node" if shared > 1 else ""
    return f"{plural(room.ranks, 'rank')}{together}"


def capacity_words(available: Sequence[tuple[int, int]]) -> str:
    """Describes the capacity of nodes: `2 nodes with room for 8 ranks`, or `none`."""
    words = (
        f"{plural(nodes, 'node')} with room for {plural(ranks, 'rank')}"
        for nodes, ranks in available
    )
    return ", ".join(words) or "none"


def groups_fault(request: CapacityRequest, groups: int, nodes: Sequence[Node]) -> Fault:
    """Describes worker groups that do not fit at the same time."""
    unshared = " without sharing nodes; cluster.share_nodes: true lets them share"
    return Fault(
        path="cluster.groups",
        value=str(groups),
        advice=f"plans take up to {request.ranks} ranks; available:"
        f" {capacity_words(capacities(nodes))}; at most {request.groups} groups fit at the same"
        f" time{'' if request.share else unshared}",
    )


def stop_words(reason: reasons.StopReason) -> str:
    """Describes why a search ended."""
    match reason:
        case reasons.BudgetSpent(limit=limit, amount=amount):
            return f"the budget of {amount:g} {_LIMITS[limit]} is used up"
        case reasons.SameFailure(trials=trials, error=error, cause=cause):
            error = f"gradient {error}" if cause == "does_not_train" else error
            return f"all {trials} trials so far failed with the same error: {error}"
        case reasons.MachineFailed(cause=cause, error=error):
            return f"{_MACHINE_FAILURES[cause]}: {error}"
        case NoRoom():
            return interruption_words(reason)
        case _:
            return sentence(reason)


def replacement_words(reason: reasons.ReplacementReason) -> str:
    """Describes why the workers of a group are replaced."""
    match reason:
        case reasons.WorkersCrashed(cause=cause):
            return f"a trial crashed ({cause.replace('_', ' ')})"
        case reasons.MemoryNotReleased(residual_bytes=size):
            return f"{size / 2**20:.0f} MiB were not released after a trial"
        case reasons.OtherRanks(needed=needed, present=present):
            return f"the next plan needs {plural(needed, 'rank')}, the group has {present}"
        case reasons.OtherEnvironment(environment=environment):
            settings = " ".join(f"{name}={value}" for name, value in environment)
            return (
                f"the next plan needs processes started with {settings or 'no allocator settings'}"
            )
        case _:
            return sentence(reason)


def note_words(note: notes.Note) -> str:
    """Describes an event that the user should know of."""
    match note:
        case notes.NodesUnused() | notes.HeadFull():
            return _start_words(note)
        case notes.GroupReplaced(reason=reason):
            return f"the worker group is replaced: {replacement_words(reason)}"
        case notes.PlanBlamed(trial=trial, loss=loss):
            return (
                f"{interruption_words(loss)} during trial {trial}, as in earlier trials: the plan"
                " counts as failed"
            )
        case notes.TrialWaits(trial=trial, room=room):
            return (
                f"trial {trial} waits for room for {_ranks(room)}, up to {room.minutes:g} minutes;"
                f" available: {capacity_words(room.available)}"
            )
        case notes.TrialsTransferred():
            return _transfer(note)
        case notes.FingerprintsDiffer(trials=trials, differences=differences):
            return (
                f"{plural(trials, 'earlier trial')} ran on other hardware or software"
                f" ({difference_words(differences)}): forecasts ignore them, and speeds may differ"
                " for this reason alone"
            )
        case _:
            return sentence(note)


def _start_words(note: notes.NodesUnused | notes.HeadFull) -> str:
    match note:
        case notes.NodesUnused(kinds=kinds):
            names = ", ".join(sorted({kind or "no name" for kind in kinds}))
            return (
                f"nodes with other GPUs are not used: {len(kinds)} ({names});"
                " cluster.accelerator chooses the kind to use"
            )
        case notes.HeadFull(groups=groups, room=room):
            return (
                f"cluster.groups is {groups}, but the head node has memory for {room}: it may be"
                f" killed; each group takes {GROUP_BYTES >> 20} MiB there, in addition to its"
                " workers"
            )


def difference_words(differences: Iterable[Difference]) -> str:
    """Describes how fingerprints differ: `driver 575.57, here 580.65`."""
    return "; ".join(
        f"{one.name} {_fact_words(one.there)}, here {_fact_words(one.here)}" for one in differences
    )


def _fact_words(fact: str | None) -> str:
    return "missing" if fact is None else fact or "unset"


def _transfer(note: notes.TrialsTransferred) -> str:
    if not note.trials:
        return f"no trials transferred from study {note.study}: it ran on another device"
    changes = [difference_words([one]) for one in note.differences]
    changes += [f"{hosts} hosts" for hosts in note.hosts]
    detail = f" ({'; '.join(changes)})" if changes else ""
    return (
        f"{plural(note.trials, 'trial')} transferred from study {note.study}, uncertainty"
        f" {100 * note.std:.0f} %{detail}"
    )


def outcome_sentence(outcome: Outcome) -> str:
    """Describes an outcome in a few words."""
    match outcome:
        case Measured():
            rate = outcome.samples_per_second
            early = ", ended early: slower than the best" if outcome.beaten else ""
            return f"{rate.value:.2f} samples/s ± {relative_spread(rate)}{early}"
        case OutOfMemory():
            excess = outcome.excess
            over = "" if excess is None else f", wanted {100 * (1 + excess):.0f} % of the limit"
            return f"out of {outcome.where} memory in {outcome.phase}{over}"
        case Cancelled(cause=cause):
            return f"cancelled: {interruption_words(cause)}"
        case _:
            return sentence(outcome)
