"""Random batches of the shapes that a model's configuration tells, for tasks without text alone."""

import inspect
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from search_spaces.errors import ModelError
from search_spaces.specification.schema import ModelSpec, Task
from workers.data.collate import IGNORED
from workers.data.user_batches import SampleNumbers
from workers.models.task import TEXT_TASKS, function_needed
from workers.models.user_code import errors_as

_FRAMES_PER_LABEL = 4  # 50 frames and some 12 letters a second of speech
_CHANNELS = ("num_channels", "in_channels", "in_chans")
_WIDEST_GRID = 16  # tokens along a side of an image of any size: 448 pixels in Qwen2-VL


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Values of one argument for one sample: `first`, then random ones.

    Integers lie in `low` to `high` - 1; without `high`, values are normal and have mean 0. With
    `ends`, those after a random place are no labels.
    """

    size: tuple[int, ...]
    high: int | None = None
    low: int = 0
    first: tuple[int, ...] = ()
    ends: bool = False

    def draw(self, generator: np.random.Generator) -> torch.Tensor:
        """Returns the values of the next sample."""
        if self.high is None:
            return torch.from_numpy(generator.standard_normal(self.size, dtype=np.float32))
        count = math.prod(self.size) - len(self.first)
        drawn = generator.integers(self.low, self.high, size=count, dtype=np.int64)
        if self.ends:
            drawn[generator.integers(1, count, endpoint=True) :] = IGNORED
        return torch.from_numpy(np.append(np.array(self.first, np.int64), drawn).reshape(self.size))


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomBatches:
    """Batch maker: the same sample numbers and seed give the same values."""

    shapes: Mapping[str, Shape]  # of each argument of the model
    seed: int
    is_contrastive: bool  # the model has a loss if asked, of a batch's pairs

    def __call__(self, numbers: SampleNumbers) -> dict[str, Any]:
        """Returns the batch of some samples."""
        generators = [np.random.default_rng([self.seed, number]) for number in numbers]
        batch: dict[str, Any] = {"return_loss": True} if self.is_contrastive else {}
        for name, shape in self.shapes.items():
            values = [shape.draw(generator) for generator in generators]
            # patches of all images are one dimension, which their grids divide
            is_joined = name == "pixel_values" and "image_grid_thw" in self.shapes
            batch[name] = torch.cat(values) if is_joined else torch.stack(values)
        return batch


def random_batches(
    spec: ModelSpec, task: Task, module: Any, *, sequence_length: int, seed: int
) -> RandomBatches | None:
    """Returns the batch maker of a model, None for a task that trains on the user's texts.

    Texts have up to `sequence_length` tokens, and sounds as many frames.

    Raises:
        ModelError: If the configuration does not tell the shapes, or an image is too long.
    """
    if task in TEXT_TASKS:
        return None
    taken = {*inspect.signature(module.forward).parameters}
    # a part or a field that the model lacks, or a method that takes more
    with errors_as(lambda _: function_needed(spec, type(module).__name__)):
        shapes = _Maker(spec, module, sequence_length, taken).shapes(task)
    is_contrastive = task == "zero-shot-image-classification"
    if not taken >= {*shapes, *(["return_loss"] if is_contrastive else [])}:
        raise function_needed(spec, type(module).__name__)
    return RandomBatches(shapes=shapes, seed=seed, is_contrastive=is_contrastive)


@dataclass(frozen=True, slots=True)
class _Maker:
    """Shapes by the fields of a configuration and of its part for vision."""

    spec: ModelSpec
    module: Any
    length: int
    taken: Collection[str]  # arguments of the model

    def shapes(self, task: Task) -> dict[str, Shape]:
        config = self.module.config
        match task:
            case "image-classification" | "audio-classification":
                inputs = self._image() if task.startswith("image") else self._waves()
                return {**inputs, "labels": Shape(size=(), high=config.num_labels)}
            case "ctc":
                blank, size = config.pad_token_id, (max(self.length // _FRAMES_PER_LABEL, 1),)
                low, high = (0, blank) if blank else (1, config.vocab_size)
                return {**self._waves(), "labels": Shape(size=size, low=low, high=high, ends=True)}
            case "speech-seq2seq":
                spectrum = Shape(size=(config.num_mel_bins, 2 * config.max_source_positions))
                labels = self._tokens(min(self.length, config.max_target_positions))
                return {"input_features": spectrum, "labels": labels}
            case "image-text-to-text":
                return self._image_and_text()
        longest = config.get_text_config().max_position_embeddings
        return {**self._image(), "input_ids": self._tokens(min(self.length, longest))}

    def _image(self) -> dict[str, Shape]:
        size = self._field("image_size")
        sides = [*size.values()] if isinstance(size, dict) else size
        height, width = (sides, sides) if isinstance(sides, int) else sides
        return {"pixel_values": Shape(size=(self._field(*_CHANNELS), height, width))}

    def _image_and_text(self) -> dict[str, Shape]:
        """Returns the shapes of a text that begins with the tokens of an image."""
        if "image_grid_thw" in self.taken:
            tokens, image = self._patches()
        else:
            image = self._image()
            tokens = self._image_tokens(image["pixel_values"])
        if tokens >= self.length:
            raise ModelError(
                f"train.sequence_length is {self.length}, but an image alone has {tokens} tokens"
                f" in {self.spec.name}: set it above that"
            )
        text, token = self._tokens(self.length), self._field("image_token_id")
        if 0 < token < (text.high or 0):  # special tokens come last
            text = replace(text, high=token)
        optional = {"mm_token_type_ids", "token_type_ids"} & {*self.taken}  # 1 marks the image
        return {  # as processors do, first what has a row for each sample
            "input_ids": replace(text, first=(token,) * tokens),
            "labels": replace(text, first=(IGNORED,) * tokens),
            **{name: replace(text, first=(1,) * tokens, high=1) for name in sorted(optional)},
            **image,
        }

    def _tokens(self, length: int) -> Shape:
        return Shape(size=(length,), high=self.module.config.get_text_config().vocab_size)

    def _waves(self) -> dict[str, Shape]:
        """Returns the shape of sound of which convolutions make frames."""
        config, samples = self.module.config, self.length
        steps = zip(config.conv_kernel, config.conv_stride, strict=True)
        for kernel, stride in reversed([*steps]):
            samples = (samples - 1) * stride + kernel
        waves = {"input_values": Shape(size=(samples,))}
        if getattr(config, "feat_extract_norm", None) == "layer":
            waves["attention_mask"] = Shape(size=(samples,), low=1, high=2)
        return waves

    def _patches(self) -> tuple[int, dict[str, Shape]]:
        """Returns the tokens of an image that fills half of the text, and its patches."""
        vision = self.module.config.vision_config
        side = min(math.isqrt(self.length // 2), _WIDEST_GRID)
        grid = side * vision.spatial_merge_size
        values = self._field(*_CHANNELS) * vision.temporal_patch_size * vision.patch_size**2
        return side**2, {
            "pixel_values": Shape(size=(grid**2, values)),
            "image_grid_thw": Shape(size=(3,), first=(1, grid, grid), high=1),
        }

    def _image_tokens(self, image: Shape) -> int:
        """Counts the tokens of an image by a pass without memory through what sees it."""
        with torch.no_grad():
            pixels = torch.empty(1, *image.size, device=next(self.module.parameters()).device)
            seen = self.module.get_image_features(pixel_values=pixels, return_dict=True)
        features = seen.pooler_output
        rows = features if isinstance(features, list | tuple) else [features]
        return sum(int(row.numel()) for row in rows) // int(rows[0].shape[-1])

    def _field(self, *names: str) -> Any:
        config = self.module.config
        for part in (config, getattr(config, "vision_config", None)):
            for name in names:
                if (value := getattr(part, name, None)) is not None:
                    return value
        raise function_needed(self.spec, type(self.module).__name__)
