"""The narrow second embedding that feeds each layer: how it is mixed, and how a layer lets it in."""

from facet.kernels.per_layer_input.reference import gate_per_layer_input, mix_per_layer_inputs

__all__ = ["gate_per_layer_input", "mix_per_layer_inputs"]
