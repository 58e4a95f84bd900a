"""Compiles kernels listed here for Hopper, on any machine, and prints what each takes: a line of JSON each, in order.

    python -m tests.kernels.compile_for_hopper shared_512 int4_wide_64

A process of its own, since the tests run Triton's interpreter and this needs its compiler. One for all kernels, since
to start takes as long as to compile.
"""

import contextlib
import json
import re
import struct
import subprocess
import sys
import tempfile
import traceback
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import triton
import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction
from triton.runtime import driver
from triton.runtime.jit import create_function_from_signature

from facet.kernels.gluon_names import gl
from tests.kernels.hopper_launches import launches
from tests.kernels.hopper_launches.making import Launch

TARGET = GPUTarget("cuda", 90, 32)


def compiled(launch: Launch) -> Any:
    kernel, args, given = launch
    backend = make_backend(TARGET)
    constants = {name: value for name, value in given.items() if name.isupper()}
    options = {name: value for name, value in given.items() if not name.isupper()} | {"sanitize_overflow": False}
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, parsed = bind(*args, **constants, **options)
    parsed, signature, constexprs, attributes = kernel._pack_args(backend, options, bound, specialization, parsed)
    make_source = GluonASTSource if isinstance(kernel, GluonJITFunction) else ASTSource
    source = make_source(kernel, signature, constexprs, attributes)
    return triton.compile(source, target=TARGET, options=parsed.__dict__)


def said_by(tool: str, *flags: str, of: bytes) -> str:
    """By one of NVIDIA's tools, of a file with these bytes."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(of)
        file.flush()
        command = [Path(triton.backends.nvidia.__file__).parent / "bin" / tool, *flags, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def instructions(cubins: Sequence[bytes]) -> list[str]:
    """Of each kernel, as text. All are read at once: the tool takes half a second or more to start."""
    codes = [_code_of(cubin) for cubin in cubins]
    starts = list(accumulate(map(len, codes), initial=0))
    found: list[list[str]] = [[] for _ in codes]
    for line in said_by("nvdisasm", "--binary", "SM90", "--no-dataflow", of=b"".join(codes)).splitlines():
        if address := re.match(r"\s*/\*([0-9a-f]{4,})\*/", line):
            found[bisect_right(starts, int(address[1], 16)) - 1].append(line)
    return ["\n".join(lines) for lines in found]


def _code_of(cubin: bytes) -> bytes:
    """The section of an ELF file that has a kernel's instructions."""
    (table,), (size, count, names) = struct.unpack_from("<Q", cubin, 0x28), struct.unpack_from("<HHH", cubin, 0x3A)
    # Of each section: where its name is, its type, flags, address, offset and length.
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + index * size) for index in range(count)]
    first_name = sections[names][4]
    (code,) = (each for each in sections if cubin.startswith(b".text.", first_name + each[0]))
    return cubin[code[4] : code[4] + code[5]]


def usage(kernel: Any, code: str) -> dict[str, Any]:
    said = said_by("cuobjdump", "-res-usage", of=kernel.asm["cubin"])
    found = {name.lower(): int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", said)}
    return {
        **found,
        "shared": kernel.metadata.shared,
        "signals": [kernel.asm["ptx"].count(f"atom.global.sys.{kind}") for kind in ("release", "acquire")],
        "added_halves": len(re.findall(r"HADD2(?!\.F32)", code)),  # those convert float16 numbers
        "wide_loads": len(re.findall(r"LDG\.E\.EF\.128", code)),
        "conversions": code.count("I2F.S8"),
        "single_stores": code.count("STG.E.U16"),
        "barriers": kernel.asm["ptx"].count("bar.sync"),
        "waits": code.count("WARPGROUP.DEPBAR"),
        "arithmetic": [len(re.findall(rf"\b{name}\b", code)) for name in ("FADD", "FMUL", "FFMA", "MUFU", "SHFL")],
        "reduced": reduced_layouts(kernel.asm["ttgir"]),
        "products": kernel.asm["ptx"].count("mma.sync") + kernel.asm["ptx"].count("wgmma.mma_async"),
    }


def reduced_layouts(code: str) -> list[str]:
    """How what is summed or compared lies in registers, in order."""
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", code, re.MULTILINE))
    reduced = re.findall(r'"tt.reduce".*?\}\) : \(tensor<[^#>]*(#\w+)>\)', code, re.DOTALL)
    return [layouts[name] for name in reduced]


def reports(names: Sequence[str]) -> list[dict[str, Any]]:
    known, kernels, errors = launches(), {}, {}
    for name in dict.fromkeys(names):
        try:
            with contextlib.redirect_stdout(sys.stderr):  # where it fails, the compiler prints what it was given
                kernels[name] = compiled(known[name])
        except Exception:  # the other kernels have their lines all the same
            errors[name] = {"error": traceback.format_exc()}
    codes = instructions([kernel.asm["cubin"] for kernel in kernels.values()]) if kernels else []
    found = {name: usage(kernels[name], code) | ring_of(known[name]) for name, code in zip(kernels, codes, strict=True)}
    return [(found | errors)[name] for name in names]


def ring_of(launch: Launch) -> dict[str, Any]:
    """Its stages, and the bytes of a ring of blocks of codes."""
    constants = launch[2]
    num_stages = constants.get("STAGES", 0)
    block_bytes = 1216 if constants.get("SCALE_DTYPE") == gl.uint8 else 1152  # of 4-bit codes
    ring = num_stages * constants["num_warps"] * constants.get("TILES", 0) * block_bytes
    return {"stages": num_stages, "ring": ring}


if __name__ == "__main__":
    driver.set_active(SimpleNamespace(get_current_target=lambda: TARGET))  # kernels ask it
    for found in reports(sys.argv[1:]):
        print(json.dumps(found))
