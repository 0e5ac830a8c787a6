"""Whether an exported folder, run as it is, does what was measured."""

from orchestrator.verifying.judging import Finding, changed_files, judged
from orchestrator.verifying.running import SeenRank, witnessed

__all__ = ["Finding", "SeenRank", "changed_files", "judged", "witnessed"]
