"""Connections of each pod, by the NetworkPolicies of each overlay."""

from __future__ import annotations

import pytest

from tests.k8s.network import passages
from tests.k8s.pods import pods
from tests.k8s.rendering import OVERLAYS, rendered

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


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_reach_what_they_need_and_nothing_else(overlay: str) -> None:
    """Both ends are listed, so that each refuses by itself."""
    resources = rendered(overlay)
    policies = [one for one in resources if one["kind"] == "NetworkPolicy"]
    expected = PASSAGES
    if overlay == "shared":
        expected = {**PASSAGES, ("head", "Egress"): PASSAGES["head", "Egress"] | AUTOSCALER}

    assert passages(policies, pods(resources)) == expected


def test_a_pod_that_no_policy_selects_is_open() -> None:
    resources = rendered("cloud")
    policies = [
        one
        for one in resources
        if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] != "nothing-unless-named"
    ]

    assert passages(policies, pods(resources))["submitter", "Ingress"] == {"everything"}
