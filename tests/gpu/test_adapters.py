"""Adapters on a GPU: the kernels against the definition, and answers that do not depend on company."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from facet.kernels.arithmetic import BATCH_INVARIANT
from facet.kernels.low_rank import AdapterRows, LowRankMatrices, begin_addition, cases
from facet.kernels.low_rank.reference import ReferenceAddition
from tests.engine.harness import make_engine, run
from tests.engine.random_company import Company, answers_alone, check_batches, draw_requests
from tests.engine.test_adapters import ask, load, prompt_logprobs, with_adapters
from tests.tiny_adapters import adaptable_modules, expert_parameters, write_adapter
from tests.tiny_models import TinyModel

WITH_EXPERTS = "gemma4_26b_a4b_small"
SHAPES = (*cases.CASES, cases.E4B_GATE_UP, cases.E4B_DOWN, cases.E4B_QKV)


def inputs(case: cases.Case, num_rows: int) -> tuple[Tensor, Tensor, Tensor, LowRankMatrices]:
    matrices = case.matrices(torch.bfloat16, "cuda")
    x, product = case.rows(num_rows, torch.bfloat16, "cuda")
    numbers = torch.arange(num_rows, dtype=torch.int32, device="cuda") // 5 % (case.num_adapters + 1)
    return product, x, numbers, matrices


def add(product: Tensor, x: Tensor, numbers: Tensor, matrices: LowRankMatrices) -> None:
    begin_addition(x, AdapterRows(numbers), matrices, functional.linear).add_to(product)


@pytest.mark.parametrize("num_rows", [1, 6, 64, 100, 512, 2048])
@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_kernels_do_what_the_definition_says(case: cases.Case, num_rows: int) -> None:
    product, x, numbers, matrices = inputs(case, num_rows)
    expected = product.clone()
    ReferenceAddition(x, AdapterRows(numbers), matrices, functional.linear).add_to(expected)
    add(product, x, numbers, matrices)
    cases.HALF.check(product, expected)


@pytest.mark.parametrize("num_rows", [64, 2048])
def test_activations_are_those_of_the_sums(num_rows: int) -> None:
    product, x, numbers, matrices = inputs(cases.E4B_GATE_UP, num_rows)
    sums = product.clone()
    add(sums, x, numbers, matrices)
    addition = begin_addition(x, AdapterRows(numbers), matrices, functional.linear)
    assert torch.equal(addition.geglu_of(product, BATCH_INVARIANT.geglu), BATCH_INVARIANT.geglu(sums))


@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_number_of_rows_changes_no_bit(case: cases.Case) -> None:
    product, x, numbers, matrices = inputs(case, 1100)
    before = product.clone()
    add(product, x, numbers, matrices)
    for first, count in ((7, 1), (5, 20), (60, 64), (40, 100), (100, 400), (90, 1000)):
        rows = slice(first, first + count)
        some = before[rows].clone()
        add(some, x[rows], numbers[rows], matrices)
        assert torch.equal(some, product[rows])


def test_experts(tiny_model: Callable[[str], TinyModel], tmp_path: Path) -> None:
    """Beside all experts of 26B-A4B, in float32 and against a processor; in captured steps, too."""
    tiny = tiny_model(WITH_EXPERTS)
    write_adapter(tmp_path, adaptable_modules(tiny, "q_proj"), experts=expert_parameters(tiny))
    modules = (f"a={tmp_path}",)
    asked = [ask("a", tiny.prompt(30), "a"), ask("none", tiny.prompt(21))]
    on_cpu = load(tiny.folder, lora_modules=modules)
    expected = run(make_engine(on_cpu.model, bank=on_cpu.adapters), asked)
    loaded = load(tiny.folder, device="cuda", dtype="float32", lora_modules=modules)
    for graph_sizes in ((), (1, 2, 4)):
        engine = make_engine(loaded.model, bank=loaded.adapters, graph_sizes=graph_sizes)
        for name, answer in run(engine, asked).items():
            assert answer.token_ids == expected[name].token_ids
            ours, theirs = prompt_logprobs(answer), prompt_logprobs(expected[name])
            torch.testing.assert_close(ours, theirs, atol=5e-3, rtol=0)


FAMILIES = ("gemma4_e4b_small", "gemma4_31b_small", "gemma3n_small")


@pytest.mark.parametrize(
    ("name", "quantization"),
    [*((name, quantization) for name in FAMILIES for quantization in (None, "fp8", "int4")), (WITH_EXPERTS, None)],
)
def test_company_changes_no_bit(
    name: str, quantization: str | None, tiny_model: Callable[[str], TinyModel], tmp_path: Path
) -> None:
    """Requests of two adapters and of none, in captured steps and others; beside experts, too."""
    tiny = tiny_model(name)
    experts = expert_parameters(tiny) if name == WITH_EXPERTS else None
    write_adapter(tmp_path / "a", adaptable_modules(tiny), seed=1, experts=experts)
    write_adapter(tmp_path / "b", adaptable_modules(tiny, "q_proj", "v_proj"), seed=2, rank=20)
    loaded = load(
        tiny.folder,
        arithmetic=BATCH_INVARIANT,
        device="cuda",
        dtype="bfloat16",
        quantization=quantization,
        lora_modules=tuple(f"{each}={tmp_path / each}" for each in "ab"),
    )
    requests = with_adapters(draw_requests(tiny.window, loaded.spec.vocab_size, seed=len(name)))
    bank = loaded.adapters
    solo = make_engine(
        loaded.model, bank=bank, enable_prefix_caching=False, overlapped=False, fast_prefill=False, kv_dtype="bfloat16"
    )
    assert solo.adapters[0].line.endswith("of their size")
    expected = answers_alone(solo, requests)
    engine = make_engine(
        loaded.model,
        bank=bank,
        max_num_batched_tokens=16,
        graph_sizes=(1, 2, 4, 8),
        piece_sizes=(16, 48),
        kv_dtype="bfloat16",
    )
    check_batches(engine, Company(16, num_batches=6), requests, expected, seed=name)
