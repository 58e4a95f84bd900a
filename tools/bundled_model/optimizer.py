"""The optimizer: Muon for the matrices inside layers, AdamW for embeddings, norms and scalars.

Muon replaces the gradient of a matrix by the nearest matrix that stretches all directions alike, so that rare ones
are learned as fast as common ones.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_MOMENTUM = 0.95
_NUM_ROUNDS = 5
# A polynomial a + b x^2 + c x^4, times x, that drives singular values between 0 and 1 to somewhere near 1 in a few
# rounds. It gives up exactness (they end between about 0.7 and 1.2) for a steep start, where small values need it.
_STEEP_POLYNOMIAL = (3.4445, -4.7750, 2.0315)


class Optimizer:
    """Steps all parameters of a decoder. Learning rates are given anew at every step, as shares of the largest."""

    def __init__(
        self,
        model: nn.Module,
        *,
        muon_rate: float,
        adamw_rate: float,
        muon_decay: float,
        use_muon: bool = True,
    ) -> None:
        named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        is_matrix = {name: name.startswith("layers.") and parameter.dim() == 2 for name, parameter in named.items()}
        self._matrices = {name: parameter for name, parameter in named.items() if is_matrix[name]} if use_muon else {}
        self._others = {name: parameter for name, parameter in named.items() if name not in self._matrices}
        self._rates = (muon_rate, adamw_rate)
        self._decay = muon_decay
        self._groups = _same_shapes(self._matrices)
        self._momenta = [torch.zeros_like(torch.stack([named[name] for name in group])) for group in self._groups]
        self._adam = torch.optim.AdamW(
            list(self._others.values()),
            lr=adamw_rate,
            betas=(0.9, 0.95),
            weight_decay=0.0,
            fused=next(model.parameters()).is_cuda,
        )

    @torch.no_grad()
    def step(self, share: float) -> None:
        """One step with `share` of the largest learning rates; consumes the gradients."""
        for group in self._adam.param_groups:
            group["lr"] = share * self._rates[1]
        self._adam.step()
        for names, momentum in zip(self._groups, self._momenta, strict=True):
            self._step_matrices([self._matrices[name] for name in names], momentum, share * self._rates[0])
        for parameter in (*self._matrices.values(), *self._others.values()):
            parameter.grad = None

    def _step_matrices(self, parameters: list[Tensor], momentum: Tensor, rate: float) -> None:
        gradient = torch.stack([_gradient(parameter) for parameter in parameters])
        momentum.lerp_(gradient, 1 - _MOMENTUM)
        update = orthogonal(gradient.lerp(momentum, _MOMENTUM))
        num_outputs, num_inputs = update.shape[-2:]
        # A tall matrix may stretch more without its outputs growing.
        stretch = max(1.0, num_outputs / num_inputs) ** 0.5
        torch._foreach_mul_(parameters, 1 - rate * self._decay)
        torch._foreach_add_(parameters, list(update.float().unbind(0)), alpha=-rate * stretch)

    def state(self) -> dict[str, Tensor]:
        """Everything a later `load` needs to go on exactly here."""
        tensors = {
            f"momentum.{name}": buffer
            for group, momentum in zip(self._groups, self._momenta, strict=True)
            for name, buffer in zip(group, momentum.unbind(0), strict=True)
        }
        for name, parameter in self._others.items():
            for key, value in self._adam.state[parameter].items():
                tensors[f"{key}.{name}"] = value
        return tensors

    def load(self, tensors: dict[str, Tensor]) -> None:
        for group, momentum in zip(self._groups, self._momenta, strict=True):
            for name, buffer in zip(group, momentum.unbind(0), strict=True):
                buffer.copy_(tensors[f"momentum.{name}"])
        for name, parameter in self._others.items():
            device = parameter.device
            self._adam.state[parameter] = {
                "step": tensors[f"step.{name}"].to(device if parameter.is_cuda else "cpu"),
                "exp_avg": tensors[f"exp_avg.{name}"].to(device),
                "exp_avg_sq": tensors[f"exp_avg_sq.{name}"].to(device),
            }


def orthogonal(matrices: Tensor) -> Tensor:
    """Nearly the closest orthogonal matrix of each: [n, outputs, inputs] in and out."""
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x: Tensor = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x.mT if is_tall else x
    x = x / (torch.linalg.matrix_norm(x.float(), keepdim=True) + 1e-7).to(x.dtype)
    a, b, c = _STEEP_POLYNOMIAL
    for _ in range(_NUM_ROUNDS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if is_tall else x


def _same_shapes(parameters: dict[str, nn.Parameter]) -> list[list[str]]:
    """Names grouped by shape, so that one product serves many small matrices."""
    shapes: dict[torch.Size, list[str]] = {}
    for name, parameter in parameters.items():
        shapes.setdefault(parameter.shape, []).append(name)
    return list(shapes.values())


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None, "a matrix took no part in the loss"
    return parameter.grad


def clip_gradients(parameters: Iterable[nn.Parameter], largest: float) -> Tensor:
    """Scales all gradients down together to a norm of `largest`; returns the norm before."""
    return nn.utils.clip_grad_norm_(parameters, largest, foreach=True)
