"""The angles of each kind of layer, computed once for every position a model may reach."""

from torch import Tensor, nn

from facet.kernels.rotary import rotary_table
from facet.layers.placement import Placement
from facet.model_spec import AttentionKind, LayerSpec


class RotaryTables(nn.Module):
    """One table of cosines and sines per kind: [positions, 2, pairs]."""

    def __init__(self, layers: tuple[LayerSpec, ...], num_positions: int, placement: Placement) -> None:
        super().__init__()
        for layer in {layer.attention: layer for layer in layers}.values():
            table = rotary_table(
                num_positions,
                head_dim=layer.head_dim,
                num_pairs=layer.rotary.num_rotated_pairs(layer.head_dim),
                theta=layer.rotary.theta,
                factor=layer.rotary.factor,
                dtype=placement.dtype,
                device=placement.device,
            )
            self.register_buffer(layer.attention, table, persistent=False)

    def table(self, kind: AttentionKind) -> Tensor:
        return self.get_buffer(kind)
