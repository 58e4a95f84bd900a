"""Prefill attention on Hopper GPUs, in Gluon: Triton's lower language, which leaves warps, barriers and layouts to us.

    heads          file               rows of a program    TFLOP/s on an H200 (the Triton kernel's), 8192 rows
    512, shared    shared_512.py      64                   31B, 65536 keys: 613 (327)
    512, separate  separate_512.py    64                   E4B, 8192 keys: 615 (304)
    256, separate  separate_256.py    128, in turns        31B, window: 604 (431); Gemma 3 12B, 8192 keys: 638 (503)

All three are built alike, and their parts have the same names in each file. One partition of warps copies tiles of 64
keys into shared memory and does nothing else. Two warpgroups multiply. Each tile's scores are started before the tile
before it is summed, so that exponentials, which run on other hardware, are taken while products go on. A *ready*
barrier says that a tile has landed, a *free* one that all who read it are done.

Shared memory is the tightest resource: a product of 64 rows and 64 keys reads both operands from there as fast as it
multiplies, and the copies that come in take a third as much again. Heads of 512 leave room for 64 rows only: the sums
of more do not fit into registers.

Rules that the kernels keep, because hardware or compiler would otherwise be wrong now and then:

- Weights reach a product through shared memory. An asynchronous product whose left operand lies in registers can read
  them too early or too late with Triton up to 3.7 (triton#9433, #11781).
- A partition has one warpgroup, and synchronizes its warps before it arrives at a barrier: waiting for a product waits
  for a warp's own part of it (triton#11047).
- What threads stored is fenced before a product reads it.

Keys are taken 64 at a time from fixed positions, and tiles that a row does not see change none of its bits. So a row's
result does not depend on the chunk that it is prefilled in.
"""

ROWS_PER_WARPGROUP = 64  # whole tokens: the query heads that share a key head divide it
