"""Lets kernels start while the one before them still runs (programmatic dependent launch, from Hopper on).

A step of few rows is hundreds of short kernels in a row, and each would otherwise begin with an idle GPU: its programs
are placed, and its first loads travel, only after the last program before it has ended. A kernel launched with
`launch_options` is placed as soon as every program of the kernel before it has called `let_next_start` or ended. It
loads weights right away, and waits for the rest.

What keeps this correct:

- Every program calls `wait_for_previous`, on every path. So a kernel that has ended has waited for all before it.
- Until then a program reads only what no kernel still on its way may write: weights, and what a step is told at its
  beginning, such as positions. Whoever makes these makes something else after them, or synchronizes: of a launch just
  before, of whatever kind, nothing can be read yet.
- Until then it writes nothing at all: what it would overwrite may still be read.
- Launches without these options, cuBLAS and PyTorch among them, wait for the end of all that came before, as ever.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Before it, GPUs know no dependent launch.
HOPPER = (9, 0)


@cache  # asked at every launch, and a device stays what it is
def launch_options(device: torch.device) -> Mapping[str, bool]:
    """Keyword arguments for a launch on `device` of a kernel with the constant IS_DEPENDENT."""
    # ROCm devices are called cuda as well, and have version numbers of their own.
    is_nvidia = device.type == "cuda" and torch.version.cuda is not None
    if not is_nvidia or triton.knobs.runtime.interpret or torch.cuda.get_device_capability(device) < HOPPER:
        return MappingProxyType({"IS_DEPENDENT": False})
    return MappingProxyType({"IS_DEPENDENT": True, "launch_pdl": True})


@triton.jit
def wait_for_previous(IS_DEPENDENT: tl.constexpr):
    """Wait until all kernels before this one have ended and what they stored can be read."""
    if IS_DEPENDENT:
        gdc_wait()


@triton.jit
def let_next_start(IS_DEPENDENT: tl.constexpr):
    """Let the next kernel be placed, once all programs of this one have come here or ended."""
    if IS_DEPENDENT:
        gdc_launch_dependents()


@triton.jit
def start_after_previous(IS_DEPENDENT: tl.constexpr):
    """Does both, for kernels too short to gain from having `wait_for_previous` and `let_next_start` apart."""
    wait_for_previous(IS_DEPENDENT)
    let_next_start(IS_DEPENDENT)
