"""Tiny checkpoints of what turns sound into rows, random clips, and the rows that transformers makes of them."""

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.tiny_models import spec_script

Clip = dict[str, Tensor]
LENGTHS = (37, 1, 70, 16, 5, 17)  # in frames

_CONFORMER = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    subsampling_conv_channels=[16, 8],
    output_proj_dims=24,
)
_USM = dict(
    hidden_size=32,
    conf_num_hidden_layers=2,
    conf_num_attention_heads=2,
    input_feat_size=16,
    sscp_conv_channel_size=[8, 4],
    vocab_size=12,
    vocab_offset=500,
)
_UNCLIPPED = dict(
    num_hidden_layers=3,
    num_attention_heads=4,
    conv_kernel_size=3,
    attention_context_left=6,
    attention_chunk_size=5,
    attention_logit_cap=2.0,
    residual_weight=0.25,
    use_clipped_linears=False,
)
_SHORT_SIGHTED = dict(
    conf_attention_context_left=4,
    conf_attention_logit_cap=3.0,
    conf_conv_kernel_size=2,
    conf_reduction_factor=2,
    conf_residual_weight=0.75,
)
# Where transformers keeps a family's classes, what they are called, the base whose decoder it is, and the audio_config.
KINDS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "conformer": ("gemma4", "Gemma4", "gemma4_e2b", _CONFORMER),
    "conformer_unclipped": ("gemma4", "Gemma4", "gemma4_e2b", _CONFORMER | _UNCLIPPED),
    "usm": ("gemma3n", "Gemma3n", "gemma3n", _USM),
    "usm_short_sighted": ("gemma3n", "Gemma3n", "gemma3n", _USM | _SHORT_SIGHTED),
    "samples": ("gemma4_unified", "Gemma4Unified", "gemma4_12b", dict(audio_embed_dim=40)),
}


@dataclass(frozen=True)
class TinySound:
    folder: Path
    config: dict[str, Any]
    oracle: nn.ModuleDict  # embed_audio, and audio_tower where there is one

    @torch.no_grad()
    def rows(self, clip: Clip) -> Tensor:
        features, embed = clip["features"][None], self.oracle["embed_audio"]
        mask = torch.ones(features.shape[:2], dtype=torch.bool)
        if self.config["model_type"] == "gemma4_unified":
            return embed(features)[0]
        if self.config["model_type"] == "gemma4":
            return embed(self.oracle["audio_tower"](features, mask).last_hidden_state)[0]
        heard = embed(inputs_embeds=self.oracle["audio_tower"](features, ~mask).last_hidden_state)[0]
        last_id = self.config["text_config"]["vocab_size"] - 1
        missing = embed(input_ids=torch.tensor([last_id]))
        return torch.cat((heard, missing.expand(self.config["audio_soft_tokens_per_image"] - len(heard), -1)))


def make_tiny_sound(kind: str, folder: Path, seed: int) -> TinySound:
    """Write a checkpoint that holds nothing but what is needed for sound."""
    import transformers

    module, prefix, decoder, audio = KINDS[kind]
    text = spec_script().MODELS[decoder][1]
    config = dict(model_type=module, text_config=text, audio_config=audio, audio_soft_tokens_per_image=40)
    modeling = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    audio_config = getattr(transformers, f"{prefix}AudioConfig")(**audio)
    audio_config._attn_implementation = "sdpa"  # the other one inverts the mask
    text_config = getattr(transformers, f"{prefix}TextConfig")(**text)
    parts = {"embed_audio": getattr(modeling, f"{prefix}MultimodalEmbedder")(audio_config, text_config)}
    if kind != "samples":
        tower = modeling.Gemma3nAudioEncoder if module == "gemma3n" else modeling.Gemma4AudioModel
        parts["audio_tower"] = tower(audio_config)
    oracle = nn.ModuleDict(parts).float().eval()
    spec_script().fill_weights(oracle, seed, False)
    tensors = {f"model.{name}": tensor.contiguous() for name, tensor in oracle.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return TinySound(folder=folder, config=config, oracle=oracle)


def random_clips(width: int, seed: int = 0) -> list[Clip]:
    generator = torch.Generator().manual_seed(seed)
    return [{"features": torch.randn(length, width, generator=generator)} for length in LENGTHS]
