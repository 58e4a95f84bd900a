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
from facet.large_imports import large_imports
from facet.model.named_model import read_spec
from facet.model_spec import LayerSpec, ModelSpec
from facet.progress import Bars

if TYPE_CHECKING:
    from facet.model.loader import LoadedModel
    from facet.model.weight_formats import MatrixKind


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("inspect", help="show a checkpoint's layers and check its files")
    add_config_flags(parser, ModelConfig)
    parser.add_argument("--load", action="store_true", help="also load the weights and run one forward pass")
    add_common_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    config = model_config_from(options, ModelConfig)
    spec, folder = read_spec(config, config_only=not options.load)
    # Imported here: not every command must wait for torch, and not every mistake.
    with large_imports():
        from facet.model.adapters import plan_room
        from facet.model.batch_invariance import arithmetic_of, with_batch_invariance
        from facet.model.inspection import inspect_checkpoint
        from facet.model.loader import load_model
        from facet.model.resolving import dtype_of_config, resolve_device
        from facet.model.weight_formats import matrix_kinds, weight_bytes
        from facet.model.weight_map import tensor_targets

    console = Console()
    found = inspect_checkpoint(config, spec, folder, must_have_files=options.load)
    console.print(layer_table(spec))
    num_values = sum(target.num_values for target in tensor_targets(spec))
    console.print(f"{num_values / 1e9:.3f} billion weights in {len(tensor_targets(spec))} tensors.")
    if found.num_files is None:
        if config.load_format != "dummy":
            console.print("No weight files are here, so none were checked.")
    else:
        console.print(f"All tensors are present, in {found.num_files} file{'s' * (found.num_files > 1)}.")
    if found.formats:
        dtype = dtype_of_config(spec)
        console.print(matrix_table(matrix_kinds(spec, found.formats, value_bytes=dtype.itemsize)))
        by = "while loading" if found.scheme is None else f"by {found.scheme}"
        console.print(f"Quantized {by}: {weight_bytes(spec, found.formats, dtype=dtype).line}.")
    elif found.scheme is not None:
        console.print(f"{found.scheme}, but no matrix is quantized.")
    for note in found.notes:
        console.print(note)
    room = plan_room(config, spec)
    for file in () if room is None else room.files:
        console.print(f"The adapter {file.source.name} fits: {file.line}.")
    if options.load:
        start = time.perf_counter()
        arithmetic = arithmetic_of(with_batch_invariance(config, resolve_device(config.device)))
        loaded = load_model(config, Bars(), arithmetic=arithmetic)
        console.print(
            f"Loaded as {str(loaded.model.placement.dtype).removeprefix('torch.')} on "
            f"{loaded.model.placement.device} in {time.perf_counter() - start:.1f} s."
        )
        console.print(f"One forward pass of {run_once(loaded)} tokens gave finite logits.")
    return 0


def matrix_table(kinds: "list[MatrixKind]") -> Table:
    """A table of how every kind of matrix is kept."""
    table = Table(title="Matrices, as they are kept in memory")
    for column in ("matrices", "number", "format", "bits per weight", "GiB"):
        table.add_column(column, justify="left" if column in ("matrices", "format") else "right")
    for kind in kinds:
        table.add_row(
            kind.name,
            str(kind.num_matrices),
            "unquantized" if kind.format is None else kind.format.line,
            f"{8 * kind.num_bytes / kind.num_values:.2f}",
            f"{kind.num_bytes / 2**30:.3f}",
        )
    return table


def layer_table(spec: ModelSpec) -> Table:
    """A table of the layers, consecutive equal ones in one row."""
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
