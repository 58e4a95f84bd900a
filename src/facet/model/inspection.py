"""Finds out what a checkpoint holds, from its config and from the headers of its files where they are at hand."""

from dataclasses import dataclass
from pathlib import Path

from facet.config import ModelConfig
from facet.model.checkpoint import formats_of, match_tensors
from facet.model.config_fields import read_config_file
from facet.model.loader import cache_notes
from facet.model.quantized.choose import read_scheme
from facet.model.weight_files import find_weight_files, has_weights, read_headers
from facet.model.weight_formats import Formats, expected_formats, online_formats, quantization_while_loading
from facet.model_spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    num_files: int | None  # of weights, whose names and shapes fit; None: none were looked for
    scheme: str | None  # by which the checkpoint is quantized
    formats: Formats  # of quantized matrices, as they would be loaded
    notes: tuple[str, ...]  # what the checkpoint has or asks for and does not get


def inspect_checkpoint(config: ModelConfig, spec: ModelSpec, folder: Path, *, must_have_files: bool) -> Inspection:
    """What checkpoint and config say of the model that `read_spec` has read. Raises where files are broken, incomplete,
    or do not fit the config."""
    scheme = read_scheme(read_config_file(folder / "config.json", config.hf_overrides), folder)
    formats: Formats = expected_formats(spec, scheme)
    notes, scheme_name = ((), None) if scheme is None else (scheme.notes, scheme.name)
    num_files = None
    if config.load_format != "dummy" and (must_have_files or has_weights(folder)):
        files = find_weight_files(folder)
        headers = read_headers(files)
        formats = formats_of(match_tensors(spec, headers, scheme))
        notes += cache_notes(headers, notes)
        num_files = len(files)
    return Inspection(
        num_files=num_files,
        scheme=scheme_name,
        formats=online_formats(
            spec, formats, quantization_while_loading(config.quantization, scheme_name), config.quantize_head
        ),
        notes=notes,
    )
