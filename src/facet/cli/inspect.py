"""`facet inspect [MODEL]`: shows a checkpoint's layers, checks its files and, with --load, that it runs."""

import argparse
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from facet.cli.flags import add_common_flags, add_config_flags
from facet.cli.models import model_config_from
from facet.config import ModelConfig
from facet.errors import CheckpointError
from facet.kv_layout import make_kv_layout
from facet.model_spec import LayerSpec, ModelSpec
from facet.progress import Bars

if TYPE_CHECKING:
    from facet.model.loader import LoadedModel


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("inspect", help="show a checkpoint's layers and check its files")
    add_config_flags(parser, ModelConfig)
    parser.add_argument("--load", action="store_true", help="also load the weights and run one forward pass")
    add_common_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    # Imported here: not every command must wait for torch.
    from facet.model.checkpoint import find_weight_files, formats_of, match_tensors, read_headers
    from facet.model.config_fields import read_config_file
    from facet.model.loader import load_model, read_spec
    from facet.model.quantized.choose import read_scheme
    from facet.model.weight_formats import expected_formats, weight_bytes
    from facet.model.weight_map import tensor_targets

    config = model_config_from(options, ModelConfig)
    console = Console()
    spec, folder = read_spec(config, config_only=not options.load)
    console.print(layer_table(spec))
    num_values = sum(target.num_values for target in tensor_targets(spec))
    console.print(f"{num_values / 1e9:.3f} billion weights in {len(tensor_targets(spec))} tensors.")
    scheme = read_scheme(read_config_file(folder / "config.json"), folder)
    formats = expected_formats(spec, scheme)
    if config.load_format != "dummy" and (
        options.load or any(path.suffix in (".safetensors", ".gguf") for path in folder.iterdir())
    ):
        files = find_weight_files(folder)
        formats = formats_of(match_tensors(spec, read_headers(files), scheme))
        console.print(f"All tensors are present, in {len(files)} file{'s' * (len(files) > 1)}.")
    if scheme is not None and not options.load:
        line = weight_bytes(spec, formats, value_bytes=2).line
        console.print(f"Quantized by {scheme.name}: {line}." if line else f"{scheme.name}, but no matrix is quantized.")
        for note in scheme.notes:
            console.print(note)
    if options.load:
        start = time.perf_counter()
        loaded = load_model(config, Bars())
        for line in loaded.lines():
            console.print(line)
        console.print(
            f"Loaded as {str(loaded.model.placement.dtype).removeprefix('torch.')} on "
            f"{loaded.model.placement.device} in {time.perf_counter() - start:.1f} s."
        )
        console.print(f"One forward pass of {run_once(loaded)} tokens gave finite logits.")
    return 0


def layer_table(spec: ModelSpec) -> Table:
    """The layers, consecutive equal ones in one row."""
    table = Table(title=f"{spec.architecture}: {spec.num_layers} layers, hidden {spec.hidden_size}")
    for column in (
        "layers",
        "attention",
        "window",
        "heads",
        "kv heads",
        "head dim",
        "kv",
        "mlp",
    ):
        table.add_column(column, justify="left" if column in ("attention", "kv") else "right")
    start = 0
    for end in range(1, spec.num_layers + 1):
        if end == spec.num_layers or _description(spec.layers[end]) != _description(spec.layers[start]):
            name = f"{start}" if end == start + 1 else f"{start}-{end - 1}"
            table.add_row(name, *_description(spec.layers[start]))
            start = end
    return table


def _description(layer: LayerSpec) -> tuple[str, ...]:
    if layer.kv_from_layer is not None:
        keys = f"of layer {layer.kv_from_layer}"
    else:
        keys = "shared" if layer.values_are_keys else "separate"
    mlp = str(layer.mlp_width)
    if layer.moe is not None:
        mlp += f" + {layer.moe.num_chosen} of {layer.moe.num_experts} x {layer.moe.width}"
    return (
        layer.attention,
        str(layer.window or "all"),
        str(layer.num_heads),
        str(layer.num_kv_heads),
        str(layer.head_dim),
        keys,
        mlp,
    )


def run_once(loaded: "LoadedModel") -> int:
    """Runs a short pass over made-up tokens and returns their number. Raises if the logits are not finite."""
    import torch

    from facet.layers.kv_arena import KVArena
    from facet.runner.batch import SequenceRows, make_batch_of

    spec, placement = loaded.spec, loaded.model.placement
    layout = make_kv_layout(spec, dtype=str(placement.dtype).removeprefix("torch."))
    arena = KVArena(layout, 1 + len(layout.groups), placement.device)
    num_tokens = min(*(group.tokens_per_block for group in layout.groups), loaded.context_length)
    sequence = SequenceRows(
        token_ids=[(3 + index) % spec.vocab_size for index in range(num_tokens)],
        num_computed=0,
        block_tables=tuple((1 + index,) for index in range(len(layout.groups))),
        num_logit_rows=1,
    )
    with torch.inference_mode():
        batch = make_batch_of([sequence], placement.device, skip_upper=True)
        logits = loaded.model.logits(loaded.model(batch, arena))
    if not bool(logits.isfinite().all()):
        raise CheckpointError(
            f"The logits of a forward pass are not finite: the weights in {loaded.folder} are damaged, or too large "
            f"for {str(placement.dtype).removeprefix('torch.')}. Try --dtype float32, or download them again."
        )
    return num_tokens
