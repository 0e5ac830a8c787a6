"""Tensor ranks split by Plimsoll, and by transformers' own `tp_plan`: seconds per step on CPUs.

    torchrun --nproc-per-node 2 -m benchmarks.tensor_ranks [--out FILE]

Both train the same Llama (8 blocks of width 512, 4 samples of 256 tokens) in fp32 with AdamW, by
turns in both orders; each rank has one thread.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.output import write
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from workers.api import apply_plan

TURNS, STEPS, WARM = 4, 6, 2
RATE = 1e-3
CONFIG = {
    **{"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "vocab_size": 4000},
    **{"num_attention_heads": 8, "num_key_value_heads": 8, "use_cache": False},
}
PLAN = {
    **{"data": 1, "zero_stage": 0, "micro_batch": 4, "accumulation": 1, "batching": "padded"},
    **{"checkpoint_ratio": 0.0, "attention": "sdpa", "precision": "fp32"},
}
Step = Callable[[], float]


def ours(folder: str, batch: dict[str, torch.Tensor]) -> Step:
    """Returns a step of the model as a plan with tensor ranks splits it."""
    train = {"global_batch": 4, "sequence_length": 256, "learning_rate": RATE, "precision": "fp32"}
    spec = SweepSpec.model_validate(
        {"model": {"name": folder}, "train": train, "cluster": {"device": "cpu"}}
    )
    plan = Plan.from_dict({**PLAN, "tensor": dist.get_world_size()})
    applied = apply_plan(AutoModelForCausalLM.from_pretrained(folder), plan, spec)
    return lambda: applied.step([batch])


def theirs(folder: str, batch: dict[str, torch.Tensor]) -> Step:
    """Returns a step of the model as transformers splits it."""
    model = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto")
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, foreach=False)

    def step() -> float:
        loss: Any = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.full_tensor() if isinstance(loss, DTensor) else loss)

    return step


def main() -> None:
    """Times both; the first rank writes medians and the losses of the first step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to keep the figures")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as own:
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(LlamaConfig(**CONFIG)).save_pretrained(own)
        shared = [own]
        dist.broadcast_object_list(shared)  # the first rank alone has saved it
        folder = shared[0]
        ids = torch.randint(4000, (4, 256), generator=torch.Generator().manual_seed(0))
        batch = {"input_ids": ids, "labels": ids}
        steps = {"ours": ours(folder, batch), "transformers": theirs(folder, batch)}
        losses = {name: [step() for _ in range(WARM)] for name, step in steps.items()}
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(TURNS):
            for name, step in list(steps.items())[:: (-1) ** turn]:
                for _ in range(STEPS):
                    dist.barrier()
                    began = time.perf_counter()
                    step()
                    seconds[name].append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        medians = {name: statistics.median(each) for name, each in seconds.items()}
        figures = {"median_seconds": medians, "losses": losses, "seconds": seconds}
        write(figures, out)
        print({name: round(value, 3) for name, value in medians.items()}, losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
