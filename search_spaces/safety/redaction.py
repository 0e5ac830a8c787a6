"""Redaction of addresses and of messages, so that they can be shown and saved."""

import re
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar
from urllib.parse import quote_plus, unquote, unquote_plus

from search_spaces.safety.files import packaged_table

_USER = re.compile(r"^((?:[\w+.-]+://)?+[^:/@?#\[]*):(.*)$", re.DOTALL)
_PORT = re.compile(r"\d*(/|$)")
_SECRET_WORDS = ("password", "passwd", "token", "secret")
_MIN_SECRET = 4  # characters; shorter ones would match parts of other words
_MIN_VALUE = 8  # characters of a variable's value
HIDDEN = "***"  # in place of a secret
MOST_CHARACTERS = 32_000  # of a message; of a longer one, beginning and end stay
_CUT_WORD = re.compile(r"\S{0,1000}")
_NAME_CHARACTERS = 40  # before and after a word such as "token" that belong to the same name
_MARKS = packaged_table(__package__, "secrets.yaml")
_NAMES, _VALUES = _MARKS["names"], _MARKS["values"]
_ALWAYS, _PARTS = re.compile(_NAMES["always"]), re.compile(_NAMES["parts"])
_ORDINARY = {kind: frozenset(words) for kind, words in _MARKS["ordinary"].items()}
_NAME, _REST = re.compile(r"[\w.-]*"), re.compile(r"[^\s,;&'\"\\)}\]<]*")
_ASSIGNED, _HARMLESS = re.compile(_MARKS["assigned"]), re.compile(_VALUES["harmless"])
_NUMBER, _RANDOM = re.compile(_VALUES["number"]), re.compile(_VALUES["random"])
_PATTERNS = tuple(map(re.compile, _MARKS["patterns"]))
_FORMS = tuple(
    (start, re.compile(rf"(?<![A-Za-z\d]){re.escape(start)}{rest}"))
    for start, rest in _MARKS["forms"].items()
)
Value = TypeVar("Value")


def without_password(url: str) -> str:
    """Removes passwords from an address, which still works if they are set elsewhere."""
    return _split(url)[0]


def without_secrets(text: str, *urls: str | None, values: Collection[str] = ()) -> str:
    """Replaces secrets in a text by `***`, in time that does not grow with a very long one.

    Args:
        text: A message, perhaps of a library.
        urls: Addresses whose passwords are secrets.
        values: Other secrets, as `secret_values` returns them. What looks like a password, a token
            or a key is replaced too, also where it is percent-encoded.

    Returns:
        A text that can be encoded, with at most about `MOST_CHARACTERS`.
    """
    passwords = (secret for url in urls for secret in _split(url or "")[1])
    known = {*values, *(secret for secret in passwords if len(secret) >= _MIN_SECRET)}
    known |= {quote_plus(secret) for secret in known}
    text = _bounded(text)
    redacted = _redacted(text, known)
    for _ in range(2):  # an encoded text may be encoded again
        if text == (text := unquote(text)):
            break
        decoded = _redacted(text, known)
        redacted = max(redacted, decoded, key=lambda each: each.count(HIDDEN))
    return redacted


def _bounded(text: str) -> str:
    """Returns a text that can be encoded, without the middle of a long one."""
    if len(text) > MOST_CHARACTERS:
        head, tail = text[: MOST_CHARACTERS // 2], text[-MOST_CHARACTERS // 2 :]
        # what the cut divides may be part of a secret
        head = _CUT_WORD.sub("", head[::-1], count=1)[::-1]
        tail = _CUT_WORD.sub("", tail, count=1)
        left_out = len(text) - len(head) - len(tail)
        text = f"{head}... ({left_out:,} characters) ...{tail}"
    return text.encode("utf-8", "backslashreplace").decode()


def _redacted(text: str, known: Collection[str]) -> str:
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    for form in (form for start, form in _FORMS if start in text):
        text = form.sub(HIDDEN, text)
    return _without_assigned(text)


def _without_assigned(text: str) -> str:
    """Replaces the values of names that say that they are secret."""
    parts, done, at = list[str](), 0, 0
    while match := _ASSIGNED.search(text, at):
        value = "quoted" if match["quote"] else "bare"
        at, end = match.span(value)
        before = text[max(0, match.start() - _NAME_CHARACTERS) : match.start()]
        name = next(_NAME.finditer(before[::-1]))[0][::-1] + match["name"]
        sign, is_option = match["sign"], name.startswith("-")
        if sign.isspace() and not (is_option or match["quote"]):
            continue
        # else it may be prose, or a list of names
        sure = is_option or any(mark in sign for mark in "=:>") or re.search(r"\d", match[value])
        if sure and is_secret(name, match[value]):
            at = end if match["quote"] else next(_REST.finditer(text, end)).end()
            parts += text[done : match.start(value)], HIDDEN
            done = at
    return "".join([*parts, text[done:]])


def is_secret(name: str, value: str) -> bool:
    """Returns True if a name says that its value is a secret, and the value does not deny it.

    Args:
        name: Name of a variable, an option, a header or a key, in any spelling.
        value: Its value.
    """
    words = [word.lower() for word in _PARTS.findall(name)]
    joined = "".join(words)
    is_path = value.startswith("/") and joined.endswith(tuple(_NAMES["paths"]))
    if is_path or _HARMLESS.match(value):
        return False
    if _ALWAYS.search(joined):  # "check the credentials: ..." is prose
        return not joined.endswith("s") or bool(re.search(r"\d", value))
    if _NUMBER.fullmatch(value):
        return False
    random = any(map(_RANDOM.fullmatch, re.split(r"[\W_]", value)))
    kind = next((kind for kind in _ORDINARY if joined.endswith(kind)), None)
    if kind is None:  # TOKEN_FOR_CI, SESSION_ID and the like
        return random and bool(re.search(_NAMES["by_value"], " ".join(words)))
    before = joined.removesuffix(kind)
    if before in _ORDINARY[kind] or not _ORDINARY[kind].isdisjoint(words[-2:-1]):
        return False
    if kind == "pass":
        return len(value) >= _MIN_SECRET and bool(before or re.search(r"\d", value))
    if kind == "token" or (before and name.isupper()):
        return random or (len(value) >= 6 and value[0].isalnum() and bool(before))
    return random


def secret_values(environment: Mapping[str, str]) -> frozenset[str]:
    """Returns the values of variables whose names say that they are secret, and passwords of URLs.

    Args:
        environment: Variables of a process.
    """
    named = {value for name, value in environment.items() if is_secret(name, value)}
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
