"""Raw configurations of models: from a preset, a folder or a Hub id.

transformers, and with it torch, takes seconds to import: what a preset's or a folder's file says is
read without it.
"""

import difflib
import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from huggingface_hub import constants, try_to_load_from_cache

from search_spaces.errors import ModelError
from search_spaces.presets.catalogue import nearest_preset, preset_config, preset_names
from search_spaces.safety.files import DOCUMENT_BYTES, is_folder, read_bounded, with_home
from search_spaces.specification.schema import ModelSpec
from search_spaces.specification.sections import Base
from workers.models.config import RawConfig, one_sentence
from workers.models.trust import is_hub_id

_COMMIT = re.compile(r"[0-9a-f]{40}")
_QUANTIZATION_KEYS = ("quantization_config", "compression_config")
_QUANTIZATION_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}  # older folders
_ANSWER_SECONDS = 3.0  # for any answer of the Hub; its client retries for 23 s


def raw_config(spec: ModelSpec) -> RawConfig:
    """Returns the fields of the model's `config.json`, before the spec's changes.

    A preset takes precedence over a folder of the same name, and a folder over a Hub id. The
    Hub is asked only for what its local cache lacks, and only if it answers.

    Raises:
        ModelError: If there is no such model; names the nearest preset.
    """
    if is_hub_id(spec):
        return _hub_config(spec)
    if spec.revision is not None:
        raise ModelError(f"model.revision is of a Hub id, and {spec.name!r} is none")
    if spec.name in preset_names():
        return preset_config(spec.name)
    folder = with_home(spec.name)
    if is_folder(folder):
        return _folder_config(folder)
    raise ModelError(f"model {spec.name!r} is not a folder with a config.json")


def hub_commit(spec: ModelSpec) -> str | None:
    """Returns the commit of a Hub model that the local cache has, after asking the Hub for it.

    None if there is none. A model's files are read from the cache's copy of one commit.

    Raises:
        ModelError: If there is no such model.
    """
    _hub_config(spec)
    config = try_to_load_from_cache(spec.name, "config.json", revision=spec.revision)
    commit = Path(config).parent.name if isinstance(config, str) else ""
    return commit if _COMMIT.fullmatch(commit) else None


def config_class(spec: ModelSpec, raw: RawConfig) -> Any:
    """Returns the class of transformers, or of the model's own code, that reads `raw`.

    Raises:
        ModelError: If there is none, or if it is in the model's own code and the spec does
            not trust that code.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    kind = raw.get("model_type")
    if isinstance(kind, str) and kind in CONFIG_MAPPING:
        return CONFIG_MAPPING[kind]
    if "AutoConfig" in raw.get("auto_map", {}):
        if not spec.trust_remote_code:
            raise ModelError(
                f"{spec.name} comes with its own model code; read it, then set"
                " model.trust_remote_code: true"
            )
        return type(
            AutoConfig.from_pretrained(spec.name, trust_remote_code=True, revision=spec.revision)
        )
    if not isinstance(kind, str):
        raise ModelError(f"the config.json of {spec.name} has no model_type")
    (nearest,) = difflib.get_close_matches(kind, list(CONFIG_MAPPING), n=1, cutoff=0.0)
    raise ModelError(
        f"the installed transformers does not know model_type {kind!r} of {spec.name},"
        f" did you mean {nearest!r}?"
    )


def check_remote_code(spec: ModelSpec, raw: RawConfig) -> None:
    """Checks that the code of a model that its user trusts is the code that the user read.

    Raises:
        ModelError: If it may change: model.revision is no commit, or the code is elsewhere.
    """
    if is_hub_id(spec) and not _COMMIT.fullmatch(spec.revision or ""):
        raise ModelError(
            "model.trust_remote_code needs a commit in model.revision, 40 digits: a branch or tag"
            " may hold other code tomorrow"
        )
    for reference in raw.get("auto_map", {}).values():
        if isinstance(reference, str) and "--" in reference:
            raise ModelError(
                f"the code of {spec.name} is in the repository {reference.partition('--')[0]},"
                " which model.revision does not fix: put both into a folder"
            )


def _folder_config(folder: Path) -> RawConfig:
    path = folder / "config.json"
    try:
        raw = json.loads(read_bounded(path, DOCUMENT_BYTES))
    except FileNotFoundError as error:
        raise ModelError(f"the folder {folder} has no config.json") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {one_sentence(error)}") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{path} holds {type(raw).__name__}, must be a JSON object")
    for file, method in _QUANTIZATION_FILES.items():
        if (folder / file).exists():
            raw.setdefault("quantization_config", {"quant_method": method})
    return raw


def stored_base(spec: ModelSpec, raw: RawConfig) -> Base | None:
    """Returns the base that a model's weights were quantized to; None if they are not quantized.

    Raises:
        ModelError: If they are quantized otherwise than adapters can be trained on.
    """
    parts = (raw, *(part for part in raw.values() if isinstance(part, dict)))  # `text_config`
    stored = (part.get(key) for part in parts for key in _QUANTIZATION_KEYS)
    config = next((one for one in stored if isinstance(one, dict) and one), None)
    if config is None:
        return None
    kind = config.get("quant_method", "unnamed")
    if config.get("load_in_4bit"):
        kind = config.get("bnb_4bit_quant_type", "fp4")
    if config.get("load_in_8bit") or kind == "nf4":
        return "nf4" if kind == "nf4" else "int8"
    raise ModelError(
        f"{spec.name} is quantized ({kind}), and adapters are trained on bitsandbytes' int8 and nf4"
        " alone: name the folder of the unquantized model"
    )


def _hub_config(spec: ModelSpec) -> RawConfig:
    from transformers import PreTrainedConfig

    name = spec.name
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise ModelError(f"model {name!r} is not a preset, folder or Hub id{_hint(name)}")
    for cached_only in (True, False):
        if not cached_only and not _hub_answers():
            break
        try:
            raw, _ = PreTrainedConfig.get_config_dict(
                name, revision=spec.revision, local_files_only=cached_only
            )
        except (OSError, ValueError):
            continue
        if raw:
            return dict(raw)
    at = f" at revision {spec.revision}" if spec.revision else ""
    raise ModelError(
        f"model {name!r} is not a preset, a folder, or a Hub id that the local cache or the Hub"
        f" has{at}{_hint(name)}"
    )


def _hub_answers() -> bool:
    """Probes the Hub, since its client retries for 23 s without a network."""
    if constants.is_offline_mode():
        return False
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=_ANSWER_SECONDS).close()
    except urllib.error.HTTPError:
        return True  # an error status is an answer too
    except OSError:
        return False
    return True


def _hint(name: str) -> str:
    return f"; the nearest preset is {nearest_preset(name)!r}"
