"""Loads of a thread's inputs, chunk by chunk, in PTX: where one is not live nothing need be done.

A chunk is 32 inputs, of which a thread has eight.
"""

from facet.kernels.gluon_names import gl, gluon


def _loading(num_chunks: int, *, is_filled: bool, in_sixteens: bool = False) -> str:
    """Instructions that load the words of chunks, each where it is live: all at once, or of each group of 16."""
    words = [f"${i}" for i in range(4 * num_chunks)]
    place, lives = f"${4 * num_chunks}", [f"${4 * num_chunks + 1 + chunk}" for chunk in range(num_chunks)]
    lines = [f"mov.b32 {word}, 0;" for word in words] if is_filled else []
    for chunk in range(num_chunks):
        mine = words[4 * chunk : 4 * chunk + 4]
        lines.append(f"setp.ne.b32 live, {lives[chunk]}, 0;")
        if in_sixteens:
            lines.append(f"@live ld.global.v2.b32 {{{', '.join(mine[:2])}}}, [{place} + {64 * chunk}];")
            lines.append(f"@live ld.global.v2.b32 {{{', '.join(mine[2:])}}}, [{place} + {64 * chunk + 32}];")
        else:
            lines.append(f"@live ld.global.v4.b32 {{{', '.join(mine)}}}, [{place} + {64 * chunk}];")
    return f"{{ .reg .pred live; {' '.join(lines)} }}"


def _registers(num_chunks: int) -> str:
    """The constraints of the instructions' registers: words, the place, what is live, and words from before."""
    num_words = 4 * num_chunks
    return ",".join(["=&r"] * num_words + ["l"] + ["r"] * num_chunks + [str(i) for i in range(num_words)])


_LOAD_TWO = {
    (is_filled, in_sixteens): _loading(2, is_filled=is_filled, in_sixteens=in_sixteens)
    for is_filled in (False, True)
    for in_sixteens in (False, True)
}
_LOAD_FOUR = {is_filled: _loading(4, is_filled=is_filled) for is_filled in (False, True)}
_TWO, _FOUR = gl.constexpr(_registers(2)), gl.constexpr(_registers(4))


@gluon.constexpr_function
def _loading_two(is_filled, in_sixteens):
    return _LOAD_TWO[bool(is_filled), bool(in_sixteens)]


@gluon.constexpr_function
def _loading_four(is_filled):
    return _LOAD_FOUR[bool(is_filled)]


@gluon.jit
def load_two_chunks(before, pointer, is_live, IS_FILLED: gl.constexpr, IN_SIXTEENS: gl.constexpr):
    """The thread's eight inputs of each of two chunks, in words. Where one is not live, zeros or, if they are not
    filled, what was there before: that spares the instructions that would make them zero."""
    ASM: gl.constexpr = _loading_two(IS_FILLED, IN_SIXTEENS)
    words = gl.inline_asm_elementwise(
        ASM,
        _TWO,
        [
            pointer.to(gl.int64), is_live[0].to(gl.int32), is_live[1].to(gl.int32),
            before[0][0], before[0][1], before[0][2], before[0][3],
            before[1][0], before[1][1], before[1][2], before[1][3],
        ],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32, gl.int32, gl.int32, gl.int32, gl.int32),
        is_pure=False,
        pack=1,
    )  # fmt: skip
    return (words[0], words[1], words[2], words[3]), (words[4], words[5], words[6], words[7])


@gluon.jit
def load_four_chunks(before, pointer, is_live, IS_FILLED: gl.constexpr):
    """Like `load_two_chunks`, for four."""
    ASM: gl.constexpr = _loading_four(IS_FILLED)
    words = gl.inline_asm_elementwise(
        ASM,
        _FOUR,
        [
            pointer.to(gl.int64),
            is_live[0].to(gl.int32), is_live[1].to(gl.int32), is_live[2].to(gl.int32), is_live[3].to(gl.int32),
            before[0][0], before[0][1], before[0][2], before[0][3],
            before[1][0], before[1][1], before[1][2], before[1][3],
            before[2][0], before[2][1], before[2][2], before[2][3],
            before[3][0], before[3][1], before[3][2], before[3][3],
        ],
        dtype=(
            gl.int32, gl.int32, gl.int32, gl.int32, gl.int32, gl.int32, gl.int32, gl.int32,
            gl.int32, gl.int32, gl.int32, gl.int32, gl.int32, gl.int32, gl.int32, gl.int32,
        ),
        is_pure=False,
        pack=1,
    )  # fmt: skip
    return (
        (words[0], words[1], words[2], words[3]),
        (words[4], words[5], words[6], words[7]),
        (words[8], words[9], words[10], words[11]),
        (words[12], words[13], words[14], words[15]),
    )
