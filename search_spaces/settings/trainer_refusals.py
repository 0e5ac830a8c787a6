"""Reasons why a trainer cannot train a plan that are no matter of a single knob."""

from collections.abc import Iterator

from search_spaces.facts import ModelFacts
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import TrainSpec

TITAN_MODELS = {  # presets that torchtitan 0.3 has, with its package and flavor
    "llama-3-8b": ("llama3", "8B"),
    "llama-3-70b": ("llama3", "70B"),
    "llama-3.1-405b": ("llama3", "405B"),
    "llama-3.2-1b": ("llama3", "1B"),
    "llama-3.2-3b": ("llama3", "3B"),
    "qwen3-8b": ("qwen3", "8B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
    "gpt-oss-20b": ("gpt_oss", "20b"),
}
TPU_FORMATS = ("torchrun", "ray-train", "rayjob")  # without the modules of a type of device
BRIDGE_MODELS = {  # dense presets with a recipe of Megatron-Bridge 0.6: its package, name, Hub id
    "llama-3-8b": ("llama", "llama3_8b_pretrain_config", "meta-llama/Meta-Llama-3-8B"),
    "llama-3-70b": ("llama", "llama3_70b_pretrain_config", "meta-llama/Meta-Llama-3-70B"),
    "llama-3.1-8b": ("llama", "llama31_8b_pretrain_config", "meta-llama/Meta-Llama-3.1-8B"),
    "llama-3.1-405b": ("llama", "llama31_405b_pretrain_config", "meta-llama/Meta-Llama-3.1-405B"),
    "llama-3.2-1b": ("llama", "llama32_1b_pretrain_config", "meta-llama/Llama-3.2-1B"),
    "llama-3.2-3b": ("llama", "llama32_3b_pretrain_config", "meta-llama/Llama-3.2-3B"),
    "qwen3-4b": ("qwen", "qwen3_4b_pretrain_config", "Qwen/Qwen3-4B"),
    "qwen3-8b": ("qwen", "qwen3_8b_pretrain_config", "Qwen/Qwen3-8B"),
}


def tpu_refusals(trainer: str, device: str) -> Iterator[str]:
    """Yields a reason if a trainer cannot train on a TPU, and Plimsoll's own scripts can."""
    if device == "tpu" and trainer not in TPU_FORMATS:
        yield f"cluster.device is tpu, and only {', '.join(TPU_FORMATS)} train on TPUs"


def accelerate_refusals(
    plan: Plan, _: SweepSpec, __: ModelFacts | None, device: str
) -> Iterator[str]:
    """Yields the reasons why Accelerate would not train a plan, or another one on a CPU.

    Source:
        accelerate/accelerator.py (1.15): `native_amp` stays False for fp16 on the CPU;
        accelerate/state.py: FSDP is for ranks with an accelerator.
    """
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
