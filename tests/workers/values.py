"""Tiny specs, plans and requests for the tests of workers: fp32, on the CPU."""

from typing import Any

from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import TrialRequest
from tests.plans import ddp_plan

GLOBAL_BATCH = 8
CALL_SECONDS = 600.0  # for all ranks to answer, on a busy machine
SHORT = {"max_seconds": 0.001}  # an objective that ends a trial after a step or two
STEPS = 6  # of a trial; the fewest that may be asked for
MEMORY_GIB = 0.25  # what a rank may use: plenty for the tiny models, little for the large plans
LLAMA: dict[str, Any] = {
    "name": "llama-3.2-1b",
    "config": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 500,
        "initializer_range": 0.2,  # attention shows in the loss
    },
}


def a_spec(**sections: Any) -> SweepSpec:
    """Returns a spec of the tiny Llama on samples of varied lengths; `sections` override keys."""
    tree: dict[str, Any] = {
        "model": LLAMA,
        "data": {"lengths": {4: 1, 16: 2, 40: 2, 64: 1}},
        "cluster": {"device": "cpu", "workers": 2, "memory_gib": MEMORY_GIB},
        "train": {
            "global_batch": GLOBAL_BATCH,
            "sequence_length": 64,
            "precision": "fp32",
            "learning_rate": 3e-3,
        },
        "objective": {"max_steps": STEPS, "max_seconds": 600},  # however slow the machine
    }
    for name, section in sections.items():
        tree[name] = section if name == "model" else tree.get(name, {}) | section
    return SweepSpec.model_validate(tree)


def odd_model(fault: str, **config: Any) -> dict[str, Any]:
    """Returns a model section: the function in `odd_models`, with its fault."""
    return {"name": "tests.workers.odd_models:make", "config": {"fault": fault} | config}


def a_plan(**knobs: Any) -> Plan:
    """Returns DDP on two ranks with micro-batch 2; `accumulation` completes the global batch."""
    micro, ranks = knobs.get("micro_batch", 2), knobs.get("data", 2)
    usual = {"micro_batch": micro, "accumulation": GLOBAL_BATCH // micro // ranks}
    return ddp_plan(**usual | knobs)


def a_short_request(**knobs: Any) -> TrialRequest:
    """Returns a request for `a_plan(**knobs)` that ends after a step or two."""
    return a_request(a_spec(objective=SHORT), **knobs)


def a_request(spec: SweepSpec | None = None, **knobs: Any) -> TrialRequest:
    """Returns a request for `a_plan(**knobs)`; a rank that waits for its end answers too late."""
    return TrialRequest(
        number=0, plan=a_plan(**knobs), spec=spec or a_spec(), collective_seconds=10 * CALL_SECONDS
    )
