"""Shared memory by addresses, in PTX: copies to it for which a warp waits alone, and what is loaded from it.

Gluon knows no such copies, and would put barriers between them and what reads them.
"""

from facet.kernels.gluon_names import gl, gluon


@gluon.jit
def shared_memory():
    """The address at which the shared memory of the program begins, in bytes.

    Below, addresses are such, and what a thread does with them is hidden from the compiler: it adds no barriers. For
    the memory to be there, something of its size is allocated and nothing else is.
    """
    return gl.inline_asm_elementwise("mov.u32 $0, global_smem;", "=r", [], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def copy_own_block(place, codes, scale_place, scales, is_there):
    """Starts the copies of a thread's codes of a block, 16 bytes of outputs g and 16 of outputs g + 8, and of one of
    the block's words of scales. Zeros where the block is not there."""
    gl.inline_asm_elementwise(
        """
        {
            .reg .pred there;
            .reg .b32 sixteen, four;
            setp.ne.b32 there, $5, 0;
            selp.b32 sixteen, 16, 0, there;
            selp.b32 four, 4, 0, there;
            cp.async.cg.shared.global [$1], [$2], 16, sixteen;
            cp.async.cg.shared.global [$1 + 512], [$2 + 512], 16, sixteen;
            cp.async.ca.shared.global [$3 + 1024], [$4], 4, four; // $0
        }
        """,
        "=r,r,l,r,l,r",
        [place, codes.to(gl.int64), scale_place, scales.to(gl.int64), is_there.to(gl.int32)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def copy_own_coarse(place, coarse, is_there):
    """Starts the copy of one of a block's words of coarse scales. Zero where the block is not there."""
    gl.inline_asm_elementwise(
        """
        {
            .reg .pred there;
            .reg .b32 four;
            setp.ne.b32 there, $3, 0;
            selp.b32 four, 4, 0, there;
            cp.async.ca.shared.global [$1 + 1152], [$2], 4, four; // $0
        }
        """,
        "=r,r,l,r",
        [place, coarse.to(gl.int64), is_there.to(gl.int32)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def commit_own_copies():
    """Makes a group of the copies that a thread has started since the last time."""
    gl.inline_asm_elementwise("cp.async.commit_group; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.constexpr_function
def _waiting(num_outstanding):
    return f"cp.async.wait_group {num_outstanding}; bar.warp.sync 0xffffffff; // $0"


@gluon.jit
def wait_for_warp(NUM_OUTSTANDING: gl.constexpr):
    """Waits until all but so many groups of copies have come, of every thread of the warp."""
    ASM: gl.constexpr = _waiting(NUM_OUTSTANDING)
    gl.inline_asm_elementwise(ASM, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def load_own_words(place):
    """Loads four words, apart."""
    return gl.inline_asm_elementwise(
        "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];",
        "=r,=r,=r,=r,r",
        [place],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32),
        is_pure=False,
        pack=1,
    )


@gluon.jit
def load_own_pair(place):
    """Loads two words."""
    return gl.inline_asm_elementwise(
        "ld.shared.v2.b32 {$0, $1}, [$2];", "=r,=r,r", [place], dtype=(gl.int32, gl.int32), is_pure=False, pack=1
    )


@gluon.jit
def store_sums_at(place, sums):
    """Stores four numbers of each thread, for others to load behind a barrier."""
    gl.inline_asm_elementwise(
        "st.shared.v4.f32 [$1], {$2, $3, $4, $5}; // $0",
        "=r,r,f,f,f,f",
        [place, sums[0], sums[1], sums[2], sums[3]],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def load_sums_at(place):
    return gl.inline_asm_elementwise(
        "ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];",
        "=f,=f,=f,=f,r",
        [place],
        dtype=(gl.float32, gl.float32, gl.float32, gl.float32),
        is_pure=False,
        pack=1,
    )
