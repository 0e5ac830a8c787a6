"""Redaction of addresses and of messages, so that they can be shown and saved."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar
from urllib.parse import unquote, unquote_plus

_USER = re.compile(r"^((?:[\w+.-]+://)?+[^:/@?#\[]*):(.*)$", re.DOTALL)
_PORT = re.compile(r"\d*(/|$)")
_SECRET_WORDS = ("password", "passwd", "token", "secret")
_MIN_SECRET = 4  # characters; shorter ones would match parts of other words
_MIN_VALUE = 8  # characters of a variable's value
_HIDDEN = "***"
_VARIABLE = re.compile(
    r"(?i)(?:passw(?:or)?d|passphrase|secret|token|api_?key|access_key|private_key|credentials?)$"
)
# secrets that messages of libraries repeat, each as a group to keep and what follows it
_NAME = (
    r"[\w.-]*(?:passw(?:or)?d|pwd|passphrase|secret|(?:api|private)[_-]?key|access[_-]?key(?:[_-]?id)?"
    r"|token(?=\\?['\"]?\s*[=:]>?\s*\S{6}))"
)
_SIGN = r"\\?['\"]?\s*(?:=>|[=:])\s*"
_TOKENS = (  # that can be told by their form
    r"hf_\w{16,}",  # Hugging Face
    r"sk-[\w-]{16,}",  # OpenAI and others
    r"(?:gh[a-z]|github_pat)_\w{20,}",
    r"glpat-[\w-]{16,}",
    r"A[KS]IA[0-9A-Z]{16}",  # AWS
    r"xox[a-z]-[\w-]{10,}",  # Slack
    r"eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*",  # JSON web tokens
)
# secrets that messages of libraries repeat; the first group stays
_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        # the password of an address, which may hold anything; a port is none
        r"(://[^\s:/@]*:)(?!\d{1,5}(?:[/?#\s]|$))(?:\S*(?=@)|[^@'\"\n]{1,200}(?=@))",
        rf"(?i)({_NAME}{_SIGN}(\\?['\"]))(?:(?!\2).)+(?=\2)",
        rf"(?i)({_NAME}{_SIGN})(?![\s*'\"\\])[^\s,;&'\"\\)}}\]]+",
        r"(?i)((?:x-amz-[\w-]*(?:signature|credential|token)|[?&]sig)=)[^\s&'\"]+",
        r"(?i)(\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}",
        rf"()\b(?:{'|'.join(_TOKENS)})",
        r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)[\s\S]*?(?=-----END|$)",
    )
)
Value = TypeVar("Value")


def without_password(url: str) -> str:
    """Removes passwords from an address, which still works if they are set elsewhere."""
    return _split(url)[0]


def without_secrets(text: str, *urls: str | None, values: Collection[str] = ()) -> str:
    """Replaces secrets in a text by `***`.

    Args:
        text: A message, perhaps of a library.
        urls: Addresses whose passwords are secrets.
        values: Other secrets, as `secret_values` returns them. What looks like a password, a token
            or a key is replaced too.
    """
    passwords = (secret for url in urls for secret in _split(url or "")[1])
    known = (*values, *(secret for secret in passwords if len(secret) >= _MIN_SECRET))
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\1{_HIDDEN}", text)
    return text


def secret_values(environment: Mapping[str, str]) -> frozenset[str]:
    """Returns the values of variables whose names say that they are secret, and passwords of URLs.

    Args:
        environment: Variables of a process.
    """
    named = {value for name, value in environment.items() if _VARIABLE.search(name)}
    addresses = (value for value in environment.values() if "://" in value)
    named |= {secret for address in addresses for secret in _split(address)[1]}
    return frozenset(value for value in named if len(value) >= _MIN_VALUE)


def redact_texts(value: Value, values: Collection[str]) -> Value:
    """Returns a value without secrets in its texts, the same object if it has none.

    Args:
        value: JSON values, or a dataclass of such.
        values: As for `without_secrets`.
    """
    redacted: Any = value
    match value:
        case str():
            redacted = without_secrets(value, values=values)
        case list() | tuple() if type(value) in (list, tuple):
            redacted = type(value)(redact_texts(part, values) for part in value)
        case dict():
            redacted = {name: redact_texts(part, values) for name, part in value.items()}
        case _ if is_dataclass(value) and not isinstance(value, type):
            parts = {field.name: getattr(value, field.name) for field in fields(value)}
            changed = {
                name: new
                for name, part in parts.items()
                if (new := redact_texts(part, values)) is not part
            }
            redacted = replace(value, **changed) if changed else value
    return value if redacted == value else redacted


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
    if (match := _USER.match(url)) and (end := _end_of_password(match[2])) is not None:
        password = match[2][:end]
        secrets |= {password, unquote(password), unquote_plus(password)}
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
