"""A router and its experts, which run in parallel with a layer's dense MLP."""

from torch import Tensor, nn

from facet.kernels.moe import route
from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.layers.rms_norm import RMSNorm
from facet.model_spec import MoeSpec


class Experts(nn.Module):
    """The expert branch of a layer. Router and experts see the residual stream, each through its own norm."""

    def __init__(self, spec: MoeSpec, hidden_size: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.spec = spec
        self.eps = eps
        self.arithmetic = placement.arithmetic
        self.router_factor = hidden_size**-0.5
        self.router_scale = placement.values(hidden_size)
        self.expert_scale = placement.values(spec.num_experts)
        self.gate_up = Linear(hidden_size, (spec.width, spec.width), placement, num_experts=spec.num_experts)
        self.down = Linear(spec.width, hidden_size, placement, num_experts=spec.num_experts)
        self.router = Linear(hidden_size, spec.num_experts, placement)
        self.input_norm = RMSNorm(hidden_size, eps, placement, before=self.gate_up)

    def forward(self, residual: Tensor) -> Tensor:
        router_input = self.arithmetic.rms_norm(residual, None, self.eps) * self.router_scale * self.router_factor
        weights, chosen = route(self.router(router_input), self.spec.num_chosen, self.expert_scale)
        return self.gate_up.run_experts(self.input_norm(residual), weights, chosen, self.down)
