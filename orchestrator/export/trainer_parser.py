"""Reads a file with its trainer's own parser: `python -P trainer_parser.py FORMAT FILE`.

It runs with that trainer's packages (`trainer_environment.py`), without Plimsoll's code. Its last
line is what the parser refuses.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml


class _Absent(ModuleType):
    """Module that a parser imports and does not use: every name in it is an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):  # such as `__file__`, which it has not
            raise AttributeError(name)
        return type(name, (), {})


def unknown_keys(trainer: str, file: str) -> set[str]:
    """Lets the parser of a trainer read a file of this folder; returns keys that it ignores."""
    values = {} if file.endswith(".py") else yaml.safe_load(Path(file).read_text("utf-8"))
    match trainer:
        case "axolotl":
            schema = import_module("axolotl.utils.schemas.config").AxolotlInputConfig
            schema.model_validate(values)
            aliases = {field.alias for field in schema.model_fields.values()}
            return {*values} - aliases - {*schema.model_fields}
        case "llama-factory":
            parser = import_module("llamafactory.hparams.parser")
            parser._parse_train_args({**values, "use_cpu": True})
        case "trl":
            trl = import_module("trl")
            parts = (trl.ScriptArguments, trl.SFTConfig, trl.ModelConfig, trl.DatasetMixtureConfig)
            trl.TrlParser(parts).parse_args_and_config(["--config", file, "--use_cpu", "true"])
        case "ms-swift":
            words, arguments = [file], import_module("swift.arguments").PretrainArguments
            import_module("swift.cli.main").parse_yaml_args(words)
            # what follows on the values loads the model
            quick: Any = type("Arguments", (arguments,), {"__post_init__": lambda _: None})
            _, words = import_module("swift.utils").parse_args(quick, words)
            return {word for word in words if word.startswith("--")}
        case "verl":
            hydra, config = import_module("hydra"), import_module("omegaconf").OmegaConf
            with hydra.initialize_config_module("verl.trainer.config", version_base=None):
                base = hydra.compose(values.pop("defaults")[0])
            config.set_struct(base.model.override_config, False)  # takes any field of the model's
            whole = config.merge(base, values)
            for section in ("engine", "optim", "checkpoint"):
                import_module("verl.utils.config").omega_conf_to_dataclass(whole[section])
        case "torchtitan":
            # of what a file names, kernels need triton, and logs TensorBoard
            for name in ("torchtitan.distributed.minimal_async_ep", "torch.utils.tensorboard"):
                sys.modules[name] = _Absent(name)
            sys.path.insert(0, "")
            import_module(module := file.removesuffix(".py"))  # its error says more than theirs
            words = ["--module", module, "--config", "train"]
            import_module("torchtitan.config").ConfigManager().parse_args(words)
    return set()


if __name__ == "__main__":
    try:
        if unknown := unknown_keys(*sys.argv[1:]):
            sys.exit(f"it has no key {', '.join(sorted(unknown))}")
    except Exception as error:  # noqa: BLE001 (a line in place of a traceback)
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")
