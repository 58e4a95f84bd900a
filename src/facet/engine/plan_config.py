"""The settings of `facet plan`; flags are made from these fields."""

from dataclasses import dataclass

from facet.config import ServerConfig, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig(ServerConfig):
    """What to plan for, and how the plan is shown. Everything else is as for `facet serve`."""

    gpu_memory: str | None = setting(None, "memory of one GPU, such as 24GiB or 24GB")
    weight_format: str = setting(
        "auto",
        "format of the weights; auto: what quantization_config in config.json says, or unquantized",
        choices=("auto", "none", "int4", "int8", "fp8", "nvfp4"),
    )
    weight_group_size: int | None = setting(
        None, "number of inputs that share a scale; default: from config.json, or 32 for int4, 16 for nvfp4, else a row"
    )
    json: bool = setting(False, "print the plan as JSON")
    plot: str | None = setting(
        None, "also draw how many requests fit against their length, into this file (needs matplotlib)"
    )
