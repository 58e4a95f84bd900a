"""Kernels are compiled once each, by another process, and none is launched meanwhile.

No GPU is needed: the kernels are compiled for one that is not there.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia_driver
from triton.runtime import cache as cache_module
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from facet.config import EngineConfig, ServerConfig
from facet.engine.loading import settings_of_kernels
from facet.kernels.linear import chain
from facet.runner import compile_ahead, compile_process
from facet.runner.compile_ahead import CompileAhead
from facet.runner.compile_process import CannotBeSent, CompileProcess, KernelJob, begin_early

TARGET = GPUTarget("cuda", 90, 32)


@JITFunction
def doubling_kernel(source, target, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.arange(0, BLOCK)
    tl.store(target + places, 2 * tl.load(source + places, mask=places < count), mask=places < count)


@JITFunction
def broken_kernel(source, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(source, tl.no_such_function(BLOCK))  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of kernels, and a GPU to compile for."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    gpu = SimpleNamespace(
        get_current_device=lambda: 0, get_current_stream=lambda device: 0, get_current_target=lambda: TARGET
    )
    monkeypatch.setattr(driver, "_active", gpu)
    for kernel in (doubling_kernel, broken_kernel):
        kernel.device_caches.clear()
    return tmp_path


@pytest.fixture
def ahead() -> Iterator[CompileAhead]:
    ahead = CompileAhead(like="a test")
    yield ahead
    ahead.end()


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[KernelJob]:
    """What would be compiled, by nobody."""
    jobs: list[KernelJob] = []
    process = SimpleNamespace(submit=jobs.append, wait=lambda: None, end=lambda: None)
    monkeypatch.setattr(compile_ahead, "CompileProcess", lambda: process)
    return jobs


def compiled(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*.cubin"))


def test_kernels_are_found_compiled(ahead: CompileAhead, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it compiles is what a launch looks for: Triton itself says so. What cannot be compiled stops no other."""
    numbers = torch.zeros(64)

    def show(block: int) -> None:
        broken_kernel[(1,)](numbers, BLOCK=block)
        doubling_kernel[(1,)](numbers, numbers, 16, BLOCK=block)

    with ahead.compiled_ahead():
        show(32)
        show(64)
    assert compiled(cache) == 2 * ["doubling_kernel.cubin"]
    found = []
    monkeypatch.setattr(
        triton.knobs.compilation, "listener", lambda *, src, cache_hit, **_: found.append((src.name, cache_hit))
    )
    doubling_kernel.run(numbers, numbers, 16, grid=(1,), warmup=True, BLOCK=64)
    assert found == [("doubling_kernel", True)]

    sent: list[KernelJob] = []
    monkeypatch.setattr(CompileProcess, "submit", lambda _, job: sent.append(job))
    doubling_kernel.device_caches.clear()
    with ahead.compiled_ahead():
        show(64)
        show(128)
    assert [job.kernel for job in sent] == [broken_kernel, broken_kernel, doubling_kernel]


def test_each_kind_of_launch_is_compiled_once(submitted: list[KernelJob], ahead: CompileAhead) -> None:
    numbers = torch.zeros(64)
    with ahead.compiled_ahead():
        for _ in range(3):
            for count in (1, 16, 32, 7, 9, 2**40, 13):  # 16 and 32 are of one kind, and so are 7, 9 and 13
                doubling_kernel[(1,)](numbers, numbers, count, BLOCK=8)
        doubling_kernel[(1,)](numbers, numbers, 16, BLOCK=4)
        doubling_kernel[(1,)](numbers, numbers[1:], 16, BLOCK=8)
        doubling_kernel[(1,)](numbers.half(), numbers, 16, BLOCK=8)
    assert len(submitted) == 7


def test_launches_are_as_before_behind_the_block(submitted: list[KernelJob], ahead: CompileAhead) -> None:
    run, compile_now = JITFunction.run, JITFunction._do_compile

    def fail() -> None:
        with ahead.compiled_ahead():
            assert JITFunction.run is not run
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert JITFunction.run is run
    assert JITFunction._do_compile is compile_now


def test_a_start_like_one_before_has_nothing_to_compile(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    started = []
    monkeypatch.setattr(compile_ahead, "CompileProcess", lambda: started.append(1) or SimpleNamespace(end=lambda: None))

    def start(like: str) -> int:
        ahead = CompileAhead(like=like)
        assert ahead.is_needed == bool(started)
        ahead.end()
        num_started = len(started)
        started.clear()
        return num_started

    assert [start(like) for like in ("31B", "31B", "E4B", "31B", "E4B")] == [1, 0, 1, 0, 0]
    monkeypatch.setattr(compile_ahead, "__version__", "another")
    assert start("31B") == 1
    assert len(list(cache.glob("facet-*"))) == 3


def test_settings_that_change_no_kernel_make_no_other_start() -> None:
    usual = EngineConfig(model="E4B")
    for same in (
        replace(usual, enable_sleep_mode=True),
        replace(usual, seed=1, max_step_ms=20.0),
        ServerConfig(model="E4B"),
    ):
        assert settings_of_kernels(same) == settings_of_kernels(usual)
    for other in (replace(usual, max_num_seqs=8), replace(usual, batch_invariant=True), replace(usual, model="31B")):
        assert settings_of_kernels(other) != settings_of_kernels(usual)


def test_a_process_without_work_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take seconds to import, and all kernels may be there without it."""
    done: list[str] = []
    process = SimpleNamespace(
        submit=lambda job: done.append("submit"), wait=lambda: done.append("wait"), end=lambda: done.append("end")
    )
    monkeypatch.setattr(compile_ahead, "CompileProcess", lambda: process)
    ahead = CompileAhead(like="31B")
    for block in (8, 8, 16):
        monkeypatch.setattr(compile_ahead, "_is_compiled", lambda *_, is_there=block == 8: is_there)
        with ahead.compiled_ahead():
            doubling_kernel[(1,)](torch.zeros(64), torch.zeros(64), 16, BLOCK=block)
    with ahead.compiled_ahead():
        pass
    ahead.end()
    assert done == ["submit", "wait", "end"]


def test_triton_is_hashed_once(submitted: list[KernelJob]) -> None:
    """While something else is done, and before the first launch."""
    cache_module.triton_key.cache_clear()
    ahead = CompileAhead(like="31B")
    ahead.wait_for_hash()
    before = cache_module.triton_key.cache_info()
    assert before.currsize == 1
    with ahead.compiled_ahead():
        doubling_kernel[(1,)](torch.zeros(64), torch.zeros(64), 16, BLOCK=8)
    after = cache_module.triton_key.cache_info()
    assert (after.misses, after.hits) == (before.misses, before.hits + 1)


def test_a_start_that_failed_leaves_no_mark(cache: Path, submitted: list[KernelJob]) -> None:
    assert CompileAhead(like="31B").is_needed
    assert CompileAhead(like="31B").is_needed
    assert not list(cache.glob("facet-*"))


def test_children_find_what_all_of_them_need() -> None:
    """A hash of Triton takes longer than most kernels. Asked of a fresh process, which has no threads left to fork."""
    asked = (
        "import sys, threading; from facet.runner.compile_process import prepare; prepare();"
        "from triton.runtime.cache import triton_key;"
        "print(triton_key.cache_info().currsize, 'triton.compiler.code_generator' in sys.modules,"
        " threading.active_count())"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, env=environment)
    assert said.stdout.split() == ["1", "True", "1"]


def test_what_launches_it_is_built_with_a_kernel(monkeypatch: pytest.MonkeyPatch, submitted: list[KernelJob]) -> None:
    """Where Triton has a C compiler make it, one after the other, and not where it does without."""
    numbers = torch.zeros(64)
    with CompileAhead(like="31B").compiled_ahead():
        doubling_kernel[(1,)](numbers, numbers, 16, BLOCK=8)
    (job,) = submitted
    # Other tests of this process may have had the interpreter in Triton's place, which then compiles nothing.
    compiled = SimpleNamespace(metadata=SimpleNamespace(name="doubling_kernel"))
    monkeypatch.setattr(triton, "compile", lambda *_args, **_options: compiled)
    built: list[tuple[Any, Any]] = []
    monkeypatch.setattr(nvidia_driver, "CudaLauncher", lambda source, metadata: built.append((source, metadata)))
    monkeypatch.delattr(nvidia_driver, "make_launcher", raising=False)
    compile_process.compile_kernel(job)
    assert not built
    monkeypatch.setattr(nvidia_driver, "make_launcher", lambda *_: "", raising=False)
    compile_process.compile_kernel(job)
    ((source, metadata),) = built
    assert (source.fn, source.signature, metadata.name) == (doubling_kernel, job.signature, "doubling_kernel")


def test_a_process_is_begun_early_where_kernels_are_certain_to_be_compiled(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    ended: list[int] = []
    process: Any = SimpleNamespace(end=lambda: ended.append(1))
    monkeypatch.setattr(compile_process, "CompileProcess", lambda: process)
    monkeypatch.setattr(compile_ahead, "CompileProcess", lambda: pytest.fail("there is one already"))
    monkeypatch.setattr(compile_process, "GPU_FILE", str(cache / "gpu"))
    assert begin_early("auto") is None, "there is no GPU"
    (cache / "gpu").touch()
    assert begin_early("cpu") is None
    assert begin_early("auto") is process
    ahead = CompileAhead(like="31B", begun=process)
    assert (ahead.is_needed, ended) == (True, [])
    ahead.end()
    assert len(ended) == 1
    assert begin_early("auto") is None, "one start has ended"
    assert not CompileAhead(like="31B", begun=process).is_needed
    assert len(ended) == 2


def test_the_cache_is_looked_for_where_triton_keeps_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert compile_process._cache_folder() == Path(triton.knobs.cache.dir)
    monkeypatch.delenv("TRITON_CACHE_DIR")
    assert compile_process._cache_folder() == Path(triton.knobs.cache.dir)
    monkeypatch.setenv("TRITON_HOME", str(tmp_path / "home"))
    assert compile_process._cache_folder() == Path(triton.knobs.cache.dir)


def test_without_its_process_everything_is_left_to_launches(
    ahead: CompileAhead, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = torch.zeros(64)
    assert ahead._process is not None
    ahead._process._process.kill()
    ahead._process._process.wait()
    with ahead.compiled_ahead():
        for block in (8, 16):
            doubling_kernel[(1,)](numbers, numbers, 16, BLOCK=block)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "Kernels are compiled one after the other, which takes longer"
    ]


def test_without_a_process_at_all_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError("too many processes")

    monkeypatch.setattr(compile_ahead, "CompileProcess", fail)
    ahead = CompileAhead(like="31B")
    with ahead.compiled_ahead():
        doubling_kernel[(1,)](torch.zeros(64), torch.zeros(64), 16, BLOCK=8)
    assert [record.message.rpartition(":")[2] for record in caplog.records] == [" too many processes."]


def test_with_an_unknown_triton_nothing_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_ahead, "_is_known", lambda: False)
    assert not CompileAhead(like="31B").is_needed


def test_kernels_without_a_name_stay() -> None:
    @JITFunction
    def nameless(source):  # type: ignore[no-untyped-def]
        pass

    with pytest.raises(CannotBeSent, match="is not found in"):
        compile_process._pickled(KernelJob(nameless, None, {}, {}, {}, TARGET, {}))
    with pytest.raises(CannotBeSent):
        compile_process._pickled(KernelJob(doubling_kernel, None, {}, {"f": lambda: 0}, {}, TARGET, {}))


def test_nothing_is_concluded_from_results_that_were_never_computed(
    submitted: list[KernelJob], ahead: CompileAhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a library agrees with a kernel, for example."""
    weight = torch.zeros(6, 8)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(chain, "_least_rows", {})
    monkeypatch.setattr(chain, "_is_slow", lambda x, weight: False)
    monkeypatch.setattr(chain, "_is_one_chain", lambda x, weight: False)
    with ahead.compiled_ahead():
        assert chain.least_library_rows(weight) is None
    monkeypatch.setattr(chain, "_is_one_chain", lambda x, weight: True)
    assert chain.least_library_rows(weight) == 17
