"""The view of a sweep in a notebook, with a stand-in for IPython, which draws there."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from orchestrator.report.live import LiveView, PlainView, make_view
from tests.orchestrator.report.test_live import STARTED, busy_state


class Handle:
    """Handle of a displayed line, which keeps what it showed."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.texts.append(data["text/plain"])


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Handle:
    """Stands in for the IPython of a notebook's kernel."""
    shown = Handle()

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert display_id
        shown.update(data, raw=raw)
        return shown

    ipython, module = ModuleType("IPython"), ModuleType("IPython.display")
    vars(ipython).update(get_ipython=lambda: SimpleNamespace(kernel=object()), display=module)
    vars(module).update(display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return shown


def test_a_notebook_has_one_line_that_replaces_itself(handle: Handle) -> None:
    view = make_view()

    view.on_event(STARTED, busy_state())

    assert handle.texts[0] == "starting"
    assert len(handle.texts) == 2
    assert handle.texts[1].startswith("[0:02:00] trial 11 starts: ")


def test_a_command_of_a_cell_draws_no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-color"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GIT_PAGER", raising=False)
    assert isinstance(make_view(), LiveView)
    monkeypatch.setenv("GIT_PAGER", "cat")

    assert isinstance(make_view(), PlainView)
