"""Splits a parallel run into what stays in one process: a file, or what files share."""

from collections.abc import Callable
from typing import Any

from xdist.scheduler import LoadScopeScheduling


class ByFile(LoadScopeScheduling):
    """Hands out tests by scope, and each test once, though a process ends in one of them.

    LoadScopeScheduling passes on all that a lost process ever had (pytest-xdist 3.8): the test that
    ended it would end the next one, and a process that gets a scope of which nothing is left waits
    for ever.
    """

    def __init__(self, config: Any, log: Any, scope_of: Callable[[str], str]) -> None:
        super().__init__(config, log)
        self._scope_of = scope_of

    def _split_scope(self, nodeid: str) -> str:
        return self._scope_of(nodeid)

    def remove_node(self, node: Any) -> str | None:
        """Passes on what a process has left; returns the test in which it ended, if in one."""
        left = {
            scope: [nodeid for nodeid, done in tests.items() if not done]
            for scope, tests in self.assigned_work.pop(node).items()
        }
        waiting = [scope for scope, tests in left.items() if tests]
        if not waiting:
            return None
        ended_in = left[waiting[0]].pop(0)
        self.workqueue.update({s: dict.fromkeys(left[s], False) for s in waiting if left[s]})
        for other in self.assigned_work:
            self._reschedule(other)
        return ended_in
