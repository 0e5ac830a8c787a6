"""Raw configurations of models: from a preset, a folder or a Hub id."""

from __future__ import annotations

import difflib
import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    PreTrainedConfig,
)

from search_spaces.errors import ModelError
from search_spaces.presets.catalogue import nearest_preset, preset_config, preset_names
from search_spaces.spec.schema import ModelSpec
from workers.models.config import RawConfig, one_sentence

_ANSWER_SECONDS = 3.0  # for any answer of the Hub; its client retries for 23 s


def raw_config(spec: ModelSpec) -> RawConfig:
    """Returns the fields of the model's `config.json`, before the spec's changes.

    A preset takes precedence over a folder of the same name, and a folder over a Hub id. The
    Hub is asked only for what its local cache lacks, and only if it answers.

    Raises:
        ModelError: If there is no such model; names the nearest preset.
    """
    if spec.name in preset_names():
        return preset_config(spec.name)
    folder = Path(spec.name).expanduser()
    if folder.is_dir():
        return _folder_config(folder)
    if spec.name.startswith((".", "/", "~")):
        raise ModelError(f"model {spec.name!r} is not a folder with a config.json")
    return _hub_config(spec.name)


def config_class(spec: ModelSpec, raw: RawConfig) -> Any:
    """Returns the class of transformers, or of the model's own code, that reads `raw`.

    Raises:
        ModelError: If there is none, or if it is in the model's own code and the spec does
            not trust that code.
    """
    kind = raw.get("model_type")
    if isinstance(kind, str) and kind in CONFIG_MAPPING:
        return CONFIG_MAPPING[kind]
    if "AutoConfig" in raw.get("auto_map", {}):
        if not spec.trust_remote_code:
            raise ModelError(
                f"{spec.name} comes with its own model code; read it, then set"
                " model.trust_remote_code: true"
            )
        return type(AutoConfig.from_pretrained(spec.name, trust_remote_code=True))
    if not isinstance(kind, str):
        raise ModelError(f"the config.json of {spec.name} has no model_type")
    (nearest,) = difflib.get_close_matches(kind, list(CONFIG_MAPPING), n=1, cutoff=0.0)
    raise ModelError(
        f"the installed transformers does not know model_type {kind!r} of {spec.name},"
        f" did you mean {nearest!r}?"
    )


def _folder_config(folder: Path) -> RawConfig:
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"the folder {folder} has no config.json") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {one_sentence(error)}") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{path} holds {type(raw).__name__}, must be a JSON object")
    return raw


def _hub_config(name: str) -> RawConfig:
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise ModelError(f"model {name!r} is not a preset, folder or Hub id{_hint(name)}")
    for cached_only in (True, False):
        if not cached_only and not _hub_answers():
            break
        try:
            raw, _ = PreTrainedConfig.get_config_dict(name, local_files_only=cached_only)
        except (OSError, ValueError):
            continue
        if raw:
            return dict(raw)
    raise ModelError(
        f"model {name!r} is not a preset, a folder, or a Hub id that the local cache or the Hub"
        f" has{_hint(name)}"
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
