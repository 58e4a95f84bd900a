"""Matrix products without bias; several of them may be packed into one by stacking their rows."""

from torch import Tensor, nn

from facet.layers.placement import Placement


class Linear(nn.Module):
    """x @ weight^T, weight [out, in]."""

    def __init__(self, num_inputs: int, num_outputs: int, placement: Placement) -> None:
        super().__init__()
        self.weight = placement.matrix(num_outputs, num_inputs)
        self.arithmetic = placement.arithmetic

    def forward(self, x: Tensor, outputs: slice = slice(None)) -> Tensor:
        """With `outputs`, only those: some of several that are packed."""
        return self.arithmetic.linear(x, self.weight[outputs])
