"""Tokenization of texts, by the spec's tokenizer or by one trained on the texts."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from search_spaces.errors import DataError
from search_spaces.safety.files import DOCUMENT_BYTES, is_file, is_folder, read_bounded
from workers.data.records import Messages, Render

_PAD, _MASK = "<pad>", "<mask>"  # of ids 0 and 1
TEMPLATE_FILES = ("chat_template.jinja", "tokenizer_config.json")  # of a tokenizer's folder
_BYTES = 256
_TRAINING_CHARACTERS = 4 * 2**20  # more text hardly changes the merges
_CHUNK = 1024  # texts per call of the tokenizer


def encode(
    name: str | None, texts: Sequence[str], vocab_size: int, *, special: bool
) -> tuple[Iterator[list[int]], int]:
    """Encodes texts by a tokenizer: a tokenizer.json, a folder or a Hub id; None: trains one.

    A Hub id must be in the local cache. A tokenizer without a mask token gets the last id of
    the model's vocabulary as its mask. Texts get no `special` tokens if a template wrote them.

    Returns:
        The token ids of each text, below the model's `vocab_size`, and the id of the mask.

    Raises:
        DataError: If there is no such tokenizer, or if it has ids that the model lacks.
    """
    if name is None:
        tokenizer = _train(texts, vocab_size)
    else:
        path = Path(name)
        file = path / "tokenizer.json" if is_folder(path) else path
        if not is_file(file):
            return _by_transformers(name, texts, vocab_size, special=special)
        tokenizer = _from_file(file)
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    _refuse_larger(name, max(vocabulary.values(), default=0) + 1, vocab_size)
    masks = [vocabulary[token] for token in (_MASK, "[MASK]") if token in vocabulary]
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def ids_of(batch: list[str]) -> list[list[int]]:
        encoded = tokenizer.encode_batch(batch, add_special_tokens=special)
        return [encoding.ids for encoding in encoded]

    return _in_chunks(texts, ids_of), masks[0] if masks else vocab_size - 1


def _in_chunks(
    texts: Sequence[str], ids_of: Callable[[list[str]], list[list[int]]]
) -> Iterator[list[int]]:
    for start in range(0, len(texts), _CHUNK):
        yield from ids_of(list(texts[start : start + _CHUNK]))


def _train(texts: Sequence[str], vocab_size: int) -> Any:
    """Trains a byte-level BPE of at most `vocab_size` tokens; the same texts give the same one."""
    if vocab_size < _BYTES + 2:
        raise DataError(
            f"the model's vocab_size is {vocab_size}, a byte-level tokenizer needs {_BYTES + 2}"
            " or more: set data.tokenizer, or a larger model.config.vocab_size"
        )
    every = max(1, sum(map(len, texts)) // _TRAINING_CHARACTERS)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[_PAD, _MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts[::every], trainer)
    return tokenizer


def _from_file(file: Path) -> Any:
    try:
        content = read_bounded(file, DOCUMENT_BYTES).decode("utf-8")
        fields = json.loads(content)
    except (OSError, ValueError) as error:
        raise DataError(f"the tokenizer {file} cannot be read: {error}") from error
    # checked first, since the library raises bare `Exception`, too broad to catch here
    model = fields.get("model") if isinstance(fields, dict) else None
    if not isinstance(model, dict) or "vocab" not in model:
        raise DataError(f"{file} is not a tokenizer.json: it has no model with a vocab")
    return Tokenizer.from_str(content)


def chat_template(name: str | None) -> Render | None:
    """Returns what writes messages by a tokenizer's chat template, which the first of them loads.

    None if there is no tokenizer, or nothing but its tokenizer.json.
    """
    path = Path(name or "")
    folder = path.parent if is_file(path) else path
    is_bare = is_folder(folder) and not any(is_file(folder / each) for each in TEMPLATE_FILES)
    if name is None or is_bare:
        return None
    tokenizer = cache(lambda: _pretrained(str(folder)))

    def render(messages: Messages) -> str | None:
        from jinja2 import TemplateError

        if not tokenizer().chat_template:
            return None
        try:
            return str(tokenizer().apply_chat_template(messages, tokenize=False))
        except (TemplateError, TypeError, KeyError) as error:
            raise ValueError(f"{error}") from error

    return render


def _pretrained(name: str) -> Any:
    # a tenth of a rank's imports, which few runs need
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    kind = PreTrainedTokenizerFast if is_file(Path(name) / "tokenizer.json") else AutoTokenizer
    try:
        return kind.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        raise DataError(
            f"data.tokenizer {name!r} is not a tokenizer.json, a folder with a tokenizer, or a"
            " Hub id in the local cache"
        ) from error


def _by_transformers(
    name: str, texts: Sequence[str], vocab_size: int, *, special: bool
) -> tuple[Iterator[list[int]], int]:
    tokenizer = _pretrained(name)
    _refuse_larger(name, max(tokenizer.get_vocab().values(), default=0) + 1, vocab_size)
    mask_token_id = tokenizer.mask_token_id

    def ids_of(batch: list[str]) -> list[list[int]]:
        return tokenizer(batch, verbose=False, add_special_tokens=special)["input_ids"]

    ids = _in_chunks(texts, ids_of)
    return ids, vocab_size - 1 if mask_token_id is None else mask_token_id


def _refuse_larger(name: str | None, tokens: int, vocab_size: int) -> None:
    if tokens > vocab_size:
        raise DataError(
            f"the tokenizer {name or 'trained on the files'} has {tokens} tokens, the model's"
            f" vocab_size is {vocab_size}: it must be {tokens} or more"
        )
