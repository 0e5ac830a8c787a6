"""Connections of each pod, by the NetworkPolicies of each overlay."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.k8s.pods import COMPONENT, Pod, pods
from tests.k8s.rendering import OVERLAYS, Resource, rendered

NAMES = {"kube-system 53", "169.254.20.10/32 53"}  # where names are looked up
# without the addresses from which clouds hand out the keys of a node
OUTSIDE = (
    "0.0.0.0/0 but 169.254.0.0/16 but 100.100.100.200/32 but 168.63.129.16/32 but 192.0.0.192/32",
    "::/0 but fd00:ec2::/32 but fe80::/10",
)
RAY = {"head *", "worker *"}
PASSAGES = {
    ("head", "Ingress"): RAY | {"submitter 8265", "kuberay-system 8265", "monitoring 8080"},
    ("head", "Egress"): RAY | NAMES | {"database 5432", "tracking 5000"},
    ("worker", "Ingress"): RAY | {"monitoring 8080"},
    ("worker", "Egress"): RAY | NAMES,
    ("submitter", "Ingress"): set(),
    ("submitter", "Egress"): NAMES | {"head 8265"},
    ("database", "Ingress"): {"head 5432", "tracking 5432"},
    ("database", "Egress"): NAMES,
    ("tracking", "Ingress"): {"head 5000"},
    ("tracking", "Egress"): NAMES | {"database 5432"} | {f"{one} 443" for one in OUTSIDE},
}
AUTOSCALER = {f"{one} {port}" for one in OUTSIDE for port in (443, 6443)}  # to the API server


def passages(policies: list[Resource], of: tuple[Pod, ...]) -> dict[tuple[str, str], set[str]]:
    """Returns for each component and direction the other ends and ports that are open.

    An end is a component, the name of a namespace, or a range of addresses; a pod and direction
    that no policy selects has the single entry `everything`.
    """
    open_to: dict[tuple[str, str], set[str]] = {}
    for pod in of:
        for direction, field in (("Ingress", "from"), ("Egress", "to")):
            specs = [one["spec"] for one in policies if direction in one["spec"]["policyTypes"]]
            holding = [spec for spec in specs if _fits(spec["podSelector"], pod)]
            rules = [rule for spec in holding for rule in spec.get(direction.lower(), ())]
            ways = {way for rule in rules for way in _ways(rule, field, of)}
            open_to[pod.labels[COMPONENT], direction] = ways if holding else {"everything"}
    return open_to


def _ways(rule: dict[str, Any], field: str, of: tuple[Pod, ...]) -> Iterator[str]:
    ports = [f"{port['port']}" for port in rule.get("ports", ())] or ["*"]
    for end in rule.get(field, [{"ipBlock": {"cidr": "anywhere"}}]):
        yield from (f"{name} {port}" for name in _ends(end, of) for port in ports)


def _ends(end: dict[str, Any], of: tuple[Pod, ...]) -> list[str]:
    ((kind, selector),) = end.items()  # both selectors at once would be pods of another namespace
    if kind == "ipBlock":
        return [" but ".join([selector["cidr"], *selector.get("except", ())])]
    if kind == "namespaceSelector":
        return [selector["matchLabels"]["kubernetes.io/metadata.name"]]
    return [pod.labels[COMPONENT] for pod in of if _fits(selector, pod)]


def _fits(selector: dict[str, Any], pod: Pod) -> bool:
    for expression in selector.get("matchExpressions", ()):
        assert expression["operator"] == "In", "no other operator is used"
        if pod.labels.get(expression["key"]) not in expression["values"]:
            return False
    return bool(selector.get("matchLabels", {}).items() <= pod.labels.items())


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_reach_what_they_need_and_nothing_else(overlay: str) -> None:
    """Both ends are listed, so that each refuses by itself."""
    resources = rendered(overlay)
    policies = [one for one in resources if one["kind"] == "NetworkPolicy"]
    expected = PASSAGES
    if overlay == "shared":
        expected = {**PASSAGES, ("head", "Egress"): PASSAGES["head", "Egress"] | AUTOSCALER}

    if overlay == "data":
        expected = {
            **PASSAGES,
            ("head", "Egress"): PASSAGES["head", "Egress"] | {f"{one} 443" for one in OUTSIDE},
            ("tracking", "Ingress"): {"head 5000", "ingress-nginx 5000"},
        }

    assert passages(policies, pods(resources)) == expected


def test_a_pod_that_no_policy_selects_is_open() -> None:
    resources = rendered("cloud")
    policies = [
        one
        for one in resources
        if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] != "nothing-unless-named"
    ]

    assert passages(policies, pods(resources))["submitter", "Ingress"] == {"everything"}
