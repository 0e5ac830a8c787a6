"""Fuzzes plans: legal plans drawn over all knobs must not crash, and must train the same.

`make fuzz-plans` runs a large sample, the test suite a small one. Plans are drawn knob by knob from
the space of a sweep, those that a rule refuses are dropped, and of some that are left the one runs
whose values were run least: knobs that few plans have would hardly ever come otherwise. Its trial
must not end as `Crashed`. If the plan is lossless, its losses must match those of one rank without
any technique.
"""

import argparse
import faulthandler
import functools
import itertools
import json
import pickle
import platform
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import transformers

from orchestrator.report.reasons import outcome_sentence
from search_spaces.facts import ClusterFacts
from search_spaces.knobs.registry import KNOBS, lossy_knobs
from search_spaces.knobs.search_defaults import DomainContext
from search_spaces.plan import CHOICES, COUNTS, DEFAULTS, Plan
from search_spaces.rules.base import RuleContext
from search_spaces.rules.registry import refusal
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Crashed, Measured, Outcome, Refused, TrialRequest
from tests.workers.launch import Group
from workers.prepare import prepare
from workers.probe.doctor import lacks

GLOBAL_BATCH = 16
STEPS = 10
RANKS = (2, 4, 8)
# fp32 keeps 7 digits; sums run in another order, and AdamW carries it on through 11 updates
LOSS_TOLERANCE = 1e-4  # relative
_TRIES = 100_000
_TRIAL_SECONDS = 1200.0

_SIZES = {"hidden_size": 32, "num_attention_heads": 4, "vocab_size": 96, "initializer_range": 0.2}
_WIDE = {"intermediate_size": 64, "num_hidden_layers": 4}
MODELS: Mapping[str, dict[str, Any]] = {
    "llama": {
        "name": "llama-3.2-1b",
        "config": _SIZES
        | _WIDE
        | {"num_hidden_layers": 5, "num_key_value_heads": 4, "head_dim": 8},
    },
    "gpt2": {
        "name": "gpt2",
        "config": _SIZES
        | {"n_layer": 4, "n_positions": 64}
        | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    },
    "bert": {
        "name": "bert-large",
        "task": "masked-lm",
        "config": _SIZES
        | _WIDE
        | {"max_position_embeddings": 64}
        | dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
    },
    "mixtral": {
        "name": "mixtral-8x7b",
        "config": _SIZES
        | _WIDE
        | {"num_key_value_heads": 4, "head_dim": 8}
        | {"num_local_experts": 4, "num_experts_per_tok": 2},
    },
    "t5": {
        "task": "seq2seq",
        "config": {
            **{"model_type": "t5", "decoder_start_token_id": 0, "d_model": 32, "d_ff": 64},
            **{"d_kv": 8, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 2},
            **{"vocab_size": 96, "dropout_rate": 0.0},
        },
    },
}
# Of other counts the minimum and the default are drawn.
_COUNTS: Mapping[str, tuple[int, ...]] = {
    "tensor": (1, 2, 4),
    "pipeline": (1, 2, 4),
    "replicas": (1, 2),
    "experts": (1, 2, 4),
    "context": (1, 2, 4),
    "micro_batch": (1, 2, 4),
    "micro_batch_tokens": (0, 24, 40, 72),
    "bucket_mib": (1, 25),
    "prefetch_mib": (1, 50),
    "prefetch_blocks": (0, 1, 2),
    "reshard_ranks": (0, 2),
    "loader_workers": (0, 0, 0, 1),
    "selective_blocks": (0, 1, 2),
    "offloaded_blocks": (0, 1, 2),
    "checkpoint_budget": (1.0, 0.5),
}
# seconds each, or minutes: drawn less often
_RARE = {"compile": 0.1, "compile_mode": 0.5, "loader_workers": 0.1}
_LIKELY = {"precision": "fp32", "states": "fp32"}  # else few could be compared with the reference
_LIKELY_SHARE = 0.75
_PER_PLAN = 16  # legal plans that are drawn for each that runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A plan that was run, and the fault of its outcome; None if there is none."""

    model: str
    plan: Plan
    outcome: Outcome
    fault: str | None


def spec_of(model: str) -> SweepSpec:
    """Eleven steps of a tiny model in fp32 on samples of different lengths."""
    return SweepSpec.model_validate(
        {
            "model": _model_section(model),
            "data": {"lengths": {5: 1, 16: 2, 24: 1}},
            "cluster": {"device": "cpu"},
            "train": {
                "global_batch": GLOBAL_BATCH,
                "sequence_length": 24,
                "precision": "fp32",
                "learning_rate": 1e-3,
                "grad_clip": 1.0,
                "schedule": "linear",
                "warmup_steps": 3,
            },
            "objective": {"max_steps": STEPS, "interval": 1e-9, "max_seconds": 600},
        }
    )


def _model_section(model: str) -> dict[str, Any]:
    """Returns the model's section; a model without a preset gets a folder with its config."""
    section = MODELS[model]
    if "name" in section:
        return section
    return {"name": _folder_of(model), "task": section["task"]}


@functools.cache
def _folder_of(model: str) -> str:
    folder = Path(tempfile.mkdtemp(prefix=f"plimsoll-{model}-"))
    (folder / "config.json").write_text(json.dumps(MODELS[model]["config"]), encoding="utf-8")
    return str(folder)


def draw(
    model: str, ranks: int, rng: random.Random, fixed: Mapping[str, Any] = MappingProxyType({})
) -> Plan:
    """Draws a legal plan for a number of ranks, over all knobs except the fixed ones."""
    context = _context(model, ranks)
    for _ in range(_TRIES):
        plan = _attempt(context, ranks, rng, fixed)
        # of so many knobs drawn at random, some contradict each other almost always
        while plan is not None and plan.world_size == ranks:
            if (refused := refusal(plan, context)) is None:
                return plan
            plan = _without(refused, plan, context, ranks, rng, fixed)
    raise AssertionError(f"no legal plan of {model} on {ranks} ranks in {_TRIES} draws")


def _without(
    refused: Refused,
    plan: Plan,
    context: RuleContext,
    ranks: int,
    rng: random.Random,
    fixed: Mapping[str, Any],
) -> Plan | None:
    """Returns the plan with a knob at its default, to which that rule does not object; or None."""
    values = {name: value for name, value in plan.as_dict().items() if name != "accumulation"}
    off = [name for name in DEFAULTS if name not in fixed and values[name] != DEFAULTS[name]]
    # schedules that split the backward pass forbid most else, and would hardly ever come
    order = sorted(rng.sample(off, len(off)), key=lambda name: name.startswith("pipeline"))
    for name in order:
        changed = _attempt(context, ranks, rng, {**values, name: DEFAULTS[name]})
        if changed is not None:
            again = refusal(changed, context)
            if again is None or again != refused:  # the rule may go on to another knob
                return changed
    return None


@functools.cache
def _context(model: str, ranks: int) -> RuleContext:
    spec = spec_of(model)
    cluster = ClusterFacts(device="cpu", slots=ranks, memory_limit_bytes=None, lacks=lacks("cpu"))
    return RuleContext(spec=spec, model=prepare(spec), cluster=cluster)


class Coverage:
    """Counts how often each value of each knob was run, and picks plans that even it out.

    Values that take minutes, or keep a plan from being compared, stay as rare as they are drawn.
    """

    def __init__(self) -> None:
        self._counts = Counter[tuple[str, Any]]()

    def pick(self, plans: Iterable[Plan]) -> Plan:
        """Returns the plan with the values that were run least, and counts it as run."""
        picked = max(plans, key=self._novelty)
        self._counts.update(self._values(picked))
        return picked

    def _novelty(self, plan: Plan) -> float:
        return sum(1 / (1 + self._counts[value]) for value in self._values(plan))

    @staticmethod
    def _values(plan: Plan) -> Iterator[tuple[str, Any]]:
        values = plan.as_dict().items()
        return ((knob, value) for knob, value in values if knob not in {*_RARE, *_LIKELY})


def _attempt(
    context: RuleContext, ranks: int, rng: random.Random, fixed: Mapping[str, Any]
) -> Plan | None:
    chosen: dict[str, Any] = {}
    for knob in KNOBS:
        choice = DomainContext(
            spec=context.spec,
            model=context.model,
            cluster=context.cluster,
            workers=ranks,
            chosen=chosen,
        )
        offered = knob.values(choice)
        if len(offered) == 1 and not knob.is_active(chosen):
            chosen[knob.name] = offered[0]
            continue
        chosen[knob.name] = fixed.get(knob.name, _pick(knob.name, offered, rng))
    per_pass = chosen["micro_batch"] * chosen["data"] // chosen["context"]
    if chosen["data"] % chosen["context"] or GLOBAL_BATCH % per_pass:
        return None
    return Plan(accumulation=GLOBAL_BATCH // per_pass, **chosen)


def _pick(name: str, offered: tuple[Any, ...], rng: random.Random) -> Any:
    if name in ("data", "checkpoint_ratio"):
        return rng.choice(offered)
    if name in _RARE and rng.random() > _RARE[name]:
        return offered[0]
    if name in _LIKELY and rng.random() < _LIKELY_SHARE:
        return _LIKELY[name]
    return rng.choice(CHOICES.get(name) or _COUNTS.get(name) or (COUNTS[name], DEFAULTS[name]))


def reference_losses(alone: Group, model: str) -> tuple[float, ...]:
    """Returns the losses of one rank, one sample at a time, without any technique."""
    plan = Plan(
        zero_stage=0,
        micro_batch=1,
        accumulation=GLOBAL_BATCH,
        checkpoint_ratio=0.0,
        attention="eager",
        precision="fp32",
        batching="padded",
        data=1,
        optimizer="adamw_foreach",
    )
    outcome = alone.run(TrialRequest(number=0, plan=plan, spec=spec_of(model)))
    assert isinstance(outcome, Measured), outcome_sentence(outcome)
    return outcome.losses


def run_plan(group: Group, model: str, plan: Plan, reference: tuple[float, ...]) -> Drawn:
    """Runs a plan and returns the fault of its outcome."""
    spec = spec_of(model)
    # of two ranks that compile, one may wait for the other as long as a trial takes
    request = TrialRequest(number=0, plan=plan, spec=spec, collective_seconds=_TRIAL_SECONDS)
    outcomes = group.call(_run, request, seconds=_TRIAL_SECONDS)
    outcome: Outcome = outcomes[0]
    fault: str | None = None
    if not isinstance(outcome, Measured):
        fault = f"{outcome_sentence(outcome)}\n{getattr(outcome, 'trace', '')}"
    elif not lossy_knobs(plan, spec):
        apart = [
            abs(mine - theirs) / theirs
            for mine, theirs in zip(outcome.losses, reference, strict=True)
        ]
        if max(apart) > LOSS_TOLERANCE:
            steps = ", ".join(f"{one:.1e}" for one in apart)
            fault = f"losses are apart from the reference's, step by step, by {steps}"
    return Drawn(model=model, plan=plan, outcome=outcome, fault=fault)


def _run(worker: Any, request: TrialRequest) -> Outcome:
    from workers.entry import run_trial

    faulthandler.dump_traceback_later(_TRIAL_SECONDS - 60)  # where a rank hangs
    try:
        return run_trial(request, worker)
    finally:
        faulthandler.cancel_dump_traceback_later()


def fuzz(
    counts: Mapping[int, int],
    seed: int,
    fixed: Mapping[str, Any] = MappingProxyType({}),
    names: Sequence[str] = tuple(MODELS),
    earlier: int = 0,
) -> Iterator[Drawn]:
    """Draws and runs a number of plans for each number of ranks, alternating models.

    Those that an earlier run of the same sample has run, the first `earlier`, are only drawn.
    """
    rng, coverage, places = random.Random(seed), Coverage(), itertools.count()
    alone = Group(1, spec_of(names[0]))
    references = {model: reference_losses(alone, model) for model in names}
    alone.stop()
    for ranks, count in counts.items():
        group: Group | None = None
        for number in range(count):
            model = names[number % len(names)]
            plan = coverage.pick(draw(model, ranks, rng, fixed) for _ in range(_PER_PLAN))
            if next(places) < earlier:
                continue
            if group is None or not group.alive:
                group = Group(ranks, spec_of(names[0]))
            try:
                yield run_plan(group, model, plan, references[model])
            except AssertionError as lost:  # a rank is gone, or does not answer
                outcome = Crashed(cause="worker_died", rank=None, phase="trial", detail=str(lost))
                yield Drawn(model=model, plan=plan, outcome=outcome, fault=str(lost))
        if group is not None:
            group.stop()


def _told(plan: Plan) -> str:
    return json.dumps(plan.as_dict())


def _summary(drawn: Iterable[Drawn], seed: int) -> dict[str, Any]:
    drawn = list(drawn)
    spread = {
        knob: dict(Counter(str(getattr(one.plan, knob)) for one in drawn))
        for knob in Plan.__dataclass_fields__
    }
    return {
        "plans": len(drawn),
        "seed": seed,
        "ended": dict(Counter(one.outcome.kind for one in drawn)),
        "compared_with_the_reference": sum(
            not lossy_knobs(one.plan, spec_of(one.model)) for one in drawn
        ),
        "faults": [f"{one.model} {_told(one.plan)}: {one.fault}" for one in drawn if one.fault],
        "models": dict(Counter(one.model for one in drawn)),
        "ranks": dict(Counter(one.plan.world_size for one in drawn)),
        "knobs": spread,
        "machine": f"{platform.processor() or platform.machine()}, {platform.system()}",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def main() -> int:
    """Runs a sample and writes its results; continues where an earlier run was interrupted."""
    parser = argparse.ArgumentParser(description="Run legal plans drawn over all knobs.")
    parser.add_argument("--plans", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, nargs="*", default=list(RANKS))
    parser.add_argument(
        "--out", type=Path, default=None, help="a JSON file; a .pickle of its rows is beside"
    )
    parser.add_argument(
        "--fix", nargs="*", default=[], metavar="KNOB=JSON", help='such as engine="deepspeed"'
    )
    parser.add_argument(
        "--models", nargs="*", default=list(MODELS), choices=MODELS, help="t5 has no pipelines"
    )
    given = parser.parse_args()
    fixed = {name: json.loads(value) for name, _, value in (f.partition("=") for f in given.fix)}
    shares = {2: 0.5, 4: 0.35, 8: 0.15}
    total = sum(shares.get(ranks, 0.3) for ranks in given.ranks)
    counts = {ranks: round(given.plans * shares.get(ranks, 0.3) / total) for ranks in given.ranks}
    kept = given.out.with_suffix(".pickle") if given.out else None
    drawn: list[Drawn] = pickle.loads(kept.read_bytes()) if kept and kept.exists() else []
    for one in fuzz(counts, given.seed, fixed, given.models, len(drawn)):
        drawn.append(one)
        if kept:
            kept.write_bytes(pickle.dumps(drawn))
        word = one.fault or outcome_sentence(one.outcome)
        print(f"{len(drawn):4d} {one.model:6s} {one.plan.world_size} ranks: {word}", flush=True)
        if one.fault:
            print(f"     {_told(one.plan)}", flush=True)
    summary = _summary(drawn, given.seed)
    if given.out:
        given.out.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({key: summary[key] for key in ("plans", "ended", "faults")}, indent=2))
    return 1 if summary["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
