"""Models that read media, as callers see them: small vocabularies, templates like Gemma's, no weights."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from facet.chat import ChatTemplate
from facet.media.spec import MediaSpec, MediaTokens, PanAndScan, PatchPictures, Sounds, SquarePictures, Videos
from facet.prompts import AskedModel
from facet.tokens import Tokenizer
from tests.tokens.gemma_like import GEMMA3_TOKENS, GEMMA4_TOKENS, TEXT_TOKENS, build_gemma_like

TEMPLATES = Path(__file__).parent.parent / "chat"


def make_gemma4() -> AskedModel:
    return _make(GEMMA4_TOKENS, "gemma4_like.jinja", _gemma4_media)


def make_gemma3() -> AskedModel:
    return _make(GEMMA3_TOKENS, "gemma3_like.jinja", _gemma3_media)


def _make(tokens: Sequence[str], template: str, media: Any) -> AskedModel:
    tokenizer = Tokenizer(build_gemma_like(control_tokens=tokens, text_tokens=TEXT_TOKENS))

    control = tokenizer.control_tokens.id_of

    def ids(placeholder: str, begin: str, soft: str, end: str, text_around: str = "") -> MediaTokens:
        found = [control[token] for token in (placeholder, begin, soft, end)]
        return MediaTokens(placeholder=found[0], begin=found[1], soft=found[2], end=found[3], text_around=text_around)

    return AskedModel(
        max_model_len=4096,
        eos_token_ids=(1,),
        tokenizer=tokenizer,
        template=ChatTemplate(
            (TEMPLATES / template).read_text(),
            special_tokens=tokenizer.special_tokens,
            control_texts=tokenizer.control_tokens.id_of,
        ),
        media=media(ids),
    )


def _gemma4_media(ids: Any) -> MediaSpec:
    pictures = PatchPictures(
        tokens=ids("<|image|>", "<|image>", "<|image|>", "<image|>"),
        patch_size=16,
        token_size=48,
        budget=280,
        filter="bicubic",
        attends_both_ways=True,
    )
    return MediaSpec(
        pictures=pictures,
        videos=Videos(
            frames=replace(pictures, tokens=ids("<|video|>", "<|image>", "<|video|>", "<image|>"), budget=70),
            num_frames=32,
        ),
        sounds=Sounds(
            tokens=ids("<|audio|>", "<|audio>", "<|audio|>", "<audio|>"),
            sampling_rate=16_000,
            log_mel=None,
            samples_per_token=640,
            num_tokens=None,
            max_samples=None,
        ),
    )


def _gemma3_media(ids: Any) -> MediaSpec:
    return MediaSpec(
        pictures=SquarePictures(
            tokens=ids("<start_of_image>", "<start_of_image>", "<image_soft_token>", "<end_of_image>", "\n\n"),
            side=112,
            num_tokens=4,
            filter="bilinear",
            attends_both_ways=True,
            pan_and_scan=PanAndScan(enabled=False, min_crop_size=256, max_num_crops=4, min_ratio=1.2),
        )
    )
