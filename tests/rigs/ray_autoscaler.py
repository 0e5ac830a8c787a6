"""Nodes that Ray's own autoscaler brings to a head, with the provider that Ray tests it with."""

import json
from dataclasses import dataclass
from pathlib import Path

_FAKE = "ray.autoscaler._private.fake_multi_node.node_provider"
_FAKE_HEAD = "f" * 51 + "00000"
_FAKE_HEAD_KIND = "ray.head.default"
_COMMANDS = (  # none, but Ray reads each
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
    "cluster_synced_files",
    "rsync_exclude",
    "rsync_filter",
)


@dataclass(frozen=True)
class Brought:
    """Nodes that an autoscaler brings when they are asked for, and takes when they are idle."""

    cpus: int
    most: int
    idle_seconds: float = 8.0  # longer than a busy machine is late, shorter than workers start

    def options(self, folder: Path, gcs: str) -> list[str]:
        """Returns options of a head that runs Ray's autoscaler, with Ray's provider for tests."""
        kinds = {
            _FAKE_HEAD_KIND: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "brought": {
                "resources": {"CPU": self.cpus, "object_store_memory": 80_000_000},
                "node_config": {},
                "min_workers": 0,
                "max_workers": self.most,
            },
        }
        config = {
            "cluster_name": "test",
            "max_workers": self.most,
            # Ray's wheel lacks a file that it reads for "fake_multinode"
            "provider": {
                "type": "external",
                "module": f"{_FAKE}.FakeMultiNodeProvider",
                "gcs_address": gcs,
                "head_node_id": _FAKE_HEAD,
                "launch_multiple": True,
            },
            "available_node_types": kinds,
            "head_node_type": _FAKE_HEAD_KIND,
            "idle_timeout_minutes": self.idle_seconds / 60,
            "file_mounts": {},
            **{key: [] for key in _COMMANDS},
        }
        file = folder / "autoscaling.json"
        file.write_text(json.dumps(config))
        return [f"--autoscaling-config={file}"]

    @property
    def environ(self) -> dict[str, str]:
        """Environment of the head alone."""
        return {
            "RAY_FAKE_CLUSTER": "1",
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "RAY_enable_autoscaler_v2": "1",
            "RAY_CLOUD_INSTANCE_ID": _FAKE_HEAD,
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _FAKE_HEAD,
        }
