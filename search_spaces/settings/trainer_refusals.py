"""Reasons why a trainer cannot train a plan that are no matter of a single knob."""

from collections.abc import Iterator, Mapping

from search_spaces.facts import ModelFacts
from search_spaces.plan import Plan
from search_spaces.safety.files import packaged_table
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import TrainSpec

TPU_FORMATS = ("torchrun", "ray-train", "rayjob")  # without the modules of a type of device
_MODELS = packaged_table(__package__, "trainer_models.yaml")
TITAN_MODELS: Mapping[str, tuple[str, str]] = _MODELS["torchtitan"]
BRIDGE_MODELS: Mapping[str, tuple[str, str, str]] = _MODELS["megatron-bridge"]
_MESH: Mapping[str, list[object]] = _MODELS["transformers-mesh"]  # values of knobs that it takes


def is_divided(plan: Plan) -> bool:
    """Returns True if Trainer and Accelerate leave the division of weights to transformers."""
    return plan.tensor > 1 or plan.experts > 1


def _mesh_refusals(plan: Plan, model: ModelFacts) -> Iterator[str]:
    """Yields the reasons why transformers' mesh of tensor, expert and data ranks has no such plan.

    Source:
        transformers/distributed/fsdp.py, tensor_parallel.py, expert_parallel.py (5.23).
    """
    degree = f"tensor is {plan.tensor}" if plan.tensor > 1 else f"experts is {plan.experts}"
    if plan.tensor > 1 and not model.tensor.by_transformers:
        yield f"{degree}: transformers has no plan that splits {model.architecture}"
    if plan.data > 1 and plan.zero_stage != 3:
        yield f"{degree}: transformers shards as zero_stage 3 does, but it is {plan.zero_stage}"
    for name, values in _MESH.items():
        if (value := getattr(plan, name)) not in values:
            word = str(value).lower() if isinstance(value, bool) else value
            yield f"{degree}: its division by transformers is untried with {name} {word}"


def tpu_refusals(trainer: str, device: str) -> Iterator[str]:
    """Yields a reason if a trainer cannot train on a TPU, and Plimsoll's own scripts can."""
    if device == "tpu" and trainer not in TPU_FORMATS:
        yield f"cluster.device is tpu, and only {', '.join(TPU_FORMATS)} train on TPUs"


def accelerate_refusals(plan: Plan, _: SweepSpec, model: ModelFacts, device: str) -> Iterator[str]:
    """Yields the reasons why Accelerate would not train a plan, or another one on a CPU.

    Source:
        accelerate/accelerator.py (1.15): `native_amp` stays False for fp16 on the CPU;
        accelerate/state.py: FSDP is for ranks with an accelerator.
    """
    if is_divided(plan):
        yield from _mesh_refusals(plan, model)
        return
    sharded = plan.engine == "torch" and plan.zero_stage in (2, 3)
    if sharded and plan.optimizer.startswith("adamw_8bit"):
        yield f"optimizer is {plan.optimizer}, which does not support FSDP2's shards"
    if sharded and plan.precision == "fp16":
        yield "precision is fp16 with FSDP2, for which torch keeps a loss scale per rank"
    if device == "cpu" and plan.engine == "torch" and plan.zero_stage:
        yield f"zero_stage is {plan.zero_stage}: on a CPU accelerate silently replaces FSDP by DDP"
    if device == "cpu" and plan.engine == "torch" and plan.precision == "fp16":
        yield "precision is fp16: on a CPU accelerate silently trains in fp32"


def hf_refusals(plan: Plan, spec: SweepSpec, model: ModelFacts, device: str) -> Iterator[str]:
    """Yields the reasons why our script with Trainer cannot train a plan."""
    yield from accelerate_refusals(plan, spec, model, device)
    if device == "cpu" and plan.tensor > 1:
        yield f"tensor is {plan.tensor}, which Trainer takes on GPUs only"
    if model.vocab_size is None:
        yield (
            f"{model.name} makes its own batches, and the script for Trainer has Plimsoll's data"
        )
    yield from decay_refusals(plan, spec.train, stock=False)


def decay_refusals(plan: Plan, train: TrainSpec, *, stock: bool) -> Iterator[str]:
    """Yields why other weights would decay than were measured, in a `stock` Trainer or our own."""
    if not train.weight_decay:
        return
    by_deepspeed = plan.engine == "deepspeed" and plan.offload_optimizer != "none"
    if train.decay == "stock" and by_deepspeed:
        yield "train.decay is stock: with an offloaded optimizer DeepSpeed's own decays all weights"
    if train.decay == "all" and stock and not by_deepspeed:
        yield (
            "train.decay is all, and the stock Trainer leaves biases and norms without decay:"
            " measure with train.decay: stock, or take the script of `plimsoll export --format"
            " hf-trainer`"
        )


def file_refusals(plan: Plan, spec: SweepSpec, model: ModelFacts, device: str) -> Iterator[str]:
    """Yields the reasons why trainers on top of Trainer cannot train a plan from their file."""
    yield from accelerate_refusals(plan, spec, model, device)
    yield from decay_refusals(plan, spec.train, stock=True)
    if model.task != "causal-lm":
        yield f"{model.name} is no causal language model by a name that transformers loads"


def verl_refusals(_: Plan, spec: SweepSpec, model: ModelFacts, device: str) -> Iterator[str]:
    """Yields the reasons why verl's SFT trainer cannot train a plan.

    Source:
        verl/workers/engine/fsdp/transformer_impl.py (0.9.1): all weights in one group, no linear
        schedule, adapters in the type of the frozen weights.
    """
    yield from _gpu_refusals("verl", spec.train, device)
    if model.task != "causal-lm":
        yield f"{model.name} is no causal language model by a name that transformers loads"
    if spec.train.schedule == "linear":
        yield "train.schedule is linear, and verl's are constant and cosine"


def titan_refusals(plan: Plan, spec: SweepSpec, _: ModelFacts, device: str) -> Iterator[str]:
    """Yields the reasons why torchtitan 0.3 cannot train a plan."""
    yield from _gpu_refusals("torchtitan", spec.train, device)
    if spec.model.name not in TITAN_MODELS or spec.model.config:
        yield f"the model is none of torchtitan's, unchanged: {', '.join(TITAN_MODELS)}"
    if plan.zero_stage == 0 and plan.data > 1:
        yield f"zero_stage is 0 on {plan.data} data ranks, and torchtitan shards in place of DDP"


def bridge_refusals(plan: Plan, spec: SweepSpec, model: ModelFacts, device: str) -> Iterator[str]:
    """Yields the reasons why Megatron-Bridge 0.6 cannot train a plan.

    Source:
        megatron/core/optimizer/__init__.py: weights of one dimension, as norms and biases, do not
        decay; megatron/core/transformer/transformer_block.py: all stages have as many blocks.
    """
    yield from _gpu_refusals("Megatron-Bridge", spec.train, device)
    if spec.model.name not in BRIDGE_MODELS or spec.model.config:
        yield f"the model is none of these, unchanged: {', '.join(BRIDGE_MODELS)}"
    by_deepspeed = plan.engine == "deepspeed" and plan.offload_optimizer != "none"
    if spec.train.weight_decay and (spec.train.decay == "all" or by_deepspeed):
        yield "all weights decay, and Megatron-Bridge leaves biases and norms without decay"
    if model.blocks % plan.pipeline:
        yield f"pipeline is {plan.pipeline}, which does not divide the {model.blocks} blocks"


def _gpu_refusals(trainer: str, train: TrainSpec, device: str) -> Iterator[str]:
    if device == "cpu":
        yield f"{trainer} trains on GPUs"
    if train.method == "lora":
        yield f"train.method is lora, and the file for {trainer} trains all weights"
    if train.weight_decay and train.decay == "stock" and trainer != "Megatron-Bridge":
        yield f"train.decay is stock, and {trainer} decays all weights"
