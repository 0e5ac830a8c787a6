"""The view for job logs and CI: one line per event, no colours, no carriage returns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO, final

from orchestrator.core.events import (
    Event,
    GroupStarted,
    Noted,
    SweepEnded,
    SweepStarted,
    TrialEnded,
    TrialStarted,
)
from orchestrator.core.objective import counts
from orchestrator.core.state import SweepState
from orchestrator.listener import AbstractListener
from orchestrator.view.figures import baseline_record, progress, speedup
from orchestrator.view.plan_words import labelled_words, plan_words
from orchestrator.view.proof_words import proof_words
from orchestrator.view.words import (
    counts_words,
    duration,
    forecast_words,
    gib,
    plural,
    record_words,
)
from search_spaces.outcome import Measured
from search_spaces.record import Record


@final
class PlainView(AbstractListener):
    """Writes a line for each event, with the time since the sweep started, and flushes it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def on_event(self, event: Event, state: SweepState) -> None:
        """Writes what happened."""
        stamp = _clock(event.at - state.started_at)
        for line in lines(event, state):
            # a crash's reason may span lines, and a log is read line by line
            text = " ".join(f"{stamp} {line}".split())
            encoding = self._stream.encoding or "utf-8"
            # a log in ASCII must not stop a sweep for the sake of a plus-minus sign
            safe = text.encode(encoding, "replace").decode(encoding)
            self._stream.write(safe + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Every line has been flushed; there is nothing left to do."""


def lines(event: Event, state: SweepState) -> Iterator[str]:
    """What an event means to a person, one line or a few."""
    match event:
        case SweepStarted():
            yield from _started(event)
        case GroupStarted(world_size=ranks, fingerprint=fingerprint):
            yield (
                f"{plural(ranks, 'worker')} ready on {plural(fingerprint.hosts, 'host')}:"
                f" {fingerprint.device} {fingerprint.device_name}"
            )
        case TrialStarted(proof=True, number=number, plan=plan):
            words = labelled_words(plan, state.spec)
            yield f"proof of trial {number} starts, in workers of its own: {words}"
        case TrialStarted(number=number, plan=plan, why=why, forecast=forecast):
            expected = f"; forecast {forecast_words(forecast, why)}" if forecast else ""
            yield f"trial {number} starts: {labelled_words(plan, state.spec)} ({why}{expected})"
        case TrialEnded(record=record) if record.proof:
            yield _proof_ended(record, state)
        case TrialEnded(record=record):
            yield _ended(record, state, event.at)
        case Noted(text=text):
            yield f"note: {text}"
        case SweepEnded(reason=reason):
            yield f"sweep ended: {reason}; {_tally(state)}"


def _started(event: SweepStarted) -> Iterator[str]:
    ruled_out = sum(count for _, count in event.space.ruled_out)
    yield (
        f"study {event.study}: {plural(len(event.space.candidates), 'plan')} to choose from,"
        f" {ruled_out:,} ruled out; budget {plural(event.spec.budget.trials, 'trial')} or"
        f" {duration(60 * event.spec.budget.minutes)}"
    )
    yield f"baseline, the plan a user would start with: {plan_words(event.space.baseline)}"
    if event.memory_limit_bytes:
        yield f"memory limit {gib(event.memory_limit_bytes)} GiB per rank"
    if event.records:
        yield f"going on after {plural(len(event.records), 'trial')} measured before"


def _ended(record: Record, state: SweepState, now: float) -> str:
    parts = [record_words(record)]
    if isinstance(record.outcome, Measured):
        memory = record.outcome.memory
        expected = record.forecast
        beside = "" if expected is None else f" (forecast {gib(expected.peak_bytes.value)})"
        share = f"{100 * memory.share:.0f} % of the limit"
        parts.append(f"peak {gib(memory.peak_bytes)} GiB{beside}, {share}")
        if memory.share > 1 - state.spec.objective.headroom:
            parts.append("above the head-room line")
        gain = speedup(record, baseline_record(state))
        if gain is not None and record.plan != state.space.baseline:
            parts.append(f"{gain.value:.2f} x the baseline")
    if record == state.best:
        parts.append("best so far")
    used = progress(state, now)
    left = used.left_seconds
    ahead = "" if left is None else f", about {duration(left)} left"
    tally = f"{used.trials} of {used.trials_of}{ahead}"
    return f"trial {record.number} ended: {'; '.join(parts)} [{tally}]"


def _proof_ended(proof: Record, state: SweepState) -> str:
    told = f"the proof of trial {proof.number} {proof_words(proof, state)}"
    if proof.number not in state.failed_proofs or (after := state.to_prove) is None:
        return told
    if after.number == proof.number:
        return f"{told}; once more, since other work on the machine makes it as slow"
    return f"{told}; trial {after.number} is proven instead"


def _tally(state: SweepState) -> str:
    best = state.best
    told = counts_words(counts(state.records)) or "no trials"
    if best is None:
        return f"{told}; no plan keeps the head-room"
    proven = ", proven" if state.proven is not None else ""
    return f"{told}; best is trial {best.number}{proven}: {labelled_words(best.plan, state.spec)}"


def _clock(seconds: float) -> str:
    whole = max(int(seconds), 0)
    return f"[{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}]"
