"""Reads a checkpoint's `MediaSpec` from config.json and the files of its processor.

Published checkpoints keep the processor's settings in processor_config.json, a block for each kind, or flat in
preprocessor_config.json, or nowhere; then the family's own values apply. What Facet would have to do differently from
what it does is refused by name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from facet.media.spec import (
    BUDGETS,
    LogMel,
    MediaSpec,
    MediaTokens,
    PanAndScan,
    PatchPictures,
    ResizeFilter,
    Sounds,
    SquarePictures,
    Videos,
)
from facet.model.config_fields import PROCESSOR_FILES, ConfigFields, read_config_file
from facet.model.families import read_model_spec

_FILTERS: dict[int, ResizeFilter] = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
_BLANK_LINE = "\n\n"

# Ids of the published vocabularies, for a config that leaves them out.
_IDS: dict[str, dict[str, int]] = {
    "gemma4": dict(boi=255_999, image=258_880, eoi=258_882, boa=256_000, audio=258_881, eoa=258_883, video=258_884),
    "gemma3": dict(boi=255_999, image=262_144, eoi=256_000),
    "gemma3n": dict(boi=255_999, image=262_145, eoi=262_144, boa=256_000, audio=262_273, eoa=262_272),
}


def read_media_spec(folder: Path, overrides: Mapping[str, Any] | None = None) -> MediaSpec:
    """What the checkpoint in `folder` reads besides text. `overrides` are the user's changes to its config.json."""
    config = ConfigFields(read_config_file(folder / "config.json", overrides))
    nested, flat = (_read_optional(folder / name) for name in PROCESSOR_FILES)
    model = read_model_spec(config.values())
    sees, hears = "vision_config" in config, "audio_config" in config
    sees_ahead = bool(model.bidirectional_image_layers)
    if model.family == "gemma4":
        is_unified = model.architecture.startswith("Gemma4Unified")
        return MediaSpec(
            pictures=_patches(config, _block(nested, flat, "image_processor"), is_unified, sees_ahead)
            if sees
            else None,
            videos=_videos(config, _block(nested, None, "video_processor"), is_unified, sees_ahead)
            if sees and not _is_ruled_out(nested, "video_processor")
            else None,
            sounds=_gemma4_sounds(config, _block(nested, None, "feature_extractor"), is_unified) if hears else None,
        )
    pictures, sounds = _block(nested, flat, "image_processor"), _block(nested, flat, "feature_extractor")
    if model.family == "gemma3n":
        return MediaSpec(
            pictures=_gemma3n_pictures(config, pictures) if sees else None,
            sounds=_gemma3n_sounds(config, sounds) if hears else None,
        )
    return MediaSpec(pictures=_gemma3_pictures(config, pictures) if sees else None)


def usual_gemma4() -> MediaSpec:
    """How Gemma 4 sees pictures as published, for when no checkpoint is at hand."""
    return MediaSpec(pictures=_patches(ConfigFields({}), ConfigFields({}), is_unified=False, sees_ahead=False))


def _read_optional(path: Path) -> ConfigFields | None:
    return ConfigFields(read_config_file(path), path.name) if path.is_file() else None


def _block(nested: ConfigFields | None, flat: ConfigFields | None, name: str) -> ConfigFields:
    """The settings for one kind of media; empty where no file has them."""
    if nested is not None and name in nested:
        return nested.section(name)
    return flat or ConfigFields({}, f"processor_config.json, {name}")


def _is_ruled_out(nested: ConfigFields | None, name: str) -> bool:
    """Whether a file says null for a kind of media that its family takes: the checkpoint does not."""
    return nested is not None and name in nested.values() and name not in nested


def _patches(
    config: ConfigFields, block: ConfigFields, is_unified: bool, sees_ahead: bool, *, soft: str = "image"
) -> PatchPictures:
    _check_pixels(block, mean=0.0, std=1.0)
    vision = config.section("vision_config")
    patch = block.integer("patch_size", vision.integer("patch_size", 16))
    token = patch * block.integer("pooling_kernel_size", vision.integer("pooling_kernel_size", 3))
    budget = block.integer("max_soft_tokens", 280 if soft == "image" else 70)
    if budget not in BUDGETS:
        raise block.wrong("max_soft_tokens", f"one of {', '.join(map(str, BUDGETS))}")
    return PatchPictures(
        tokens=_tokens(config, "gemma4", "boi", soft, "eoi", placeholder=soft),
        patch_size=token if is_unified else patch,
        token_size=token,
        budget=budget,
        filter=_filter(block, 3),
        attends_both_ways=sees_ahead,
    )


def _videos(config: ConfigFields, block: ConfigFields, is_unified: bool, sees_ahead: bool) -> Videos:
    return Videos(
        frames=_patches(config, block, is_unified, sees_ahead, soft="video"),
        num_frames=block.integer("num_frames", 32),
    )


def _gemma4_sounds(config: ConfigFields, block: ConfigFields, is_unified: bool) -> Sounds:
    mel = _log_mel(block, LogMel(
        num_bins=128,
        frame_length=320,
        hop_length=160,
        fft_length=512,
        min_frequency=0.0,
        max_frequency=8000.0,
        preemphasis=0.0,
        rounds_window=False,
        floor=0.001,
        adds_floor=True,
        left_padding=160,
        right_multiple=1,  # the processor pads, but masks every frame that reaches into its padding
    ))  # fmt: skip
    return Sounds(
        tokens=_tokens(config, "gemma4", "boa", "audio", "eoa", placeholder="audio"),
        sampling_rate=block.integer("sampling_rate", 16_000),
        log_mel=None if is_unified else mel,
        samples_per_token=block.integer("audio_samples_per_token", 640) if is_unified else 4 * mel.hop_length,
        num_tokens=None,
        max_samples=None if is_unified else 480_000,
    )


def _gemma3_pictures(config: ConfigFields, block: ConfigFields) -> SquarePictures:
    _check_pixels(block, mean=0.5, std=0.5)
    return SquarePictures(
        tokens=_tokens(config, "gemma3", "boi", "image", "eoi", placeholder="boi", text_around=_BLANK_LINE),
        side=_side(block, config.section("vision_config").integer("image_size", 896)),
        num_tokens=config.integer("mm_tokens_per_image", 256),
        filter=_filter(block, 2),
        attends_both_ways=True,
        pan_and_scan=PanAndScan(
            enabled=block.boolean("do_pan_and_scan"),
            min_crop_size=block.integer("pan_and_scan_min_crop_size", 256),
            max_num_crops=block.integer("pan_and_scan_max_num_crops", 4),
            min_ratio=block.number("pan_and_scan_min_ratio_to_activate", 1.2),
        ),
    )


def _gemma3n_pictures(config: ConfigFields, block: ConfigFields) -> SquarePictures:
    _check_pixels(block, mean=0.0, std=1.0)
    return SquarePictures(
        tokens=_tokens(config, "gemma3n", "boi", "image", "eoi", placeholder="image", text_around=_BLANK_LINE),
        side=_side(block, 768),
        num_tokens=config.integer("vision_soft_tokens_per_image", 256),
        filter=_filter(block, 3),
        attends_both_ways=False,
        pan_and_scan=None,
    )


def _gemma3n_sounds(config: ConfigFields, block: ConfigFields) -> Sounds:
    mel = _log_mel(block, LogMel(
        num_bins=128,
        frame_length=512,
        hop_length=160,
        fft_length=1024,
        min_frequency=125.0,
        max_frequency=7600.0,
        preemphasis=0.97,
        rounds_window=True,
        floor=1e-5,
        adds_floor=False,
        left_padding=0,
        right_multiple=128,
    ))  # fmt: skip
    return Sounds(
        tokens=_tokens(config, "gemma3n", "boa", "audio", "eoa", placeholder="audio", text_around=_BLANK_LINE),
        sampling_rate=block.integer("sampling_rate", 16_000),
        log_mel=mel,
        samples_per_token=16 * mel.hop_length,
        num_tokens=config.integer("audio_soft_tokens_per_image", 188),
        max_samples=480_000,
    )


def _log_mel(block: ConfigFields, usual: LogMel) -> LogMel:
    """What the processor's file says, over the family's own values."""
    return LogMel(
        num_bins=block.integer("feature_size", usual.num_bins),
        frame_length=block.integer("frame_length", usual.frame_length),
        hop_length=block.integer("hop_length", usual.hop_length),
        fft_length=block.integer("fft_length", usual.fft_length),
        min_frequency=_number_or_zero(block, "min_frequency", usual.min_frequency),
        max_frequency=block.number("max_frequency", usual.max_frequency),
        preemphasis=_number_or_zero(block, "preemphasis", usual.preemphasis),
        rounds_window=usual.rounds_window,
        floor=block.number("mel_floor", usual.floor),
        adds_floor=usual.adds_floor,
        left_padding=usual.left_padding,
        right_multiple=usual.right_multiple,
    )


def _number_or_zero(block: ConfigFields, name: str, default: float) -> float:
    return 0.0 if block.raw(name) in (0, 0.0) else block.number(name, default)


def _tokens(
    config: ConfigFields, family: str, begin: str, soft: str, end: str, *, placeholder: str, text_around: str = ""
) -> MediaTokens:
    def token(name: str) -> int:
        """The id of a token. Files say `..._token_id` or `..._token_index`."""
        found = config.token_ids(f"{name}_token_id") or config.token_ids(f"{name}_token_index")
        return found[0] if found else _IDS[family][name]

    return MediaTokens(
        placeholder=token(placeholder), begin=token(begin), soft=token(soft), end=token(end), text_around=text_around
    )


def _filter(block: ConfigFields, usual: int) -> ResizeFilter:
    number = block.integer("resample", usual, least=0)
    if number not in _FILTERS:
        raise block.wrong("resample", "2 (bilinear) or 3 (bicubic)")
    return _FILTERS[number]


def _side(block: ConfigFields, usual: int) -> int:
    size = block.section("size")
    height, width = size.integer("height", usual), size.integer("width", usual)
    if height != width:
        raise block.wrong("size", "a square")
    return height


def _check_pixels(block: ConfigFields, *, mean: float, std: float) -> None:
    """Refuses settings under which a byte of a picture would stand for another number than towers take it for."""
    for step in ("do_resize", "do_rescale"):
        if not block.boolean(step, True):
            raise block.wrong(step, "true")
    if abs(block.number("rescale_factor", 1 / 255) - 1 / 255) > 1e-9:
        raise block.wrong("rescale_factor", "1/255")
    normalizes = block.boolean("do_normalize", (mean, std) != (0.0, 1.0))
    expected: Mapping[str, Any] = {"image_mean": [mean] * 3, "image_std": [std] * 3}
    if not normalizes and (mean, std) != (0.0, 1.0):
        raise block.wrong("do_normalize", "true")
    for name, values in expected.items():
        if normalizes and name in block and block.raw(name) != values:
            raise block.wrong(name, str(values))
