"""Process of a lone worker, which takes requests until its pipe is closed."""

from __future__ import annotations

import os
import platform
import sys
from multiprocessing.connection import Connection

from orchestrator.host import package_versions
from search_spaces.facts import ClusterFacts
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Fingerprint


def serve(spec: SweepSpec, pipe: Connection) -> None:
    """Starts a worker, says what it is, and answers each request with an outcome.

    What libraries write to standard output goes to standard error, since a part prints its table
    last. That the driver's process goes away ends this one too.
    """
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    from workers.entry import run_trial, warm_up
    from workers.probe.doctor import lacks
    from workers.worker import Worker

    worker = Worker.start(spec)
    warm_up(spec, worker)
    seen = Fingerprint(
        device=worker.device.type,
        device_name=worker.device_name,
        device_memory_bytes=worker.meter.limit_bytes,
        hosts=1,
        python=platform.python_version(),
        versions=package_versions(),
    )
    here = ClusterFacts(
        device=worker.device.type,
        slots=1,
        memory_limit_bytes=spec.memory_limit_bytes,
        lacks=lacks(worker.device.type),
    )
    try:
        pipe.send((seen, here))
        while (request := pipe.recv()) is not None:
            pipe.send(run_trial(request, worker))
    except (EOFError, BrokenPipeError):
        return
