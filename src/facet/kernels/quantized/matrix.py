"""The tensors of a quantized matrix, and what numbers they stand for.

Codes of eight bits lie as they are, [..., outputs, inputs]. Of four bits, two share a byte: [..., outputs, inputs / 2],
where the lower half belongs to the even input. A kernel that wants another order makes it when a model is loaded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from facet.matrix_format import CodeKind, MatrixFormat, ScaleFormat

_CODE_DTYPES: dict[CodeKind, torch.dtype] = {
    "int4": torch.uint8,
    "uint4": torch.uint8,
    "fp4": torch.uint8,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
# Belong to all rows of a matrix alike.
_OF_THE_MATRIX = ("order", "input_scale", "output_scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedMatrix:
    """A matrix, or those of experts in one stack. A format says which of the tensors there are."""

    format: MatrixFormat
    codes: Tensor
    scales: Tensor  # [..., outputs, groups]
    coarse_scales: Tensor | None = None
    zeros: Tensor | None = None  # uint8 or int8: [..., outputs, groups]
    minimums: Tensor | None = None
    coarse_minimums: Tensor | None = None
    order: Tensor | None = None  # int32 [..., inputs]: column k is multiplied by input order[k]
    input_scale: Tensor | None = None  # float32 [...]; 0: inputs are not rounded after all
    output_scale: Tensor | None = None

    @classmethod
    def empty(cls, format: MatrixFormat, shape: Sequence[int], device: torch.device) -> "QuantizedMatrix":
        """Uninitialised, for a matrix of this shape."""
        *stack, num_rows, num_inputs = shape

        def rows(dtype: torch.dtype, width: int) -> Tensor:
            return torch.empty(*stack, num_rows, width, dtype=dtype, device=device)

        def scales(of: ScaleFormat | None) -> Tensor | None:
            return None if of is None else rows(getattr(torch, of.dtype), of.count(num_inputs))

        fine = scales(format.scales)
        assert fine is not None
        zeros_dtype = torch.uint8 if format.codes == "uint4" else torch.int8
        return cls(
            format=format,
            codes=rows(_CODE_DTYPES[format.codes], num_inputs * format.code_bits // 8),
            scales=fine,
            coarse_scales=scales(format.coarse_scales),
            zeros=rows(zeros_dtype, fine.shape[-1]) if format.has_zeros else None,
            minimums=scales(format.scales) if format.has_minimums else None,
            coarse_minimums=scales(format.coarse_scales) if format.has_minimums else None,
            order=torch.empty(*stack, num_inputs, dtype=torch.int32, device=device) if format.is_reordered else None,
            input_scale=torch.empty(stack, device=device) if format.has_input_scale else None,
            output_scale=torch.empty(stack, device=device) if format.rounds_outputs else None,
        )

    @property
    def num_rows(self) -> int:
        return self.codes.shape[-2]

    @property
    def num_inputs(self) -> int:
        return self.codes.shape[-1] * 8 // self.format.code_bits

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that there are, by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "format"}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def rows(self, rows: slice | Tensor) -> "QuantizedMatrix":
        """Some of the outputs: a view, or what looking up by ids gives."""
        chosen = {name: t[..., rows, :] for name, t in self.tensors().items() if name not in _OF_THE_MATRIX}
        return self._with(chosen)

    def columns(self, columns: slice) -> "QuantizedMatrix":
        """Some of the inputs, in whole groups (`MatrixFormat.divides_into`): a view."""
        num_inputs = self.num_inputs

        def cut(tensor: Tensor) -> Tensor:
            """Codes, or scales: as many to a row as there are groups, or one for all of it."""
            width = tensor.shape[-1]
            first, end = (place * width // num_inputs for place in (columns.start, columns.stop))
            return tensor if width == 1 else tensor[..., first:end]

        chosen = {name: cut(tensor) for name, tensor in self.tensors().items() if name not in _OF_THE_MATRIX}
        return self._with(chosen)

    def expert(self, index: int) -> "QuantizedMatrix":
        return self._with({name: tensor[index] for name, tensor in self.tensors().items()})

    def flat(self) -> "QuantizedMatrix":
        """The rows of all experts, one matrix below the other: a view."""
        return self._with({name: t.flatten(0, 1) for name, t in self.tensors().items() if name not in _OF_THE_MATRIX})

    def experts(self, experts: slice) -> "QuantizedMatrix":
        """The matrices of some experts: a view."""
        return self._with({name: tensor[experts] for name, tensor in self.tensors().items()})

    def _with(self, tensors: dict[str, Tensor]) -> "QuantizedMatrix":
        return QuantizedMatrix(format=self.format, **{**self.tensors(), **tensors})

    def copy_rows(self, values: "QuantizedMatrix", rows: slice) -> None:
        """Take the tensors of some rows."""
        assert values.format == self.format, "rows of one matrix have one format"
        mine, theirs = self.rows(rows).tensors(), values.tensors()
        for name, tensor in mine.items():
            tensor.copy_(theirs[name])

    def values(self) -> Tensor:
        """The numbers in float32, [..., outputs, inputs], in the order of the inputs. All at once: for rows looked up,
        tiles and tests."""
        if self.format.code_bits == 8:
            codes = decode_bytes(self.codes)
        else:
            pairs = torch.stack((self.codes & 15, self.codes >> 4), dim=-1).flatten(-2)
            codes = decode(pairs, self.format.codes)
        values = self.scaled(codes, self.format.scales.group)
        if self.order is None:
            return values
        order = self.order.long().unsqueeze(-2).expand_as(values)
        return torch.empty_like(values).scatter_(-1, order, values)

    def scales_of_groups(self) -> tuple[Tensor, Tensor | None]:
        """The scales of groups in float32, fine and coarse in one; minimums too, where there are any."""
        minimums = None if self.minimums is None else _product(self.minimums, self.coarse_minimums)
        return _product(self.scales, self.coarse_scales), minimums

    def scaled(self, codes: Tensor, group: int | None) -> Tensor:
        """Codes [..., n] of every row brought to their values, in place; `group` neighbours share a scale."""
        scales, minimums = self.scales_of_groups()
        zeros = None if self.zeros is None else self.zeros.float()
        width, count = codes.shape[-1], scales.shape[-1]
        if group is None or group * count == width:
            grouped = codes.view(*codes.shape[:-1], count, -1)
            spread = [None if t is None else t[..., None] for t in (zeros, scales, minimums)]
        else:  # the last group is short
            grouped = codes
            spread = [
                None if t is None else t.repeat_interleave(group, -1)[..., :width] for t in (zeros, scales, minimums)
            ]
        if spread[0] is not None:
            grouped.sub_(spread[0])
        assert spread[1] is not None
        grouped.mul_(spread[1])
        if spread[2] is not None:
            grouped.sub_(spread[2])
        return codes


def decode_bytes(codes: Tensor) -> Tensor:
    """What codes of eight bits stand for, in float32. PyTorch takes 1.5 to 3 ns for one of FP8 on a processor: their
    bits are put where float16 has them, whose exponents mean 8 less. A file with codes that are no numbers is not read.
    """
    if codes.dtype != torch.float8_e4m3fn or codes.is_cuda:
        return codes.float()
    bits = codes.view(torch.int8).to(torch.int16).bitwise_left_shift_(7).bitwise_and_(~0x4000)
    return bits.view(torch.float16).float().mul_(256)


def decode(codes: Tensor, kind: CodeKind) -> Tensor:
    """What codes of four bits stand for, one to a byte, in float32. E2M1 as FP8 above; exponents mean 14 less."""
    if kind == "fp4":
        bits = codes.to(torch.int16)
        return ((bits & 7) << 9).bitwise_or_((bits & 8) << 12).view(torch.float16).float().mul_(2**14)
    values = codes.float()
    return values.sub_(8) if kind == "int4" else values


def stack(matrices: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
    """A stack of the matrices of experts, from one of each."""
    return _joined(matrices, lambda tensors, name: torch.stack(tensors))


def join_rows(matrices: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
    """Matrices as one, one below the other. What belongs to a whole matrix must be the same in all."""
    first = matrices[0]
    for name in _OF_THE_MATRIX:
        own = getattr(first, name)
        assert own is None or all(torch.equal(getattr(each, name), own) for each in matrices), f"one {name} for all"

    def join(tensors: list[Tensor], name: str) -> Tensor:
        return tensors[0] if name in _OF_THE_MATRIX else torch.cat(tensors, dim=-2)

    return _joined(matrices, join)


def _joined(matrices: Sequence[QuantizedMatrix], join: Callable[[list[Tensor], str], Tensor]) -> QuantizedMatrix:
    assert all(each.format == matrices[0].format for each in matrices), "matrices of one format are joined"
    named = [each.tensors() for each in matrices]
    return matrices[0]._with({name: join([each[name] for each in named], name) for name in named[0]})


def _product(fine: Tensor, coarse: Tensor | None) -> Tensor:
    """Scales, or minimums, of every group in float32."""
    if coarse is None:
        return fine.float()
    per_coarse = -(-fine.shape[-1] // coarse.shape[-1])
    return fine.float() * coarse.float().repeat_interleave(per_coarse, -1)[..., : fine.shape[-1]]
