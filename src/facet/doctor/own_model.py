"""Writes a small random model that has every trait of Gemma 4's small models, a tokenizer of single characters and a
chat template, to examine a machine without a checkpoint."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers

VOCAB_SIZE = 512
_SLIDING, _FULL = "sliding_attention", "full_attention"
_LAYER_TYPES = [_SLIDING, _SLIDING, _SLIDING, _FULL] * 2

CONFIG: dict[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "vocab_size": VOCAB_SIZE,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "hidden_size": 256,
    "hidden_size_per_layer_input": 32,
    "intermediate_size": 512,
    "num_hidden_layers": len(_LAYER_TYPES),
    "layer_types": _LAYER_TYPES,
    "num_kv_shared_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "global_head_dim": 128,
    "sliding_window": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "final_logit_softcapping": 30.0,
    "rope_parameters": {
        _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    },
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
_CONTROL_TOKENS = (
    *("<pad>", "<eos>", "<bos>", "<unk>"),
    *("<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
    *('<|"|>', "<|think|>", "<|channel>", "<channel|>", "<|turn>", "<turn|>"),
)
_TEMPLATE = (
    "{{ bos_token }}{% for tool in tools or [] %}<|tool>{{ tool | tojson }}<tool|>{% endfor %}"
    "{% for message in messages %}<|turn>{{ message.role }}\n{{ message.content }}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)


def write_own_model(folder: Path, *, dtype: str) -> None:
    """Writes everything but weights: those are drawn when the model is loaded."""
    (folder / "config.json").write_text(json.dumps({**CONFIG, "dtype": dtype}), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(_TEMPLATE, encoding="utf-8")
    _tokenizer().save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")


def _tokenizer() -> tokenizers.Tokenizer:
    characters = [chr(code) for code in range(ord("!"), ord("~") + 1)]
    tokens = [*_CONTROL_TOKENS, "▁", *characters, *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(list(_CONTROL_TOKENS))
    return tokenizer
