"""Knobs of a plan. Ranks: engine, degrees of parallelism, sharding."""

from search_spaces.knobs import search_defaults
from search_spaces.knobs.knob import ZERO, Knob, has_whole_layers, is_sharded

PARALLELISM = (
    Knob(name="engine", default=search_defaults.engines),
    Knob(name="tensor", default=search_defaults.tensor_degrees, depends_on=("engine",)),
    Knob(
        name="sequence_parallel",
        default=lambda choice: (False,) if choice.model.tensor.sequence_refusal else (False, True),
        is_active=lambda chosen: chosen["tensor"] > 1,
        depends_on=("tensor",),
    ),
    Knob(
        name="pipeline", default=search_defaults.pipeline_degrees, depends_on=("engine", "tensor")
    ),
    Knob(
        name="pipeline_schedule",
        # a smaller bubble for more messages, and the smallest one: the other two schedules without
        # bubbles wait as long as zbv, and dualpipev holds more
        default=lambda choice: ("1f1b", "interleaved", "zbv") if choice.accelerated else ("1f1b",),
        is_active=lambda chosen: chosen["pipeline"] > 1,
        depends_on=("pipeline",),
    ),
    Knob(name="data", default=search_defaults.data_degrees, depends_on=("tensor", "pipeline")),
    Knob(name="zero_stage", default=search_defaults.zero_stages, depends_on=("engine", "data")),
    Knob(
        name="replicas",
        default=search_defaults.replica_counts,
        is_active=lambda chosen: chosen["engine"] == "torch" and is_sharded(chosen),
        depends_on=(*ZERO, "data", "tensor", "pipeline"),
    ),
    Knob(
        name="experts",
        default=search_defaults.expert_degrees,
        is_active=lambda chosen: has_whole_layers(chosen) and is_sharded(chosen),
        depends_on=(*ZERO, "data", "tensor", "pipeline", "replicas"),
        label="{} expert ranks",
    ),
    Knob(
        name="context",
        default=search_defaults.context_degrees,
        is_active=lambda chosen: has_whole_layers(chosen) and chosen["data"] > 1,
        depends_on=("engine", "data", "tensor", "pipeline"),
        label="{} context ranks",
    ),
)
