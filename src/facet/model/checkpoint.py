"""Matches what a model needs with what a checkpoint's files hold, by name and shape, and only then loads the weights.

Checking reads only headers, so a checkpoint that does not fit its config is refused before any memory is spent on it.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from facet.errors import CheckpointError
from facet.kernels.quantized import QuantizedMatrix
from facet.kernels.quantized.quantize import quantize
from facet.layers.linear import Linear
from facet.layers.weight import DenseWeight, Values
from facet.matrix_format import MatrixFormat
from facet.model.quantized.matching import Source, cut_values, find_source, format_of, read_share, tensors_of
from facet.model.quantized.scheme import Scheme
from facet.model.shard import Cut
from facet.model.stored_tensor import StoredTensor
from facet.model.weight_files import WeightFiles, some_of
from facet.model.weight_map import TensorTarget, is_unused, tensor_targets
from facet.model_spec import ModelSpec
from facet.progress import Progress

# The types weights may be stored in. Anything else is quantized or an accident, and bytes taken for numbers would load.
STORED_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

# What stands in front of a decoder's names, most specific first: published Gemma 4 and 3n; published Gemma 3 with
# vision; text-only exports.
DECODER_PREFIXES = ("model.language_model.", "language_model.model.", "model.")

# Parts of multimodal checkpoints that the text decoder leaves alone.
_OTHER_PARTS = (
    "vision_tower.",
    "audio_tower.",
    "embed_vision.",
    "embed_audio.",
    "vision_embedder.",
    "multi_modal_projector.",
)

NO_CUTS: Mapping[str, Cut] = {}
NO_FORMATS: Mapping[str, MatrixFormat] = {}


def match_tensors(
    spec: ModelSpec, stored: Mapping[str, StoredTensor], scheme: Scheme | None = None
) -> dict[TensorTarget, Source]:
    """What every tensor that the decoder needs is read from. One that is missing, unexpected or mis-shaped is an error.

    `scheme`: how the checkpoint is quantized.
    """
    prefix = next((p for p in DECODER_PREFIXES if any(name.startswith(f"{p}embed_tokens.") for name in stored)), None)
    if prefix is None:
        raise CheckpointError(
            f"None of the {len(stored)} tensors is a token embedding; looked for "
            + ", ".join(f"{p}embed_tokens.weight" for p in DECODER_PREFIXES)
            + "."
        )
    inside = {_name_inside(name, prefix): tensor for name, tensor in stored.items()}
    targets = {target.name: target for target in tensor_targets(spec)}
    found: dict[str, Source] = {}
    for name, target in targets.items():
        source = inside.get(name) if scheme is None else find_source(target, inside, scheme)
        if source is not None:
            found[name] = source
    used = {tensor.name for source in found.values() for tensor in tensors_of(source)}
    unexpected = [
        tensor.name
        for name, tensor in inside.items()
        if tensor.name not in used and not is_unused(spec, name) and not is_other_part(tensor.name)
    ]
    _refuse_misfits(targets, found, unexpected)
    return {target: found[name] for name, target in targets.items()}


def match_tower(
    targets: Iterable[TensorTarget], stored: Mapping[str, StoredTensor], scheme: Scheme | None = None
) -> dict[TensorTarget, Source]:
    """Like `match_tensors`, for what a checkpoint has beside the decoder. Tensors of other towers are left alone."""
    inside = {_name_beside(name): tensor for name, tensor in stored.items()}
    by_name = {target.name: target for target in targets}
    found: dict[str, Source] = {}
    for name, target in by_name.items():
        is_matrix = len(target.shape) == 2 and name.endswith(".weight")
        source = find_source(target, inside, scheme) if scheme is not None and is_matrix else inside.get(name)
        if source is not None:
            found[name] = source
    towers = {name.partition(".")[0] for name in by_name}
    used = {tensor.name for source in found.values() for tensor in tensors_of(source)}
    unexpected = [
        tensor.name for name, tensor in inside.items() if name.partition(".")[0] in towers and tensor.name not in used
    ]
    _refuse_misfits(by_name, found, unexpected)
    return {target: found[name] for name, target in by_name.items()}


def has_tower(prefixes: tuple[str, ...], stored: Iterable[str]) -> bool:
    """Whether any tensor has such a name: checkpoints are made with towers and without."""
    return any(_name_beside(name).startswith(prefixes) for name in stored)


def _refuse_misfits(targets: Mapping[str, TensorTarget], found: Mapping[str, Source], unexpected: list[str]) -> None:
    missing = [name for name in targets if name not in found]
    plain = {name: source for name, source in found.items() if isinstance(source, StoredTensor)}
    misshapen = [
        f"{name} {list(tensor.shape)} instead of {list(targets[name].shape)}"
        for name, tensor in plain.items()
        if tensor.shape != targets[name].shape
    ]
    mistyped = [
        f"{name} {tensor.dtype} instead of {', '.join(STORED_DTYPES)}"
        for name, tensor in plain.items()
        if tensor.dtype not in STORED_DTYPES
    ]
    if missing or unexpected or misshapen or mistyped:
        findings = (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", misshapen),
            ("of another type", mistyped),
        )
        raise CheckpointError(
            "The weights do not fit config.json: "
            + "; ".join(f"{len(names)} {what}: {some_of(names)}" for what, names in findings if names)
            + ". Nothing was loaded."
        )


def load_weights(
    model: nn.Module,
    matched: Mapping[TensorTarget, Source],
    progress: Progress,
    scheme: Scheme | None = None,
    *,
    cuts: Mapping[str, Cut] = NO_CUTS,
    online: Mapping[str, MatrixFormat] = NO_FORMATS,
) -> None:
    """Bring every tensor to its place in the module, one at a time, converting to the type it has there.

    `cuts` says, by name, of which tensors a rank holds only some; `online`, which are quantized on the way.
    """
    parameters = dict(model.named_parameters())
    linears = {name: module for name, module in model.named_modules() if isinstance(module, Linear)}
    # In the order of the files, so that a disk reads each from one end to the other.
    in_order = sorted(matched.items(), key=lambda pair: next(tensors_of(pair[1])).file)
    total = sum(target.num_values for target in matched)
    with progress.task("Loading weights", total) as advance, WeightFiles() as files:
        for target, source in in_order:
            cut = cuts.get(target.name)
            if isinstance(source, StoredTensor):
                # A scale may belong to all inputs of a row: such rows are quantized before they are cut.
                format = online.get(target.name) if cut is not None and cut.is_of_inputs else None
                tensor = files.read(source, cut=cut if format is None else None)
                placed = as_placed(tensor.float() + target.offset if target.offset else tensor, target)
                values: Values = placed if format is None else cut_values(quantize(placed, format), cut)
            else:
                assert scheme is not None, "quantized matrices are read by a scheme"
                values = read_share(source, scheme, files.read, cut)
            linear = linears.get(target.place)
            if linear is not None and isinstance(linear.weight, DenseWeight) and isinstance(values, QuantizedMatrix):
                values = as_placed(values.values(), target)  # towers and drafters compute with what codes stand for
            if linear is not None:
                linear.fill(values, target.part)
            else:
                assert isinstance(values, Tensor), "only products have quantized weights"
                parameters[target.place].data.copy_(values)
            advance(target.num_values)


def formats_of(matched: Mapping[TensorTarget, Source]) -> dict[str, MatrixFormat]:
    """The formats of the matrices that are quantized, by name."""
    found = {target.name: format_of(source) for target, source in matched.items()}
    return {name: format for name, format in found.items() if format is not None}


def common_dtype(matched: Mapping[TensorTarget, Source]) -> torch.dtype:
    """The type most of the unquantized weights are stored in."""
    sizes: dict[str, int] = {}
    for target, source in matched.items():
        if isinstance(source, StoredTensor):
            sizes[source.dtype] = sizes.get(source.dtype, 0) + target.num_values
    dtype = STORED_DTYPES[max(sizes, key=lambda name: sizes[name])]
    # Gemma's activations leave the range of float16, whatever the makers of quantized files took.
    is_quantized = any(not isinstance(source, StoredTensor) for source in matched.values())
    return torch.bfloat16 if is_quantized and dtype == torch.float16 else dtype


def _name_inside(name: str, prefix: str) -> str:
    if name.removeprefix("language_model.").startswith("lm_head."):
        return name.removeprefix("language_model.")
    return name.removeprefix(prefix) if name.startswith(prefix) else f"/{name}"


def _name_beside(name: str) -> str:
    """The name of a tower's tensor without what only some files put before or into it."""
    return name.removeprefix("model.").replace("vision_tower.vision_model.", "vision_tower.")


def as_placed(values: Tensor, target: TensorTarget) -> Tensor:
    """The values of a file as the module keeps them."""
    if target.layout == "transposed":
        return values.T
    return values.flatten(1) if target.layout == "kernel" else values


def is_other_part(name: str) -> bool:
    return name.removeprefix("model.").startswith(_OTHER_PARTS)
