"""Every kustomization builds, and holds what it should of what it builds on."""

from pathlib import Path

import pytest
import yaml

from tests.k8s.pods import pods
from tests.k8s.rendering import (
    COMPONENTS,
    K8S,
    OVERLAYS,
    example_secrets,
    needs_kubectl,
    plain_name,
    rendered,
    the,
    unresolved,
)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_renders_with_its_own_sweep(overlay: str) -> None:
    """The hash of a generated ConfigMap reaches fields that kustomize does not know."""
    resources = rendered(overlay)
    config = next(one for one in resources if plain_name(one) == "sweep-spec")
    own = K8S / "overlays" / overlay / "sweep.yaml"

    assert the(resources, "RayJob", "sweep")["metadata"]["namespace"] == "plimsoll"
    text = (own if own.exists() else K8S / "base" / "sweep.yaml").read_text()
    assert config["data"] == {"sweep.yaml": text}
    # a new spec has a new name, so that a RayJob which mounts the old one is told apart; but what a
    # cluster that stays mounts must keep its name
    stays = any(one["kind"] == "RayCluster" for one in resources)
    assert (config["metadata"]["name"] == "sweep-spec") is stays


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_names_and_selectors_lead_somewhere(overlay: str) -> None:
    resources = rendered(overlay)
    labels = [pod.labels.items() for pod in pods(resources)]

    assert unresolved(resources, example_secrets()) == set()
    for kind in ("Service", "PodDisruptionBudget", "PodMonitor"):
        for one in (one for one in resources if one["kind"] == kind):
            selector = one["spec"]["selector"]
            wanted = selector.get("matchLabels", selector).items()
            assert any(wanted <= of for of in labels), one["metadata"]["name"]


def test_a_name_that_leads_nowhere_is_reported() -> None:
    """Leaves out base/references.yaml, which brings a ConfigMap's hashed name to the RayJob."""
    resources = rendered("local")
    the(resources, "ConfigMap", "sweep-spec")["metadata"]["name"] = "sweep-spec"

    (name,) = unresolved(resources, example_secrets())
    assert name.startswith("ConfigMap sweep-spec-")


def test_every_file_is_part_of_an_overlay_that_the_readme_names() -> None:
    kustomizations = {file: file.read_text() for file in K8S.rglob("kustomization.yaml")}
    used = "".join(text for file, text in kustomizations.items() if "overlays" in file.parts)
    readme = (K8S.parent / "docs" / "kubernetes.md").read_text(encoding="utf-8")

    assert [one for one in COMPONENTS if f"components/{one}\n" not in used] == []
    assert [one for one in OVERLAYS if f"| `{one}` |" not in readme] == []
    for kustomization, text in kustomizations.items():
        for file in kustomization.parent.iterdir():
            assert file.is_dir() or file == kustomization or file.name in text, file


def test_artifacts_in_a_bucket_leave_no_volume_behind() -> None:
    resources = rendered("cloud")

    assert not [one for one in resources if one["kind"] == "PersistentVolumeClaim"]
    config = next(one for one in resources if plain_name(one) == "mlflow-environment")
    assert config["data"]["MLFLOW_ARTIFACTS_DESTINATION"].startswith("s3://")
    assert config["data"]["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"  # merged, not replaced
    mlflow = the(resources, "Deployment")["spec"]["template"]["spec"]
    assert [volume["name"] for volume in mlflow["volumes"]] == ["tmp"]


def test_the_dashboard_is_found_by_its_label() -> None:
    config = the(rendered("cloud"), "ConfigMap", "plimsoll-dashboard")

    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert yaml.safe_load(config["data"]["plimsoll.json"])["title"]


@pytest.mark.parametrize(
    ("promised", "outcome"), [("required", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_without_kubectl_ci_fails_and_a_developer_skips(
    promised: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLIMSOLL_KUBECTL", promised)
    with pytest.raises(outcome, match="no kubectl"):
        needs_kubectl()
