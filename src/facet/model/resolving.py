"""Resolves what a config leaves open: the type a model is computed in, the device, and the longest context.

What cannot be is refused here, before anything is loaded.
"""

import torch

from facet.config import ContextLength
from facet.errors import ConfigError
from facet.model_spec import ModelSpec
from facet.ranks import ALONE, Rank

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
    "float32": torch.float32,
    "float": torch.float32,
}


def resolve_dtype(asked: str, stored: torch.dtype, device: torch.device) -> torch.dtype:
    if asked == "auto":
        return torch.float32 if stored == torch.bfloat16 and not multiplies_bfloat16(device) else stored
    if asked not in _DTYPES:
        raise ConfigError(f"--dtype {asked} is not known. Known: auto, {', '.join(_DTYPES)}.")
    return _DTYPES[asked]


def multiplies_bfloat16(device: torch.device) -> bool:
    """False on a processor without such instructions, where a product takes 40 to 190 times as long as in float32."""
    return device.type != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def dtype_of_config(spec: ModelSpec) -> torch.dtype:
    """What config.json says the weights are stored in; where there are weights, they know better."""
    return _DTYPES.get(spec.checkpoint_dtype or "bfloat16", torch.bfloat16)


def check_dtype(dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a type that the card can hold but not multiply."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        raise ConfigError(
            f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}, but bfloat16 needs 8.0. "
            "Use --dtype float16 or --dtype float32."
        )


def resolve_device(asked: str, rank: Rank = ALONE) -> torch.device:
    """The device asked for, or a rank's own of as many GPUs."""
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    if rank.size > 1 and asked != "cpu":
        return _gpu_of(rank, asked)
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise ConfigError(f"--device {asked} is not known. Known: auto, cpu, cuda, cuda:N.") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device {asked} is not supported. Supported: auto, cpu, cuda, cuda:N.")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise ConfigError(
            f"--device {asked} was asked for, but this machine shows {count} GPU{'s' * (count != 1)}. "
            "--device cpu always works."
        )
    return device


def _gpu_of(rank: Rank, asked: str) -> torch.device:
    if asked != "cuda":
        raise ConfigError(
            f"--device {asked} names one GPU, but --tensor-parallel-size {rank.size} takes the first {rank.size}. "
            "Leave --device out; CUDA_VISIBLE_DEVICES chooses which are seen."
        )
    count = torch.cuda.device_count()
    if rank.gpu is not None and rank.gpu < count:
        return torch.device("cuda", rank.gpu)
    if rank.size > count:
        raise ConfigError(
            f"--tensor-parallel-size {rank.size} needs as many GPUs, but this machine shows {count}. Use a smaller "
            "size, or --device cpu."
        )
    return torch.device("cuda", rank.index)


def resolve_context_length(asked: ContextLength, spec: ModelSpec) -> int:
    """The context length before it is known what fits: `auto` may become less."""
    if asked is None or asked == "auto":
        return spec.max_positions
    if not 1 <= asked <= spec.max_positions:
        raise ConfigError(
            f"--max-model-len {asked} is outside 1 to {spec.max_positions}, the longest context of this model."
        )
    return asked
