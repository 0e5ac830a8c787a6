"""A sweep's report as one page, for somebody who was not there."""

from orchestrator.report_page.page import report_page
from orchestrator.report_page.told import Told, told_of

__all__ = ["Told", "report_page", "told_of"]
