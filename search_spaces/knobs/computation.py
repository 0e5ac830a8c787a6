"""Knobs of a plan. How a step is computed: kernels, precision, batches, optimizer."""

from search_spaces.knobs import search_defaults
from search_spaces.knobs.knob import Knob

COMPUTATION = (
    Knob(name="attention", default=search_defaults.attentions),
    Knob(
        name="precision",
        default=lambda choice: (choice.spec.train.precision,),
        lossy=lambda value, spec: value != spec.train.precision,
    ),
    Knob(name="batching", default=search_defaults.batchings),
    Knob(
        name="pad_multiple",
        default=search_defaults.pad_multiples,
        is_active=lambda chosen: bool(chosen["batching"] != "packed"),
        depends_on=("batching",),
        # no direction of memory: wider rows take more, but tensors of fewer sizes fragment less
        label="rows of {}",
    ),
    Knob(
        name="micro_batch_tokens",
        default=search_defaults.token_limits,
        is_active=lambda chosen: bool(chosen["batching"] != "packed"),
        depends_on=("batching", "micro_batch", "pipeline"),
        label="{} tokens a pass",
    ),
    Knob(name="compile", default=search_defaults.compiles, label="compile"),
    Knob(
        name="compile_mode",
        is_active=lambda chosen: bool(chosen["compile"]),
        depends_on=("compile",),
        forecast=False,
        label="{}",
    ),
    # Not searched by default: nothing measured shows that it beats checkpoint_ratio at equal peaks.
    Knob(
        name="checkpoint_budget",
        is_active=lambda chosen: bool(chosen["compile"]),
        depends_on=("compile",),
        label="budget {}",
    ),
    Knob(
        name="float8",
        is_active=lambda chosen: bool(chosen["compile"]),
        depends_on=("compile",),
        lossy=lambda value, _: value != "none",
        label="float8 {}",
    ),
    Knob(name="loss", default=search_defaults.losses, depends_on=("tensor",), label="{} loss"),
    Knob(
        name="vocab_multiple",
        default=search_defaults.vocab_multiples,
        depends_on=("tensor",),
        label="{} words",
    ),
    Knob(
        name="mlp_tiles",
        default=search_defaults.tiles,
        depends_on=("tensor", "compile"),
        label="{} tiles",
    ),
    Knob(
        name="experts_kernel",
        default=search_defaults.experts_kernels,
        forecast=False,
        label="{} experts",
    ),
    Knob(
        name="optimizer",
        default=search_defaults.optimizers,
        lossy=lambda value, spec: (
            spec.train.optimizer == "adamw"
            and value in {"adamw_8bit", "adamw_8bit_paged", "adafactor"}
        ),
        label="{}",
    ),
    Knob(name="states", lossy=lambda value, _: value != "fp32", label="{} states"),
)
