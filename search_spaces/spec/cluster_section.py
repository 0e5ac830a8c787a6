"""The section of a specification that says where it is trained."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from search_spaces.spec.section import Count, Section

Device = Literal["auto", "cpu", "cuda"]

# Keys of `cluster` that a measurement does not depend on: where it is, and how a sweep uses it
ASIDE = frozenset({"address", "gpu", "gpus_per_node", "groups", "price_per_gpu_hour"})


class AcceleratorSpec(Section):
    """One kind of nodes of a cluster that has several; what is left out is as `cluster` has it."""

    gpu: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="the GPU for forecasts, such as H100 or A100-40; nothing: what the kind's"
        " name says",
    )
    price_per_gpu_hour: float | None = Field(
        default=None, gt=0, description="price of one of them for an hour"
    )
    memory_gib: float | None = Field(
        default=None, gt=0, description="memory one rank may use there, in GiB"
    )


class ClusterSpec(Section):
    """Where it is trained: which Ray cluster, how many ranks, how much memory each."""

    address: str | None = Field(
        default=None,
        description="Ray cluster to join (host:port, or auto);"
        " nothing: the one this job runs in, else a local one is started",
    )
    device: Device = Field(default="auto", description="auto takes CUDA where the cluster has it")
    workers: Count | Literal["auto"] = Field(
        default="auto",
        description="ranks of a plan, one per GPU or CPU slot; auto takes all there are",
    )
    groups: Count | Literal["auto"] = Field(
        default="auto",
        description="trials that run at the same time, each on workers of its own; auto: where"
        " workers is a number, as many as have nodes to themselves and the head node has memory for"
        " (one is waited for); else one, on each kind of accelerators",
    )
    share_nodes: bool = Field(
        default=False,
        description="let trials that run at the same time share nodes, where they disturb each"
        " other's measurements",
    )
    wait_minutes: float = Field(
        default=5.0,
        ge=0,
        allow_inf_nan=False,
        description="how long to wait for nodes of a cluster that was joined, which an autoscaler"
        " may bring or which were lost",
    )
    start_minutes: float = Field(
        default=5.0,
        gt=0,
        allow_inf_nan=False,
        description="how long workers may take to start and to load what they train, once their"
        " nodes are up; then they are replaced, once for each trial",
    )
    gpu: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="the GPU that `plimsoll plan` forecasts for, such as H100 or A100-40;"
        " nothing: what this machine has",
    )
    gpus_per_node: Count | None = Field(
        default=None,
        description="GPUs that fast links join, for `plimsoll plan`; nothing: as usual for the GPU",
    )
    price_per_gpu_hour: float | None = Field(
        default=None,
        ge=0,
        description="price of a GPU (on CPU: of a rank) for an hour, in any currency,"
        " for `plimsoll plan` and objective.metric samples_per_price",
    )
    accelerators: dict[str, AcceleratorSpec] = Field(
        default_factory=dict,
        description="kinds of nodes to search among, by what Ray calls their accelerators (the"
        " label ray.io/accelerator-type), each with gpu, price_per_gpu_hour and memory_gib where"
        " they differ; nothing: the kind with room for most ranks is used, others are left alone",
    )
    cpus_per_worker: Count = Field(default=1, description="CPU cores and threads of each rank")
    memory_gib: float | None = Field(
        default=None,
        gt=0,
        description="memory one rank may use, in GiB: on CPU above the bare worker,"
        " on CUDA of the device; nothing: all there is",
    )
    nvme_folder: str | None = Field(
        default=None,
        min_length=1,
        description="a folder on each node's NVMe drive, for what is offloaded to it",
    )

    @property
    def price_on(self) -> dict[str, float]:
        """What a GPU of each kind costs for an hour; nothing if one of them has no price."""
        each = {
            name: told.price_per_gpu_hour or self.price_per_gpu_hour
            for name, told in self.accelerators.items()
        }
        known = {name: price for name, price in each.items() if price}
        return known if len(known) == len(each) else {}

    @property
    def is_priced(self) -> bool:
        """Whether it is known what any rank costs."""
        return bool(self.price_on if self.accelerators else self.price_per_gpu_hour)

    @field_validator("accelerators", mode="before")
    @classmethod
    def _kinds_need_no_words(cls, value: Any) -> Any:
        """`{H100: }` describes nothing, and a list of names neither."""
        if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
            return {name: {} for name in value}
        if isinstance(value, dict):
            return {name: {} if told is None else told for name, told in value.items()}
        return value

    def ranks_of(self, slots: int) -> int:
        """Ranks of a plan on a cluster that has room for so many."""
        groups = 1 if self.groups == "auto" else self.groups
        return max(slots // groups, 1) if self.workers == "auto" else self.workers
