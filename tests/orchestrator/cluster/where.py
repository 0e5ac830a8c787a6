"""A model that records on which node of one machine it is built: each has its own mounts."""

from pathlib import Path

_MODEL = """
import os
import time
from pathlib import Path
import torch
from torch import nn

class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        time.sleep(0.01)  # a trial takes its seconds and leaves the processor to others
        return self.layer(x).square().mean()

def make():
    with open("{folder}/nodes", "a") as file:
        print(os.readlink("/proc/self/ns/mnt"), file=file)
    return Tiny(), lambda numbers: {{"x": torch.ones(len(numbers), 8)}}
"""


def where_model(folder: Path) -> str:
    """Writes a module with `make`, which appends to the file `nodes` in the folder."""
    return _MODEL.format(folder=folder)
