"""A router and its experts, which run in parallel with a layer's dense MLP."""

from torch import Tensor, nn

from facet.kernels.moe import route
from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.layers.rms_norm import RMSNorm
from facet.model_spec import MoeSpec
from facet.ranks import ALONE


class Experts(nn.Module):
    """The expert branch of a layer. Router and experts see the residual stream, each through its own norm.

    Of experts that ranks share, each rank has some of the columns of all, or some of the experts whole.
    """

    def __init__(self, spec: MoeSpec, hidden_size: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.spec = spec
        self.eps = eps
        self.arithmetic = placement.arithmetic
        self.router_factor = hidden_size**-0.5
        self.router_scale = placement.values(hidden_size)
        self.expert_scale = placement.values(spec.num_experts)
        self.gate_up = Linear(
            hidden_size, (spec.width, spec.width), placement, num_experts=spec.num_held, is_gated=True
        )
        self.down = Linear(spec.width, hidden_size, placement, num_experts=spec.num_held, summed_over=placement.group)
        self._rank = ALONE if placement.group is None else placement.group.rank
        self.router = Linear(hidden_size, spec.num_experts, placement)
        self.input_norm = RMSNorm(hidden_size, eps, placement, before=self.gate_up)

    @property
    def has_kernels(self) -> bool:
        """Whether kernels of a GPU compute both products: those of most kinds that differ are plain PyTorch, expert by
        expert."""
        return self.gate_up.weight.runs_experts_with(self.down.weight)

    def forward(self, residual: Tensor) -> Tensor:
        # Both norms at once, where the experts' is not rounded on its way to them.
        weight = self.input_norm.weight if self.gate_up.weight.row_codes is None else None
        router_input, x = self.arithmetic.router_norms(
            residual, self.router_scale, self.router_factor, weight, self.eps
        )
        weights, chosen = route(self.router(router_input), self.spec.num_chosen, self.expert_scale)
        if self.spec.num_held < self.spec.num_experts:
            # Others' experts count for nothing here; which of ours compute that nothing is spread evenly.
            weights = weights * (chosen // self.spec.num_held == self._rank.index)
            chosen = chosen % self.spec.num_held
        return self.gate_up.run_experts(self.input_norm(residual) if x is None else x, weights, chosen, self.down)
