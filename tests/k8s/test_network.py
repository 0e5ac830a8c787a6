"""Connections between pods, by the NetworkPolicies of the overlays that have them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.k8s.pods import Pod, pods
from tests.k8s.reachability import allowed, unselected
from tests.k8s.rendering import OVERLAYS, Resource, rendered

# from which clouds hand out keys of a node, and of whoever may write its metadata
METADATA = ("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254")
STRANGER = Pod(name="stranger", owner="Pod", labels={"app": "stranger"}, spec={})


def network(overlay: str) -> tuple[list[Resource], dict[str, Pod]]:
    """The policies of an overlay and its pods by what they are."""
    resources = rendered(overlay)
    found = {pod.labels["app.kubernetes.io/component"]: pod for pod in pods(resources)}
    return [one for one in resources if one["kind"] == "NetworkPolicy"], found


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_pod_is_left_open(overlay: str) -> None:
    policies, found = network(overlay)

    assert {"head", "worker", "submitter", "database", "tracking"} == found.keys()
    assert [told for pod in found.values() for told in unselected(policies, pod)] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize(
    ("source", "target", "port"),
    [
        ("submitter", "head", 8265),
        ("head", "worker", 40000),
        ("worker", "head", 6379),
        ("worker", "worker", 50000),
        ("head", "database", 5432),
        ("head", "tracking", 5000),
        ("tracking", "database", 5432),
    ],
)
def test_what_has_to_talk_can(overlay: str, source: str, target: str, port: int) -> None:
    policies, found = network(overlay)

    assert allowed(policies, port, source=found[source], target=found[target])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_lies_outside_is_reached_where_it_has_to_be(overlay: str) -> None:
    policies, found = network(overlay)
    for pod in found.values():
        assert allowed(policies, 53, source=pod, elsewhere="kube-system", protocol="UDP")
    assert allowed(policies, 8265, target=found["head"], elsewhere="kuberay-system")
    for component in ("head", "worker"):
        assert allowed(policies, 8080, target=found[component], elsewhere="monitoring")
    assert allowed(policies, 443, source=found["tracking"])  # the bucket
    assert allowed(policies, 443, source=found["head"]) is (overlay in ("cloud-mixed", "shared"))


FORBIDDEN = [
    ("stranger", "head", 8265),
    ("stranger", "head", 6379),
    ("stranger", "tracking", 5000),
    ("stranger", "database", 5432),
    ("worker", "database", 5432),
    ("worker", "tracking", 5000),
    ("submitter", "head", 6379),
    ("submitter", "database", 5432),
    ("tracking", "head", 8265),
    ("database", "head", 8265),
]


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize(("source", "target", "port"), FORBIDDEN)
@pytest.mark.parametrize("wall", ["Ingress", "Egress"])
def test_what_need_not_talk_cannot(
    overlay: str, source: str, target: str, port: int, wall: str
) -> None:
    """Each end refuses by itself, should the other be opened one day."""
    policies, found = network(overlay)
    found["stranger"] = STRANGER
    standing = [one for one in policies if wall in one["spec"]["policyTypes"]]
    for policy in standing:
        policy["spec"]["policyTypes"] = [wall]

    assert not allowed(standing, port, source=found[source], target=found[target])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_neither_the_job_port_nor_the_way_out_is_open_to_all(overlay: str) -> None:
    policies, found = network(overlay)
    for component in found:
        assert not allowed(policies, 8265, target=found[component], elsewhere="default")
    for component in ("worker", "submitter", "database"):
        assert not allowed(policies, 443, source=found[component])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_s12_s13_no_pod_reaches_the_metadata_of_its_node(overlay: str) -> None:
    policies, found = network(overlay)
    for pod in found.values():
        for address in METADATA:
            for port in (80, 443):
                assert not allowed(policies, port, source=pod, address=address), (pod.name, address)


@pytest.mark.parametrize(
    "way_out", [{}, {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}], ids=["no end", "no exception"]
)
def test_s12_a_way_out_without_exceptions_is_told(way_out: dict[str, Any]) -> None:
    policies, found = network("shared")
    (policy,) = [one for one in policies if one["metadata"]["name"] == "autoscaler-to-api-server"]
    policy["spec"]["egress"] = [{**way_out, "ports": [{"protocol": "TCP", "port": 443}]}]

    assert allowed(policies, 443, source=found["head"], address=METADATA[0])


def test_without_the_policy_for_all_a_pod_is_open() -> None:
    """The checker itself: what no policy selects is told, and can be reached."""
    policies, found = network("cloud")
    left: list[Any] = [one for one in policies if one["metadata"]["name"] != "nothing-unless-named"]

    assert allowed(left, 443, target=found["submitter"])
    assert list(unselected(left, found["submitter"]))
