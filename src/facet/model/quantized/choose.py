"""Finds how a checkpoint is quantized, from its config.json (and ModelOpt's hf_quant_config.json)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from facet.errors import ConfigError
from facet.model.config_fields import ConfigFields, read_config_file, shown
from facet.model.gguf.scheme import GgufScheme
from facet.model.quantized.awq import Awq
from facet.model.quantized.compressed_tensors import CompressedTensors
from facet.model.quantized.fp8 import Fp8
from facet.model.quantized.gemma import Gemma
from facet.model.quantized.gptq import Gptq
from facet.model.quantized.modelopt import ModelOpt
from facet.model.quantized.scheme import Scheme

_SCHEMES: dict[str, Callable[[ConfigFields], Scheme]] = {
    "compressed-tensors": CompressedTensors,
    "awq": Awq,
    "gptq": Gptq,
    "fp8": Fp8,
    "modelopt": ModelOpt,
    "gemma": Gemma,
    "gguf": GgufScheme,
}
_INSTEAD = "Use the unquantized checkpoint of the same model, with --quantization int4 or fp8 where memory is short."
_REFUSED = {
    "bitsandbytes": f"The weights are quantized by bitsandbytes, a format for training. {_INSTEAD}",
    "torchao": f"The weights are quantized by torchao, whose files hold Python objects. {_INSTEAD}",
}
_AUTO_ROUND: dict[str, Callable[[ConfigFields], Scheme]] = {"auto_round:auto_gptq": Gptq, "auto_round:auto_awq": Awq}
MODELOPT_FILE = "hf_quant_config.json"


def quantization_of(config: Mapping[str, Any]) -> ConfigFields | None:
    """The section that says how weights are quantized. Without a method it says nothing: published files of
    unquantized weights have such a one."""
    for fields in (ConfigFields(config), ConfigFields(config).section("text_config")):
        if "quantization_config" in fields:
            section = fields.section("quantization_config")
            return section if "quant_method" in section else None
    return None


def read_scheme(config: Mapping[str, Any], folder: Path | None = None) -> Scheme | None:
    """The scheme of a checkpoint. None: the weights are not quantized."""
    fields = quantization_of(config)
    if fields is None:
        path = None if folder is None else folder / MODELOPT_FILE
        if path is None or not path.exists():
            return None
        return ModelOpt(ConfigFields(read_config_file(path), MODELOPT_FILE).section("quantization"))
    method = fields.text("quant_method", "")
    if method in _REFUSED:
        raise ConfigError(_REFUSED[method])
    if method == "auto-round":
        packing = fields.text("packing_format", "auto_round:auto_gptq")
        if packing not in _AUTO_ROUND:
            raise ConfigError(
                f"AutoRound packed the weights as {shown(packing)}; Facet reads {', '.join(_AUTO_ROUND)}."
            )
        return _AUTO_ROUND[packing](fields)
    if method not in _SCHEMES:
        raise ConfigError(
            f"The weights are quantized by {shown(method)}, which Facet does not read. It reads "
            f"{', '.join(_SCHEMES)} and auto-round. {_INSTEAD}"
        )
    return _SCHEMES[method](fields)
