"""Layer 1: every kustomization builds, and says what it should of what it builds on."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.k8s import rendering
from tests.k8s.rendering import COMPONENTS, K8S, OVERLAYS, build, plain_name, rendered, the


def test_there_is_something_to_render() -> None:
    assert {"local", "cloud", "cloud-kueue", "cloud-mixed", "cloud-rdma", "shared"} <= {*OVERLAYS}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_renders(overlay: str) -> None:
    resources = rendered(overlay)

    assert the(resources, "RayJob", "sweep")["metadata"]["namespace"] == "plimsoll"
    named = [(r["kind"], r["metadata"]["name"]) for r in resources]
    assert len(named) == len(set(named))


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_is_part_of_an_overlay(component: str) -> None:
    texts = [(K8S / "overlays" / one / "kustomization.yaml").read_text() for one in OVERLAYS]

    assert any(f"components/{component}\n" in text for text in texts)


def test_every_file_of_a_kustomization_is_named_in_it() -> None:
    strays = [
        file.relative_to(K8S).as_posix()
        for kustomization in K8S.rglob("kustomization.yaml")
        for file in kustomization.parent.iterdir()
        if file.is_file() and file != kustomization and file.name not in kustomization.read_text()
    ]

    assert not strays


def test_the_readme_names_every_overlay_and_nothing_that_is_not_there() -> None:
    text = (K8S / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:components|overlays|base)/[\w./-]+)`", text)
    named += re.findall(r"-k k8s/(\S+)", text)

    assert {f"| `{overlay}` |" in text for overlay in OVERLAYS} == {True}
    assert named
    assert [name for name in named if not (K8S / name).exists()] == []


def test_a_faulty_kustomization_is_told(tmp_path: Path) -> None:
    rendering.needs_kubectl()
    shutil.copytree(K8S / "base", tmp_path / "base")
    (tmp_path / "base" / "serviceaccount.yaml").unlink()

    assert "serviceaccount.yaml" in build(tmp_path / "base").stderr


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_spec_of_the_overlay_is_mounted(overlay: str) -> None:
    """The hash of a generated ConfigMap reaches fields that kustomize does not know."""
    resources = rendered(overlay)
    config = next(resource for resource in resources if plain_name(resource) == "sweep-spec")
    own = K8S / "overlays" / overlay / "sweep.yaml"
    if not own.exists():
        own = K8S / "base" / "sweep.yaml"
        if overlay.startswith("cloud-"):  # on top of cloud
            own = K8S / "overlays" / "cloud" / "sweep.yaml"

    assert config["data"] == {"sweep.yaml": own.read_text()}
    # a new spec is another name, so that a RayJob which still mounts the old one is told apart; but
    # what mounts it in a cluster that stays must not change its name
    stays = any(one["kind"] == "RayCluster" for one in resources)
    assert (config["metadata"]["name"] == "sweep-spec") is stays


def test_kueue_gets_a_queue_and_a_job_that_waits() -> None:
    job = the(rendered("cloud-kueue"), "RayJob")

    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "plimsoll"
    assert job["spec"]["suspend"] is True
    assert job["spec"]["shutdownAfterJobFinishes"] is True  # as Kueue asks
    assert "enableInTreeAutoscaling" not in job["spec"]["rayClusterSpec"]
    assert len(job["spec"]["rayClusterSpec"]["workerGroupSpecs"]) <= 17


def test_artifacts_in_a_bucket_leave_no_volume_behind() -> None:
    resources = rendered("cloud")

    assert not [one for one in resources if one["kind"] == "PersistentVolumeClaim"]
    config = next(one for one in resources if plain_name(one) == "mlflow-environment")
    assert config["data"]["MLFLOW_ARTIFACTS_DESTINATION"].startswith("s3://")
    assert config["data"]["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"  # merged, not replaced
    mlflow = the(resources, "Deployment")["spec"]["template"]["spec"]
    assert [volume["name"] for volume in mlflow["volumes"]] == ["tmp"]
    assert len(mlflow["containers"][0]["envFrom"]) == 2


def test_the_dashboard_is_found_by_its_label() -> None:
    config = the(rendered("cloud"), "ConfigMap", "plimsoll-dashboard")

    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert yaml.safe_load(config["data"]["plimsoll.json"])["title"]


@pytest.mark.parametrize(
    ("promised", "outcome"), [("required", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_without_kubectl_ci_fails_and_a_developer_goes_on(
    promised: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLIMSOLL_KUBECTL", promised)
    rendering._lack.cache_clear()
    try:
        with pytest.raises(outcome, match="no kubectl"):
            rendering.needs_kubectl()
    finally:
        rendering._lack.cache_clear()
