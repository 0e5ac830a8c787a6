"""Connections that NetworkPolicies let through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.k8s.pods import COMPONENT, Pod
from tests.k8s.rendering import Resource


def passages(policies: list[Resource], pods: tuple[Pod, ...]) -> dict[tuple[str, str], set[str]]:
    """Returns for each component and direction the other ends and ports that are open.

    An end is a component, the name of a namespace, or a range of addresses; a pod and direction
    that no policy selects has the single entry `everything`.
    """
    open_to: dict[tuple[str, str], set[str]] = {}
    for pod in pods:
        for direction, field in (("Ingress", "from"), ("Egress", "to")):
            specs = [one["spec"] for one in policies if direction in one["spec"]["policyTypes"]]
            holding = [spec for spec in specs if _fits(spec["podSelector"], pod)]
            rules = [rule for spec in holding for rule in spec.get(direction.lower(), ())]
            ways = {way for rule in rules for way in _ways(rule, field, pods)}
            open_to[pod.labels[COMPONENT], direction] = ways if holding else {"everything"}
    return open_to


def _ways(rule: dict[str, Any], field: str, pods: tuple[Pod, ...]) -> Iterator[str]:
    ports = [f"{port['port']}" for port in rule.get("ports", ())] or ["*"]
    for end in rule.get(field, [{"ipBlock": {"cidr": "anywhere"}}]):
        yield from (f"{name} {port}" for name in _ends(end, pods) for port in ports)


def _ends(end: dict[str, Any], pods: tuple[Pod, ...]) -> list[str]:
    ((kind, selector),) = end.items()  # both selectors at once would be pods of another namespace
    if kind == "ipBlock":
        return [" but ".join([selector["cidr"], *selector.get("except", ())])]
    if kind == "namespaceSelector":
        return [selector["matchLabels"]["kubernetes.io/metadata.name"]]
    return [pod.labels[COMPONENT] for pod in pods if _fits(selector, pod)]


def _fits(selector: dict[str, Any], pod: Pod) -> bool:
    for expression in selector.get("matchExpressions", ()):
        assert expression["operator"] == "In", "no other operator is used"
        if pod.labels.get(expression["key"]) not in expression["values"]:
            return False
    return bool(selector.get("matchLabels", {}).items() <= pod.labels.items())
