"""Addresses of databases and servers, fit to be shown and kept: without what is secret in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote, unquote_plus

_USER = re.compile(r"^((?:[\w+.-]+://)?+[^:/@?#\[]*):(.*)$", re.DOTALL)
_PORT = re.compile(r"\d*(/|$)")
_SECRET_WORDS = ("password", "passwd", "token", "secret")
_LEAST = 4  # characters of a secret that a text is searched for; less is part of other words


def without_password(url: str) -> str:
    """The address without passwords; usable where those come from the environment or a file."""
    return _split(url)[0]


def without_secrets(text: str, *urls: str | None) -> str:
    """The text with `***` for each password that one of the addresses holds."""
    for url in urls:
        for secret in sorted(_split(url or "")[1], key=len, reverse=True):
            if len(secret) >= _LEAST:
                text = text.replace(secret, "***")
    return text


def _split(url: str) -> tuple[str, set[str]]:
    """The address without secrets, and the secrets as they stand there and as they are meant."""
    address, mark, query = _without_user_password(url, secrets := set[str]())
    kept = []
    for part in query.split("&") if mark else []:
        name, _, value = part.partition("=")
        if any(word in name.lower() for word in _SECRET_WORDS):
            secrets |= {value, unquote_plus(value)}
        else:
            kept.append(part)
    return address + ("?" + "&".join(kept) if kept else ""), secrets - {""}


def _without_user_password(url: str, secrets: set[str]) -> tuple[str, str, str]:
    """Address, question mark and query; what stood between user and host goes to `secrets`."""
    if (found := _USER.match(url)) and (cut := _end_of_password(found[2])) is not None:
        password = found[2][:cut]
        secrets |= {password, *_forms(password)}
        url = f"{found[1]}{found[2][cut:]}"
    return url.partition("?")


def _end_of_password(rest: str) -> int | None:
    """Where the password ends in what follows a user's colon; None: that is a port.

    Characters that had to be written in percent signs may stand in it all the same.
    """
    path = rest.partition("?")[0]
    if "@" in path:
        return path.rindex("@")
    if _PORT.match(path) or "@" not in rest:
        return None
    return rest.rindex("@")


def _forms(password: str) -> Iterator[str]:
    yield unquote(password)
    yield unquote_plus(password)
