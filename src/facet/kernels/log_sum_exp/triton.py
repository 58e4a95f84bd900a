"""Log-sum-exp in Triton: one program per row, which reads it twice, the second time from the cache."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Logits at a time: two wide loads for each thread of eight warps.
BLOCK = 2048


def log_sum_exp(logits: Tensor) -> Tensor:
    num_rows, vocab_size = logits.shape
    assert logits.stride(1) == 1, "a row of logits is contiguous"
    sums = torch.empty(num_rows, 1, dtype=torch.float32, device=logits.device)
    if num_rows:
        _log_sum_exp_kernel[(num_rows,)](logits, sums, logits.stride(0), VOCAB=vocab_size, BLOCK=BLOCK, num_warps=8)
    return sums


@triton.jit(do_not_specialize=["row_stride"])
def _log_sum_exp_kernel(logits, sums, row_stride, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    places = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, VOCAB, BLOCK):
        is_token = start + places < VOCAB
        largest = tl.maximum(largest, tl.load(logits + start + places, mask=is_token, other=float("-inf")))
    anchor = tl.max(largest, axis=0)
    # Where a row has no finite maximum, a difference to it would be no number.
    anchor = tl.where(tl.abs(anchor) == float("inf"), 0.0, anchor)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, VOCAB, BLOCK):
        is_token = start + places < VOCAB
        total += tl.exp(tl.load(logits + start + places, mask=is_token, other=float("-inf")) - anchor)
    tl.store(sums + row, anchor + tl.log(tl.sum(total, axis=0)))
