"""Redaction of database and server addresses, so that they can be shown and saved."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote, unquote_plus

_USER = re.compile(r"^((?:[\w+.-]+://)?+[^:/@?#\[]*):(.*)$", re.DOTALL)
_PORT = re.compile(r"\d*(/|$)")
_SECRET_WORDS = ("password", "passwd", "token", "secret")
_MIN_SECRET = 4  # characters; shorter ones would match parts of other words


def without_password(url: str) -> str:
    """Removes passwords from an address, which still works if they are set elsewhere."""
    return _split(url)[0]


def without_secrets(text: str, *urls: str | None) -> str:
    """Replaces each password of the addresses in a text by `***`."""
    for url in urls:
        for secret in sorted(_split(url or "")[1], key=len, reverse=True):
            if len(secret) >= _MIN_SECRET:
                text = text.replace(secret, "***")
    return text


def _split(url: str) -> tuple[str, set[str]]:
    """Returns the address without secrets, and the secrets, both encoded and decoded."""
    address, mark, query = _without_user_password(url, secrets := set[str]())
    parameters = []
    for part in query.split("&") if mark else []:
        name, _, value = part.partition("=")
        if any(word in name.lower() for word in _SECRET_WORDS):
            secrets |= {value, unquote_plus(value)}
        else:
            parameters.append(part)
    return address + ("?" + "&".join(parameters) if parameters else ""), secrets - {""}


def _without_user_password(url: str, secrets: set[str]) -> tuple[str, str, str]:
    """Returns address, question mark and query; adds the password after the user to `secrets`."""
    if (match := _USER.match(url)) and (end := _end_of_password(match[2])) is not None:
        password = match[2][:end]
        secrets |= {password, *_decoded(password)}
        url = f"{match[1]}{match[2][end:]}"
    return url.partition("?")


def _end_of_password(rest: str) -> int | None:
    """Returns the end of the password in the text after a user's colon; None if that is a port.

    The password may hold characters that should have been percent-encoded.
    """
    path = rest.partition("?")[0]
    if "@" in path:
        return path.rindex("@")
    if _PORT.match(path) or "@" not in rest:
        return None
    return rest.rindex("@")


def _decoded(password: str) -> Iterator[str]:
    yield unquote(password)
    yield unquote_plus(password)
