"""A plan of a study as files that another trainer starts."""

from orchestrator.export.bundle import write_bundle
from orchestrator.export.formats import FORMATS, every_export, exported, fitting
from orchestrator.export.taken import Taken, chosen_record, taken

__all__ = [
    "FORMATS",
    "Taken",
    "chosen_record",
    "every_export",
    "exported",
    "fitting",
    "taken",
    "write_bundle",
]
