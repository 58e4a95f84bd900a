"""The layer of Gemma 3n: it has several residual streams, computes one and predicts the others (AltUp), and has a
low-rank path parallel to attention (LAuReL).

    streams [4, rows, hidden]    stream 0 is active: attention and MLP run on it alone
    predict   every stream from all of them, by coefficients a small router reads off the active one
    compute   the active stream, as a decoder layer would
    correct   every stream by what computing changed over predicting
    inject    the per-layer input into the inactive streams
"""

import torch
from torch import Tensor, nn

from facet.kernels.paged_attention import LayerCache
from facet.kernels.streams import choose_kernels
from facet.layers.attention import Attention, KindStep
from facet.layers.linear import Linear
from facet.layers.mlp import MLP
from facet.layers.per_layer_input import PerLayerGate
from facet.layers.placement import Placement
from facet.layers.rms_norm import Residual, RMSNorm
from facet.layers.weight import DenseWeight
from facet.model_spec import AltUpSpec, LayerSpec, ModelSpec


class StreamRouter(nn.Module):
    """Coefficients in (-1, 1) per row and stream, read off one stream."""

    def __init__(self, hidden_size: int, num_streams: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.norm = RMSNorm(hidden_size, eps, placement)
        self.router = Linear(hidden_size, num_streams, placement)
        self.factor = 1.0 / hidden_size

    def forward(self, x: Tensor) -> Tensor:
        """Half types need not be widened for it: PyTorch takes their tanh in float32."""
        return torch.tanh(self.router(self.norm(x) * self.factor))


class Laurel(nn.Module):
    """h + norm(right(left(h))): a low-rank detour around attention."""

    def __init__(self, hidden_size: int, rank: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.left = Linear(hidden_size, rank, placement)
        self.right = Linear(rank, hidden_size, placement)
        self.norm = RMSNorm(hidden_size, eps, placement)

    def forward(self, h: Tensor) -> Tensor:
        return self.norm.add(h, self.detour(h)).stream

    def detour(self, h: Tensor) -> Tensor:
        out: Tensor = self.right(self.left(h))
        return out


class AltUpLayer(nn.Module):
    """streams: [num_streams, rows, hidden] in and out."""

    def __init__(self, spec: ModelSpec, layer: LayerSpec, altup: AltUpSpec, placement: Placement) -> None:
        super().__init__()
        hidden, eps = spec.hidden_size, spec.norm_eps
        assert spec.per_layer_input is not None, "AltUp models have per-layer inputs"
        self.num_streams = altup.num_streams
        self.arithmetic = placement.arithmetic
        self.attention = Attention(layer, hidden, eps, placement)
        self.mlp = MLP(hidden, layer.mlp_width, layer.mlp_sparsity, placement)
        self.laurel = Laurel(hidden, altup.laurel_rank, eps, placement)
        self.input_norm = RMSNorm(hidden, eps, placement)
        self.post_attention_norm = RMSNorm(hidden, eps, placement)
        self.pre_mlp_norm = RMSNorm(hidden, eps, placement, before=self.mlp.gate_up)
        self.post_mlp_norm = RMSNorm(hidden, eps, placement)
        self.stream_router = StreamRouter(hidden, altup.num_streams, eps, placement)
        self.prediction = Linear(altup.num_streams, altup.num_streams**2, placement)
        self.correction = Linear(altup.num_streams, altup.num_streams, placement)
        self.output_scale = placement.values(hidden)
        self.per_layer_gate = PerLayerGate(hidden, spec.per_layer_input.width, eps, placement)

    def forward(
        self,
        residual: Residual,
        per_layer_input: Tensor,
        step: KindStep,
        cache: LayerCache,
        source: Attention,
        next_norm: RMSNorm | None,
        *,
        is_stored: bool = False,
    ) -> Residual:
        """`is_stored`: `store` was called for these rows."""
        predicted, h = self._predict(residual.stream)
        active = self._compute(predicted[0], h, step, cache, source, is_stored)
        corrected, scaled = self._correct(predicted, active)
        self._inject(corrected, self.per_layer_gate.project(scaled, per_layer_input))
        return Residual(corrected, None)

    def store(self, residual: Residual, step: KindStep, cache: LayerCache) -> None:
        """The keys and values of rows that go no further."""
        self.attention.store(self._predict(residual.stream)[1], step, cache)

    def _predict(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """The predicted streams, and the active one through the norm before attention."""
        kernels, weights = choose_kernels(streams), self._weights_of(self.prediction)
        if kernels is not None and weights is not None:
            return kernels.predict(streams, *weights, self.input_norm.weight, self.input_norm.eps)
        shape = (self.num_streams, self.num_streams)
        coefficients = self.prediction(self.stream_router(streams[0])).view(-1, *shape)
        predicted = streams + self.arithmetic.mix_streams(coefficients, streams)
        return predicted, self.input_norm(predicted[0])

    def _compute(
        self, active: Tensor, h: Tensor, step: KindStep, cache: LayerCache, source: Attention, is_stored: bool
    ) -> Tensor:
        attended = self.attention(h, step, cache, source, is_stored=is_stored)
        x, normed = self._join(active, attended, h)
        return self.post_mlp_norm.add(x, self.mlp(self.pre_mlp_norm(x) if normed is None else normed)).stream

    def _join(self, active: Tensor, attended: Tensor, h: Tensor) -> tuple[Tensor, Tensor | None]:
        """The sum of both paths, and that through the norm before the MLP, unless the product that takes it has it
        rounded."""
        kernels, norm, laurel = choose_kernels(active), self.post_attention_norm, self.laurel
        if kernels is None:
            return (norm.add(active, attended).stream + laurel(h)) * 2.0**-0.5, None
        next_norm = self.pre_mlp_norm.weight if isinstance(self.mlp.gate_up.weight, DenseWeight) else None
        return kernels.join_paths(
            active, attended, norm.weight, h, laurel.detour(h), laurel.norm.weight, next_norm, norm.eps
        )

    def _correct(self, predicted: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        """The corrected streams, and the active one as the per-layer input's gate takes it."""
        kernels, weights = choose_kernels(active), self._weights_of(self.correction)
        if kernels is not None and weights is not None:
            return kernels.correct(predicted, active, *weights, self.output_scale, self.stream_router.norm.eps)
        coefficients = self.correction(self.stream_router(active)) + 1.0
        corrected: Tensor = predicted + coefficients.T[..., None] * (active - predicted[0])
        return corrected, corrected[0] * self.output_scale

    def _inject(self, streams: Tensor, update: Tensor) -> None:
        kernels, norm = choose_kernels(streams), self.per_layer_gate.norm
        if kernels is None:
            streams[1:] += norm(update)
        else:
            kernels.inject(streams, update, norm.weight, norm.eps)

    def _weights_of(self, coefficients: Linear) -> tuple[Tensor, Tensor, Tensor] | None:
        """The weights of the router and of what makes coefficients of its results. None: some are quantized."""
        router, last = self.stream_router.router.weight, coefficients.weight
        if not isinstance(router, DenseWeight) or not isinstance(last, DenseWeight):
            return None
        return self.stream_router.norm.weight, router.values, last.values


class Streams(nn.Module):
    """One embedding into several streams, and several streams back into one."""

    def __init__(self, hidden_size: int, num_streams: int, placement: Placement) -> None:
        super().__init__()
        self.expand_projections = nn.ModuleList(
            Linear(hidden_size, hidden_size, placement) for _ in range(num_streams - 1)
        )
        self.merge_projections = nn.ModuleList(
            Linear(hidden_size, hidden_size, placement) for _ in range(num_streams - 1)
        )
        self.arithmetic = placement.arithmetic

    def expand(self, x: Tensor) -> Tensor:
        size = self._magnitude(x)
        return torch.stack([x, *(self._with_magnitude(projection(x), size) for projection in self.expand_projections)])

    def merge(self, streams: Tensor) -> Tensor:
        size = self._magnitude(streams[0])
        others = zip(self.merge_projections, streams[1:], strict=True)
        return self.arithmetic.mean_of_streams(
            [streams[0], *(self._with_magnitude(projection(stream), size) for projection, stream in others)]
        )

    def _magnitude(self, x: Tensor) -> Tensor:
        return self.arithmetic.mean_square(x).sqrt()

    def _with_magnitude(self, x: Tensor, size: Tensor) -> Tensor:
        return x * size / self.arithmetic.mean_square(x).clamp(min=1e-5).sqrt()
