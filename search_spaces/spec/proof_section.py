"""What the user asks of the proof: how the best plan is run once more before it is the answer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from search_spaces.spec.section import Count, Section


class ProofSpec(Section):
    """When the search is over, the best plan is run once more, beyond `budget.minutes`."""

    enabled: bool = Field(
        default=True,
        description="prove the best plan (`plimsoll tune --no-proof` does not): in workers of its"
        " own, longer, the longest samples first, with an evaluation pass and a checkpoint, its"
        " losses held against another plan's",
    )
    tries: Count = Field(
        default=3, description="plans that are proven at most, one after the other until one holds"
    )
    longer: Annotated[float, Field(ge=1, le=1000)] = Field(
        default=3.0,
        description="how many times the steps and seconds of a trial a proof may take,"
        " to half of objective.interval",
    )
    slower: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.1,
        description="a proof fails if its speed lies this share below its trial's,"
        " both intervals allowed for",
    )
    folder: str | None = Field(
        default=None,
        min_length=1,
        description="where each rank writes its part of the checkpoint and removes it again;"
        " nothing: study.folder if the rank's machine has it, else the system's temporary folder",
    )
