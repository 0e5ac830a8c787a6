"""Texts or tokens of records: the fields that hold them, and the messages of chats."""

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Literal, TypeGuard, final

from search_spaces.errors import DataError

Messages = list[dict[str, str]]  # each has a role and a content
Render = Callable[[Messages], str | None]  # None without a chat template
Record = Mapping[str, Any]

_TOKENS, _MASK = "input_ids", "attention_mask"
_CHATS = ("messages", "conversations", "conversation")
_KNOWN = (  # sets of fields that are one sample, in the order in which they are joined
    *((name,) for name in ("text", "content", *_CHATS, _TOKENS)),
    ("prompt", "completion"),
    ("prompt", "response"),
    ("instruction", "input", "output"),
    ("instruction", "context", "response"),
    ("question", "answer"),
)
_OPTIONAL = ("input", "context")
_ROLES = {"human": "user", "gpt": "assistant"}  # of ShareGPT


@final
class FileReading:
    """Findings about one file: the fields that hold the text, by its first record.

    `names` has them, `missing` those of them that no record had so far, and `chat`
    says how messages became text, if there were any. The records are in the list `within` of the
    file's one object, if it has a name. Of a large file only a part is read: `is_whole` is False.
    """

    def __init__(self, wanted: str | tuple[str, ...] | None, render: Render | None) -> None:
        self._wanted = (wanted,) if isinstance(wanted, str) else wanted
        self._render = render
        self.names: tuple[str, ...] = ()
        self.within = ""
        self.is_whole = True
        self.missing: set[str] = set()
        self.chat: Literal["template", "joined"] | None = None

    def named(self) -> tuple[str, ...]:
        """Returns the fields with the list that they are in, as `data[].text`."""
        prefix = f"{self.within}[]." if self.within else ""
        return tuple(f"{prefix}{name}" for name in self.names if name not in self.missing)

    def fits(self, record: Record) -> bool:
        """Returns True if a record has the text itself."""
        if self._wanted is None:
            return len(_known(record)) > 0
        return not record.keys().isdisjoint(self._wanted)

    def text(self, record: object, where: str) -> str | list[int] | None:
        """Returns the text of a record, or its tokens without padding; None if it has null.

        Raises:
            DataError: If it is not an object, or it cannot be told which fields hold its text.
        """
        if record is None or (isinstance(record, str) and not (self.names or self._wanted)):
            return record  # an array may hold texts instead of records
        if record == {}:
            return ""
        if not isinstance(record, Mapping):
            raise DataError(f"{where} holds {type(record).__name__}, must be a JSON object")
        if not self.names:
            self.names = self._wanted or _only(record, where)
            self.missing = set(self.names)
        values = {name: record[name] for name in self.names if name in record}
        self.missing.difference_update(values)
        if not values:
            raise DataError(
                f"{where} has no field {' or '.join(map(repr, self.names))}, its fields are"
                f" {', '.join(record) or 'none'}"
            )
        parts = {name: value for name, value in values.items() if value is not None}
        first, *others = [*parts.values()] or [None]
        if not others and _is_tokens(first):
            return _tokens(first, record.get(_MASK), where)
        if len(parts) > 1 and all(isinstance(part, list) for part in parts.values()):
            parts = {" + ".join(parts): list(chain(*parts.values()))}  # one chat
        texts = [self._text(part, where, name, record) for name, part in parts.items()]
        return "\n".join(filter(None, texts)) if parts else None

    def _text(self, part: object, where: str, name: str, record: Record) -> str:
        if isinstance(part, str):
            return part
        if not isinstance(part, list) or not all(isinstance(each, Mapping) for each in part):
            raise DataError(
                f"{where} has no text in field {name!r}, its fields are {', '.join(record)}"
            )
        messages = [_message(each, where) for each in part]
        try:
            rendered = self._render(messages) if self._render and messages else None
        except ValueError as error:
            raise DataError(f"{where}: the tokenizer's chat template fails: {error}") from error
        self.chat = "joined" if rendered is None else "template"
        return rendered or "\n".join(message["content"] for message in messages)


def _is_tokens(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and len(value) > 0 and {*map(type, value)} == {int}


def _tokens(ids: list[int], mask: object, where: str) -> list[int]:
    """Returns the tokens that a mask keeps, if the record has one."""
    if not _is_tokens(mask):
        return ids
    if len(mask) != len(ids):
        raise DataError(f"{where} has {len(ids)} input_ids and an attention_mask of {len(mask)}")
    return [token for token, is_kept in zip(ids, mask, strict=True) if is_kept]


def _only(record: Record, where: str) -> tuple[str, ...]:
    known = _known(record)
    if len(known) == 1:
        return known[0]
    if len(record) == 1 and all(isinstance(value, str) for value in record.values()):
        return tuple(record)
    if known:
        choices = "; ".join(" + ".join(names) for names in known)
        raise DataError(f"{where} has text in several forms ({choices}): set data.field to one")
    raise DataError(
        f"{where} has the fields {', '.join(record) or 'none'}: set data.field to the one with the"
        " text, or to a list of those to join"
    )


def _known(record: Record) -> list[tuple[str, ...]]:
    """Returns the known sets of fields that a record has, whose optional ones it may lack."""

    def has(name: str) -> bool:
        kinds = list if name in _CHATS else str | list | None
        return name in record and isinstance(record[name], kinds)

    return [names for names in _KNOWN if all(has(name) for name in names if name not in _OPTIONAL)]


def _message(message: Record, where: str) -> dict[str, str]:
    role = message.get("role") or message.get("from")
    content = message.get("content", message.get("value", 0))
    if isinstance(content, list):  # parts
        texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        strings = [text for text in texts if isinstance(text, str)]
        if len(strings) < len(texts):
            raise DataError(f"{where} has a message with parts other than text: only text is read")
        content = "".join(strings)
    if not isinstance(role, str) or not isinstance(content, str | None):
        raise DataError(
            f"{where} has a message with {', '.join(message) or 'nothing'}: it must have role and"
            " content, or from and value, as text"
        )
    return {"role": _ROLES.get(role, role), "content": content or ""}
