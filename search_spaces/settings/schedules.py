"""Pipeline schedules: how many stages a rank has, which ones, and what the order costs."""

from collections.abc import Mapping
from dataclasses import dataclass

from search_spaces.plan import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleShape:
    """A schedule of `torch.distributed.pipelining`.

    Attributes:
        stages_per_rank: Stages on each rank.
        is_v_shaped: The second stages are on the ranks in reverse order, so that the first rank has
            the first and the last stage; else stage i is on rank i modulo the number of ranks.
        splits_backward: Gradients of weights are computed apart from those of hidden states, in the
            time that ranks would wait.
        bubble: Time that a rank waits in a step, as a share of the same for 1F1B, where forward,
            gradients of hidden states and gradients of weights take equally long.
        fill: Micro-batches per rank of the pipeline that it needs at least.
        extra_in_flight: Micro-batches whose activations a rank holds beyond one per rank of the
            pipeline.

    Source:
        Huang et al. 2019, arXiv:1811.06965 (GPipe); Narayanan et al. 2021, arXiv:2104.04473 (1F1B,
        interleaved); Qi et al. 2023, arXiv:2401.10241 (zero bubble, ZB-V); DeepSeek-AI 2024,
        arXiv:2412.19437 (DualPipe). `tests/workers/parallel/test_schedules.py` holds these
        numbers against the orders that torch generates.
    """

    stages_per_rank: int = 1
    is_v_shaped: bool = False
    splits_backward: bool = False
    bubble: float = 1.0
    fill: int = 0
    extra_in_flight: float = 0.0

    def stages_of(self, rank: int, ranks: int) -> tuple[int, ...]:
        """Returns the indices of a rank's stages, in a pipeline of `ranks` ranks."""
        last = self.stages_per_rank * ranks - 1
        if self.is_v_shaped:
            return (rank, last - rank)
        return tuple(range(rank, last + 1, ranks))


SCHEDULES: Mapping[Schedule, ScheduleShape] = {
    "gpipe": ScheduleShape(),
    "1f1b": ScheduleShape(fill=1),
    "interleaved": ScheduleShape(stages_per_rank=2, bubble=1 / 2),
    "interleaved_zero_bubble": ScheduleShape(stages_per_rank=2, splits_backward=True, bubble=1 / 6),
    "zbv": ScheduleShape(
        stages_per_rank=2, is_v_shaped=True, splits_backward=True, bubble=1 / 6, fill=2
    ),
    "dualpipev": ScheduleShape(
        stages_per_rank=2,
        is_v_shaped=True,
        splits_backward=True,
        bubble=1 / 6,
        fill=2,
        extra_in_flight=0.5,
    ),
}
