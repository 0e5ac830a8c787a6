"""Reachability of pods by the NetworkPolicies, as a network plugin would decide it."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from tests.k8s.pods import Pod
from tests.k8s.rendering import Resource

Labels = dict[str, str]
OUTSIDE = "198.51.100.7"  # a stranger's, of those for documentation


def allowed(
    policies: list[Resource],
    port: int,
    *,
    source: Pod | None = None,
    target: Pod | None = None,
    elsewhere: str = "default",
    protocol: str = "TCP",
    address: str = OUTSIDE,
) -> bool:
    """Returns whether a connection comes about.

    An end of None is a pod in the namespace `elsewhere`, or has this address outside.
    """
    leaves = source is None or _passes(
        "Egress", policies, source, target, (elsewhere, address), port, protocol
    )
    enters = target is None or _passes(
        "Ingress", policies, target, source, (elsewhere, address), port, protocol
    )
    return leaves and enters


def unselected(policies: list[Resource], pod: Pod) -> Iterator[str]:
    """Directions in which no policy holds for a pod, so that all is open."""
    for direction in ("Ingress", "Egress"):
        if not any(_holds(policy, direction, pod) for policy in policies):
            yield f"{pod.name}: no policy for its {direction}"


def _holds(policy: Resource, direction: str, pod: Pod) -> bool:
    spec = policy["spec"]
    return direction in spec["policyTypes"] and _fits(spec["podSelector"], pod.labels)


def _passes(
    direction: str,
    policies: list[Resource],
    pod: Pod,
    peer: Pod | None,
    beyond: tuple[str, str],
    port: int,
    protocol: str,
) -> bool:
    holding = [policy for policy in policies if _holds(policy, direction, pod)]
    rules = [rule for policy in holding for rule in policy["spec"].get(direction.lower(), ())]
    return not holding or any(_rule(rule, peer, beyond, port, protocol) for rule in rules)


def _rule(
    rule: dict[str, Any], peer: Pod | None, beyond: tuple[str, str], port: int, protocol: str
) -> bool:
    ports = rule.get("ports")
    if ports and {"port": port, "protocol": protocol} not in ports:
        return False
    ends = rule.get("from", rule.get("to"))
    return ends is None or any(_end(end, peer, *beyond) for end in ends)


def _end(end: dict[str, Any], peer: Pod | None, elsewhere: str, address: str) -> bool:
    if "ipBlock" in end:  # of pods, it is their labels that are asked for
        return peer is None and _is_in(ip_address(address), **end["ipBlock"])
    if peer is None:
        names = {"kubernetes.io/metadata.name": elsewhere}
        return "namespaceSelector" in end and _fits(end["namespaceSelector"], names)
    return "namespaceSelector" not in end and _fits(end["podSelector"], peer.labels)


def _is_in(address: IPv4Address | IPv6Address, *, cidr: str, **exceptions: list[str]) -> bool:
    excluded = exceptions.get("except", [])
    return address in ip_network(cidr) and not any(address in ip_network(one) for one in excluded)


def _fits(selector: dict[str, Any], labels: Labels) -> bool:
    for expression in selector.get("matchExpressions", ()):
        assert expression["operator"] == "In", "no other operator is used"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return bool(selector.get("matchLabels", {}).items() <= labels.items())
