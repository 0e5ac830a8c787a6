"""Pages shared by several test modules, made once."""

import pytest

from tests.orchestrator.report.pages import every_page


@pytest.fixture(scope="session")
def pages() -> dict[str, str]:
    return every_page()
