"""Storages that can hold a study's lock, and a sentence for those that cannot."""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy import make_url

from orchestrator.study.storage import is_postgres, is_sqlite, safe_url, sqlite_path
from search_spaces.errors import StudyError
from search_spaces.safety.files import is_file, real_path

_MOUNTS = Path("/proc/self/mountinfo")
_UNLOCKED = ("nolock", "immutable", "vfs")  # parameters that turn SQLite's locks off
# options with which a client of a network file system locks files for itself alone
_LOCAL_LOCKS = {
    "nfs": ("nolock", "local_lock=all", "local_lock=posix"),
    "nfs4": ("nolock", "local_lock=all", "local_lock=posix"),
    "lustre": ("localflock",),
}
# file systems without locks of their own: the kernel of each client locks for itself
_NO_LOCKS = ("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.goofys")


def refuse_unlockable(url: str) -> None:
    """Checks that a storage can keep two drivers apart; creates nothing.

    Raises:
        StudyError: If it cannot; one sentence.
        ArgumentError: If the URL is none.
    """
    address = make_url(url)
    if is_postgres(url):
        return
    if not is_sqlite(url):
        raise _unlockable(
            url, "studies are kept in SQLite or PostgreSQL, where one driver at a time can be sure"
        )
    path = sqlite_path(url)
    if path is None:
        raise _unlockable(url, "a database in memory ends with its process; name a file")
    if off := [name for name in _UNLOCKED if name in address.query]:
        raise _unlockable(url, f"{off[0]} turns SQLite's locks off; leave it out")
    real = real_path(path)
    if is_file(real) and real.stat().st_nlink > 1:
        raise _unlockable(
            url, "the file has several hard links, each with a journal of its own; copy it instead"
        )
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    if fault := lock_fault(mounts, real):
        raise _unlockable(url, fault)


def lock_fault(mounts: str, path: Path) -> str | None:
    """Returns why files at a path cannot be locked against other machines; None if they can.

    Args:
        mounts: Text of `/proc/self/mountinfo`.
        path: An absolute path without links.

    Source:
        proc(5) for the fields; nfs(5), mount.lustre(8).
    """
    best, fault = -1, None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), (after.split() or [""])[0]
        if len(fields) <= 4:  # the fifth is the mount point
            continue
        point = Path(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), fields[4]))
        depth = len(point.parts)
        if depth >= best and path.is_relative_to(point):  # a later mount covers an earlier one
            best, fault = depth, _fault_of(kind, after)
    return fault


def _fault_of(kind: str, options: str) -> str | None:
    words = re.split(r"[\s,]+", options)
    if kind in _NO_LOCKS:
        return f"{kind} does not lock files; keep the study elsewhere, or in PostgreSQL"
    for option in _LOCAL_LOCKS.get(kind, ()):
        if option in words:
            return (
                f"{kind} is mounted with {option}, so that other machines do not see a lock;"
                " mount it otherwise, or keep the study in PostgreSQL"
            )
    return None


def _unlockable(url: str, reason: str) -> StudyError:
    return StudyError(f"study.storage {safe_url(url)} cannot be opened: {reason}")
