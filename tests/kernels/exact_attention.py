"""Batches of integers whose attention is known exactly, so that one lost or doubled product shows.

Every number is a small integer or a power of two, so products and their sums are exact. What shows one wrong term among
thousands is that sums nearly cancel:

- *Scores.* Dimensions are paired at random. In all pairs but one, the two products of a query and a key cancel:
  q = (a, r a) and k = (b, -r b), with signs a of the query, b of the key and r of the pair. The remaining pair makes
  the score, 2 or 4, positive or negative. With a scale of ln(2) / 2 a key weighs 1, 2, 8 or 16, the same for every
  query. A product more or less moves its score by 1 at least, and its weight by a factor of at least the root of two.
- *Sums of values.* The signs of values are drawn so that the weighted sum over any stretch of a sequence stays within
  64. A result times the sum of its weights is that sum; rounded to bfloat16 it is off by an eighth at most, where a
  lost product of weight 1 moves it by 1, and a wrong score by 0.29.

Every token has a size of its own, 1 or 2, which for dtypes with scales becomes its scale. Keys of shared vectors are
rotated by quarter turns, and multiplied by weights of 1 and 2.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from facet.kernels.paged_attention import KeyRecipe, cases, write_keys_and_values
from tests.kernels.quantized import like

SCALE = math.log(2.0) / 2
MOST = 32  # the largest weight times the largest size
# bfloat16 keeps eight bits. What is added is for exponentials and logarithms, which are not exact.
ROUNDING, SLACK = 2.0**-8, 2.0**-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactBatch:
    """A batch as kernels take it, and what they should find."""

    case: cases.Case
    inputs: cases.AttentionInputs
    weight_sums: Tensor  # [rows, heads, 1] float64, whole numbers
    sums: Tensor  # [rows, heads, head_dim] float64, whole numbers
    lightest: tuple[int, ...]  # per sequence, a token of the first key head with the least weight that a row sees

    def is_exact(self, got: Tensor) -> bool:
        """Whether no term is missing and none counts twice."""
        error = (got.double() * self.weight_sums - self.sums).abs()
        return bool((error <= ROUNDING * self.sums.abs() + SLACK).all())


def exact_batch(
    case: cases.Case, dtype: torch.dtype, device: str = "cpu", *, kv_dtype: str | None = None, seed: int = 0
) -> ExactBatch:
    """Keys and values are stored as `kv_dtype`, or as `dtype`."""
    case = replace(case, scale=SCALE)
    generator = torch.Generator().manual_seed(seed)
    plain = case.inputs(dtype, device)
    cache = like(plain.cache, kv_dtype) if kv_dtype is not None else plain.cache
    pairs = _make_pairs(case, generator)
    sums, weight_sums, lightest = [], [], []
    for sequence, (query_len, context_len) in enumerate(case.sequences):
        stored_keys, values, weights = _sequence(case, context_len, pairs, generator)
        live = torch.arange(case.first_live(query_len, context_len), context_len)
        blocks = plain.block_table[sequence, live.to(device) // case.tokens_per_block].long()
        write_keys_and_values(
            cache,
            stored_keys[live].to(device, dtype),
            None if cache.is_shared else values[live].to(device, dtype),
            blocks,
            (live % case.tokens_per_block).to(device),
        )
        lightest.append(int(live[(weights * values[..., 0].abs())[live, 0].argmin()]))
        ends = torch.arange(context_len - query_len, context_len) + 1
        firsts = torch.zeros_like(ends) if case.window is None else (ends - case.window).clamp(min=0)
        for terms, found in ((weights[..., None] * values, sums), (weights[..., None], weight_sums)):
            before = torch.cat((torch.zeros_like(terms[:1]), terms.cumsum(dim=0)))
            found.append(before[ends] - before[firsts])
    group = case.num_heads // case.num_kv_heads
    signs = _signs(generator, len(plain.queries), case.num_heads, case.head_dim // 2)
    signs[..., -1] = 1
    queries = pairs.spread(signs, pairs.signs * signs).to(device, dtype)
    recipe = None if plain.key_recipe is None else _recipe(plain.key_recipe, pairs, generator)
    return ExactBatch(
        case=case,
        inputs=replace(plain, queries=queries, cache=cache, key_recipe=recipe),
        weight_sums=torch.cat(weight_sums).repeat_interleave(group, dim=1).double().to(device),
        sums=torch.cat(sums).repeat_interleave(group, dim=1).double().to(device),
        lightest=tuple(lightest),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """Dimensions whose products cancel; those of the last pair make the score.

    What rotates is paired with what rotates alike: first come pairs of low sides, then those of their high sides.
    """

    firsts: Tensor  # [head_dim / 2]
    seconds: Tensor
    signs: Tensor

    def spread(self, first_numbers: Tensor, second_numbers: Tensor) -> Tensor:
        """Numbers of pairs [..., head_dim / 2] as vectors [..., head_dim]."""
        vectors = torch.empty(*first_numbers.shape[:-1], 2 * len(self.firsts), dtype=first_numbers.dtype)
        vectors[..., self.firsts], vectors[..., self.seconds] = first_numbers, second_numbers
        return vectors


def _make_pairs(case: cases.Case, generator: torch.Generator) -> _Pairs:
    half, num_rotated = case.head_dim // 2, case.num_rotated_pairs or 0
    low = torch.randperm(num_rotated, generator=generator).view(2, -1)
    still = torch.arange(case.head_dim)[torch.arange(case.head_dim) % half >= num_rotated]
    still = still[torch.randperm(len(still), generator=generator)].view(2, -1)
    firsts, seconds = torch.cat((low, low + half, still), dim=1)
    signs = _signs(generator, half)
    signs[num_rotated // 2 : num_rotated] = signs[: num_rotated // 2]
    return _Pairs(firsts=firsts, seconds=seconds, signs=signs)


def _signs(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(0, 2, shape, generator=generator) * 2 - 1


def _sequence(
    case: cases.Case, context_len: int, pairs: _Pairs, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """What is stored as keys, and values, [context_len, kv_heads, head_dim]; weights [context_len, kv_heads]."""
    shape = (context_len, case.num_kv_heads)
    key_sizes = torch.randint(1, 3, shape, generator=generator)
    is_heavy = _signs(generator, *shape)
    weights = 2 ** (2 + is_heavy * key_sizes)
    if case.is_shared:
        signs = _walk(weights * key_sizes, case.head_dim // 2, generator)
    else:
        signs = _signs(generator, *shape, case.head_dim // 2)
    signs[..., -1] = is_heavy
    partners = -pairs.signs * signs
    partners[..., -1] *= -1
    keys = pairs.spread(signs, partners) * key_sizes[..., None]
    if case.is_shared:
        return keys, keys, weights
    sizes = torch.randint(1, 3, shape, generator=generator)
    return keys, _walk(weights * sizes, case.head_dim, generator) * sizes[..., None], weights


def _walk(sizes: Tensor, num_signs: int, generator: torch.Generator) -> Tensor:
    """Random signs [context_len, kv_heads, num_signs] under which sums of `sizes` stay within -MOST .. MOST."""
    signs = _signs(generator, *sizes.shape, num_signs)
    total = torch.zeros_like(signs[0])
    for sign, size in zip(signs, sizes[..., None], strict=True):
        leaves = (total + sign * size).abs() > MOST
        sign[leaves] = -total[leaves].sign()
        total += sign * size
    return signs


def _recipe(plain: KeyRecipe, pairs: _Pairs, generator: torch.Generator) -> KeyRecipe:
    """Quarter turns, and weights of 1 and 2. The dimensions of a pair have the same of both, so that they cancel."""
    num_positions, _, num_rotated = plain.cos_sin.shape
    angles = torch.empty(num_rotated, dtype=torch.long)
    for dims in (pairs.firsts, pairs.seconds):
        angles[dims[: num_rotated // 2]] = torch.arange(num_rotated // 2)
    turns = (torch.arange(num_positions)[:, None] + angles) % 4
    cos_sin = torch.stack((torch.tensor((1, 0, -1, 0))[turns], torch.tensor((0, 1, 0, -1))[turns]), dim=1)
    weights = torch.randint(1, 3, (len(pairs.firsts),), generator=generator)
    weights[-1] = 1
    return KeyRecipe(weight=pairs.spread(weights, weights).to(plain.weight), cos_sin=cos_sin.to(plain.cos_sin))


def plant(batch: ExactBatch, sequence: int, *, in_values: bool, factor: float) -> None:
    """Lose (factor 0) or double (2) one number of one light token: of its value or key.

    In place: a copy of the pages would leave out what lies between them, and have other strides.
    """
    inputs, size = batch.inputs, batch.case.tokens_per_block
    pages = inputs.cache.values if in_values and inputs.cache.values is not None else inputs.cache.keys
    assert pages.dtype.itemsize > 1, "factors of 0 and 2 need a type that holds them"
    position = batch.lightest[sequence]
    pages[int(inputs.block_table[sequence, position // size]), position % size, 0, 5] *= factor
