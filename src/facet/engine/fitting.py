"""Says whether a downloaded model fits into the memory of this machine."""

import torch

from facet.engine.memory_plan import make_plan
from facet.engine.plan_config import PlanConfig
from facet.errors import CapacityError, UserError
from facet.model.hub_cache import CachedModel
from facet.runner.measuring import free_host_bytes

_LEAST_CACHE = 512 << 20  # what an engine on a CPU gives its cache at least


def describe_fit(model: CachedModel) -> str:
    """Whether and how a model fits, in a few words for a table."""
    if not model.is_whole:
        return "only its config; pull it"
    if len(model.gguf_files) > 1:
        return "name one of its files"
    folder = str(model.folder / model.gguf_files[0]) if model.gguf_files else str(model.folder)
    try:
        if torch.cuda.is_available():
            return _on_gpu(folder, torch.cuda.get_device_properties(0).total_memory)
        return _on_cpu(folder, free_host_bytes())
    except CapacityError:
        return "does not fit; facet plan says what would"
    except UserError:
        return "is not a model that Facet runs"


def _on_gpu(folder: str, total: int) -> str:
    plan = make_plan(PlanConfig(model=folder, gpu_memory=str(total), max_model_len="auto"))
    return f"fits, up to {plan.capacity.max_model_len:,} tokens"


def _on_cpu(folder: str, free: int) -> str:
    """How a model fits on the CPU. Only the weights are counted: a cache on a CPU takes what they leave."""
    plan = make_plan(PlanConfig(model=folder, kv_cache_memory_bytes=_LEAST_CACHE, max_model_len="auto"))
    needed = plan.weights.total + _LEAST_CACHE
    if needed > free:
        raise CapacityError(f"{needed} of {free} bytes")
    return f"fits, on the CPU ({needed / 2**30:.1f} of {free / 2**30:.1f} GiB)"
