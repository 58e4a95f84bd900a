"""The shape of a bundled model that sees: the text model's config with a tower, and how pictures are prepared for it.

The tower is small because the decoder does most of the seeing: it is trained along, and its ten layers attend to the
rows of a picture as they do to words.
"""

from collections.abc import Mapping
from typing import Any

import tokenizers

from facet.media.spec import MediaTokens, PatchPictures
from facet.model.vision_config import read_vision_spec
from facet.vision_spec import PatchTowerSpec
from tools.bundled_model.seeing.vocabulary import BEGIN, END, FRAME, SOFT, token_id
from tools.bundled_model.shape import make_config, make_spec

PATCH_SIZE = 16
# A picture has at most so many rows. A square one has 11 x 11, 176 x 176 pixels: enough for a short word.
BUDGET = 140
_MOST_PLACES = 1120  # the largest budget that a request may ask for, in a line

VISION_CONFIG: Mapping[str, Any] = dict(
    model_type="gemma4_vision",
    hidden_size=96,
    intermediate_size=192,
    num_hidden_layers=3,
    num_attention_heads=3,
    num_key_value_heads=3,
    head_dim=32,
    patch_size=PATCH_SIZE,
    pooling_kernel_size=1,  # of 16 pixels each, patches are not so many that they must be averaged
    position_embedding_size=_MOST_PLACES,
    rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    hidden_activation="gelu_pytorch_tanh",
    rms_norm_eps=1e-6,
    use_clipped_linears=False,
    standardize=False,
)


def make_seeing_config(
    tokenizer: tokenizers.Tokenizer, text: Mapping[str, Any] | None = None, **vision: Any
) -> dict[str, Any]:
    """The `config.json` of a multimodal checkpoint around a text model's, by default the bundled one's."""
    text = dict(make_config() if text is None else text)
    text.pop("architectures")
    return dict(
        architectures=["Gemma4ForConditionalGeneration"],
        model_type="gemma4",
        dtype=text["dtype"],
        text_config=text,
        vision_config={**VISION_CONFIG, **vision},
        boi_token_id=token_id(tokenizer, BEGIN),
        image_token_id=token_id(tokenizer, SOFT),
        eoi_token_id=token_id(tokenizer, END),
        video_token_id=token_id(tokenizer, FRAME),
        tie_word_embeddings=True,
        **{name: text[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id")},
    )


def processor_config() -> dict[str, Any]:
    """The processor's file: how pictures are cut. The model was shown no video, and takes none."""
    pictures = {"patch_size": PATCH_SIZE, "pooling_kernel_size": 1, "max_soft_tokens": BUDGET}
    return {"image_processor": pictures, "video_processor": None}


def make_vision_spec(config: Mapping[str, Any]) -> PatchTowerSpec | None:
    """What Facet will compute for this config; None: it has no tower."""
    spec = read_vision_spec(config, make_spec(config).hidden_size)
    assert spec is None or isinstance(spec, PatchTowerSpec)
    return spec


def picture_spec(tokenizer: tokenizers.Tokenizer) -> PatchPictures:
    """How Facet will prepare pictures for the exported model."""
    begin, soft, end = (token_id(tokenizer, token) for token in (BEGIN, SOFT, END))
    return PatchPictures(
        tokens=MediaTokens(placeholder=soft, begin=begin, soft=soft, end=end),
        patch_size=PATCH_SIZE,
        token_size=PATCH_SIZE,
        budget=BUDGET,
        filter="bicubic",
        attends_both_ways=False,
    )
