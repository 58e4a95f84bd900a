"""Checkpoints of a few kilobytes with the published shapes of config and files, written without transformers."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from facet.model.families import read_model_spec
from facet.model.weight_map import tensor_targets
from tests.published_configs import PUBLISHED, Config, pattern, text_only

INDEX = "model.safetensors.index.json"


def shrunk(name: str) -> Config:
    """A published text config with every trait of the original and hardly any size."""
    config = text_only(name)
    num_sliding = 4 if "E2B" in name or "3n" in name else 5
    num_layers = 2 * (num_sliding + 1)
    config |= {
        "hidden_size": 16,
        "num_hidden_layers": num_layers,
        "layer_types": pattern(num_sliding, num_layers),
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "sliding_window": 6,
        "vocab_size": 64,
        "max_position_embeddings": 64,
    }
    small = {
        "global_head_dim": 16,
        "num_global_key_value_heads": 1 if config.get("attention_k_eq_v") else None,
        "num_kv_shared_layers": 5 if config.get("num_kv_shared_layers") else 0,
        "hidden_size_per_layer_input": 4 if config.get("hidden_size_per_layer_input") else 0,
        "vocab_size_per_layer_input": 64,
        "num_experts": 6,
        "top_k_experts": 2,
        "moe_intermediate_size": 8,
        "laurel_rank": 3,
        "activation_sparsity_pattern": [0.5] * 3 + [0.0] * (num_layers - 3),
    }
    return config | {field: value for field, value in small.items() if field in config}


SHRUNK = {name: shrunk(name) for name in PUBLISHED}


def random_tensors(config: Config, prefix: str = "model.", seed: int = 0) -> dict[str, Tensor]:
    """Every tensor the decoder needs, float32, under the names of a file."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for target in tensor_targets(read_model_spec(config)):
        name = target.name if target.name == "lm_head.weight" else prefix + target.name
        tensors[name] = torch.randn(target.shape, generator=generator) * target.shape[-1] ** -0.5
    return tensors


def write_config(folder: Path, config: Config) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_checkpoint(folder: Path, config: Config, tensors: Mapping[str, Tensor], *, num_shards: int = 1) -> Path:
    """One file, or shards with an index that lists them."""
    write_config(folder, config)
    if num_shards == 1:
        save_file(dict(tensors), folder / "model.safetensors")
        return folder
    shard_of = {name: index % num_shards for index, name in enumerate(tensors)}
    file_of = {name: f"model-{shard + 1:05}-of-{num_shards:05}.safetensors" for name, shard in shard_of.items()}
    for file in set(file_of.values()):
        save_file({name: tensor for name, tensor in tensors.items() if file_of[name] == file}, folder / file)
    index = {"metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())}, "weight_map": file_of}
    (folder / INDEX).write_text(json.dumps(index))
    return folder
