"""Ranks meet at a store that listens where it is told, and send each other texts, not pickles."""

import json
import multiprocessing
import os
import pickle
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch.distributed as dist

from workers.entry import _exchanged
from workers.process_groups import Ranks, Rendezvous, join_group, stay_on_loopback

LONG = 100_000


def _rank(rank: int, at: Rendezvous, listener: Any, folder: Path) -> None:
    join_group(at, rank, listener)
    ranks = Ranks.join(600.0)
    texts = ranks.gather(b"\xff\x00" * LONG if rank else b"")
    listening = {
        connection.laddr.ip
        for connection in psutil.Process().net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    dist.barrier()
    told = {
        "sizes": [len(text) for text in texts],
        "listening": sorted(listening),
        "interface": psutil.net_if_addrs()[os.environ["GLOO_SOCKET_IFNAME"]][0].address,
    }
    (folder / f"{rank}.json").write_text(json.dumps(told))


@pytest.mark.thorough
def test_s2_the_ranks_of_one_machine_listen_on_loopback_alone(tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    at = Rendezvous(address="127.0.0.1", port=port, world_size=2, backend="gloo", seconds=600.0)
    started = multiprocessing.get_context("spawn")  # threads of other tests do not survive a fork
    ranks = [
        started.Process(
            target=_rank, args=(rank, at, None if rank else listener, tmp_path), daemon=True
        )
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    listener.close()
    for rank in ranks:
        rank.join(900)
        assert rank.exitcode == 0

    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [one["sizes"] for one in told] == [[0, 2 * LONG]] * 2
    addresses = {address for one in told for address in one["listening"]}
    assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert addresses
    # gloo alone would take the interface of the host's name
    assert {one["interface"] for one in told} == {"127.0.0.1"}


def test_addresses_of_a_network_leave_the_interfaces_to_their_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", {})
    stay_on_loopback("192.0.2.7")
    assert not os.environ

    stay_on_loopback("127.0.0.1")
    assert set(os.environ) == {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}


class _Planted:
    """A pickle that runs code when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


class _Peer:
    """Ranks of which one sends what it likes."""

    class ranks:  # noqa: N801 - as `Worker.ranks`
        @staticmethod
        def gather(text: bytes) -> list[bytes]:
            return [text, pickle.dumps(_Planted())]


def test_s2_what_a_peer_sends_is_not_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.outcomes import make_oom

    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"utf-8|JSON|Expecting"):
        _exchanged(make_oom(), _Peer())  # type: ignore[arg-type]

    assert not (tmp_path / "ran").exists()
