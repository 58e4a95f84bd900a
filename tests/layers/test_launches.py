"""What a decoder layer launches on a GPU, by name: a step of few rows lasts as long as its launches are many.

Without a GPU: tensors say that they are on one, and kernels are written down instead of launched.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from facet.kernels.arithmetic import USUAL
from facet.kv_layout import make_kv_layout
from facet.layers.altup import AltUpLayer
from facet.layers.attention import KindStep, LayerReads, heads_of
from facet.layers.decoder_layer import DecoderLayer
from facet.layers.kv_arena import KVArena
from facet.layers.placement import Placement
from facet.layers.rms_norm import Residual
from facet.model.families import read_model_spec
from tests.tiny_checkpoints import SHRUNK

triton_jit = pytest.importorskip("triton.runtime.jit")

# What PyTorch computes. Other calls make views, or room for results.
COMPUTING = {"linear", "mul", "add", "sub", "div", "cat", "stack", "to", "float", "tanh", "einsum", "add_", "__iadd__"}


class Operations(TorchFunctionMode):
    def __init__(self, launched: list[str]) -> None:
        super().__init__()
        self.launched = launched

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in COMPUTING:
            self.launched.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []

    def write_down(kernel: Any, grid: object) -> Callable[..., None]:
        return lambda *args, **options: names.append(kernel.fn.__name__)

    monkeypatch.setattr(triton_jit.KernelInterface, "__getitem__", write_down)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True))
    return names


PRODUCT, ADD_NORM = "_few_rows_kernel", "add_norm_kernel"
ATTENTION = [PRODUCT, "_prepare_heads_kernel", "attend", PRODUCT, ADD_NORM]
MLP = [PRODUCT, PRODUCT, ADD_NORM]
PER_LAYER_INPUT = [PRODUCT, PRODUCT, ADD_NORM]
EXPERTS = [
    *["rms_norm_kernel", PRODUCT, "_route_kernel"],
    *["_pair_hidden_kernel", "_pair_down_kernel", "sum_of_norms_kernel"],
]
CUBLAS = "linear"
# Of Gemma 3n: what the active stream says of all four, what they become by it, and the layer between.
STREAMS = [
    *["predict_kernel", *ATTENTION[:-1], PRODUCT, PRODUCT, "join_kernel"],
    *[PRODUCT, "_sparse_geglu_kernel", PRODUCT, ADD_NORM],
    *["correct_kernel", PRODUCT, PRODUCT, "inject_kernel"],
]


@pytest.mark.parametrize(
    ("name", "num_rows", "expected"),
    [
        ("Gemma 4 E4B", 1, ATTENTION + MLP + PER_LAYER_INPUT),
        ("Gemma 4 31B", 1, ATTENTION + MLP),
        ("Gemma 3n E4B", 1, STREAMS),
        ("Gemma 4 26B-A4B", 1, ATTENTION + MLP[:2] + EXPERTS + MLP[2:]),
        (
            "Gemma 4 E4B",
            600,
            [
                *[CUBLAS, "_prepare_heads_kernel", "attend", CUBLAS, ADD_NORM],
                *[CUBLAS, "_geglu_kernel", CUBLAS, ADD_NORM],
                *[CUBLAS, "_gate_kernel", CUBLAS, ADD_NORM],
            ],
        ),
        (
            "Gemma 4 26B-A4B",
            600,
            [
                *[CUBLAS, "_prepare_heads_kernel", "attend", CUBLAS, ADD_NORM],
                *[CUBLAS, "_geglu_kernel", CUBLAS],
                *["rms_norm_kernel", CUBLAS, "_route_kernel"],
                *["count_kernel", "place_kernel", "_grouped_kernel", "_grouped_kernel"],
                *["_combine_kernel", "sum_of_norms_kernel", ADD_NORM],
            ],
        ),
    ],
)
def test_a_layer_in_the_middle(name: str, num_rows: int, expected: list[str], launched: list[str]) -> None:
    """Its first norm was made with the last addition before it, and it makes that of the next layer."""
    spec = read_model_spec(SHRUNK[name])
    layer = spec.layers[1]
    placement = Placement(dtype=torch.float16, device=torch.device("cpu"), arithmetic=USUAL)
    module: DecoderLayer | AltUpLayer = DecoderLayer(spec, layer, placement)
    if spec.altup is not None:
        module = AltUpLayer(spec, layer, spec.altup, placement)
    arena = KVArena(make_kv_layout(spec, dtype="float16"), 2, "cpu")

    def attend(queries: Tensor, reads: LayerReads) -> Tensor:
        launched.append("attend")
        return torch.empty_like(queries)

    num_pairs = layer.rotary.num_rotated_pairs(layer.head_dim)
    step = KindStep(
        heads=heads_of(layer),
        attend=attend,
        cos_sin=torch.empty(num_rows, 2, num_pairs),
        cos_sin_table=torch.empty(8, 2, num_pairs),
        write_blocks=torch.empty(num_rows, dtype=torch.int64),
        write_slots=torch.empty(num_rows, dtype=torch.int64),
    )
    streams = () if spec.altup is None else (spec.altup.num_streams,)
    stream = torch.empty(*streams, num_rows, spec.hidden_size, dtype=torch.float16)
    per_layer = spec.per_layer_input
    given = None if per_layer is None else torch.empty(num_rows, per_layer.width, dtype=torch.float16)
    launched.clear()
    with torch.inference_mode(), Operations(launched):
        module(Residual(stream, stream), given, step, arena.layer(1), module.attention, module.input_norm)
    assert launched == expected
