"""Logging of the job client, without a server."""

from __future__ import annotations

import logging

import pytest
from ray._private.runtime_env import packaging
from ray.dashboard.modules import dashboard_sdk
from ray.dashboard.modules.job import sdk

from orchestrator.cluster import jobs


def test_rays_progress_is_muted_and_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    chatty = [dashboard_sdk.logger, sdk.logger, packaging.default_logger]
    for logger in chatty:
        monkeypatch.setattr(logger, "level", logging.INFO)
        logger.manager._clear_cache()
    assert all(logger.isEnabledFor(logging.INFO) for logger in chatty)
    own = logging.getLogger("a.users.own")
    own.setLevel(logging.INFO)

    jobs.silence_client()

    assert not any(logger.isEnabledFor(logging.INFO) for logger in chatty)
    assert all(logger.isEnabledFor(logging.WARNING) for logger in chatty)
    assert own.isEnabledFor(logging.INFO)
