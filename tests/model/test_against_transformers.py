"""Every family computes what transformers computes, in float32, past the window, in one pass or token by token."""

import copy
from collections.abc import Callable
from itertools import accumulate, cycle, pairwise, takewhile

import pytest
import torch

from tests.model.paged_model import PagedSequence, load, stored_separately
from tests.tiny_models import ALL_TEXT_NAMES, BASE_NAMES, MULTIMODAL_NAMES, SMALL_WINDOW_NAMES, TinyModel

# Logits have magnitude ~25; two float32 implementations that sum in different orders differ by about 1e-4, and each
# is about 2e-4 from what float64 gives.
LOGIT_TOLERANCE = 2e-4
# Two streams divide by their own small magnitudes, which enlarges what sums in another order leave: 2.6e-4 was seen on
# an x86_64 processor, 6.5e-4 on an aarch64 one.
TOLERANCES = {"3n_two_streams": 1e-3}
NUM_GREEDY = 5
# Slow on processors without such instructions: shallow models, and float16 where, between them, every kind of layer is
# met.
HALF_PRECISION = [
    *((name, "bfloat16") for name in SMALL_WINDOW_NAMES if "26b" not in name),
    ("gemma4_26b_a4b", "bfloat16"),  # where few layers choose experts, one rounding is much
    *((name, "float16") for name in ("gemma4_e2b_small", "gemma4_26b_a4b_small", "gemma3n_small")),
]

TinyModels = Callable[[str], TinyModel]


def assert_same_logits(ours: torch.Tensor, tiny: TinyModel, prompt: list[int]) -> None:
    """Of the last tokens of a prompt: within the tolerance of the oracle; or, where a processor sums unluckily, as
    close as two implementations can be that are both as close to float64 as the oracle is.
    """
    difference = largest_difference(ours, tiny.oracle_logits(prompt)[-len(ours) :])
    assert difference <= TOLERANCES.get(tiny.name, LOGIT_TOLERANCE) or difference <= 2 * tiny.oracle_error(prompt)


def largest_difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max())


@pytest.mark.parametrize("name", ALL_TEXT_NAMES)
def test_one_pass_matches_at_every_position(name: str, tiny_model: TinyModels) -> None:
    tiny = tiny_model(name)
    model = load(tiny.folder).model
    for length in (1, tiny.window, tiny.window + 1, 5 * tiny.window + 3):
        prompt = tiny.prompt(length)
        ours = PagedSequence(model, length).run(prompt)
        assert_same_logits(ours, tiny, prompt)


@pytest.mark.parametrize("name", BASE_NAMES)
def test_token_by_token_equals_one_pass(name: str, tiny_model: TinyModels) -> None:
    tiny = tiny_model(name)
    model = load(tiny.folder).model
    prompt = tiny.prompt(3 * tiny.window // 2)
    by_token = PagedSequence(model, len(prompt))
    one_by_one = torch.cat([by_token.run([token]) for token in prompt])
    assert_same_logits(one_by_one, tiny, prompt)


@pytest.mark.parametrize("name", BASE_NAMES)
def test_chunked_equals_one_pass(name: str, tiny_model: TinyModels) -> None:
    tiny = tiny_model(name)
    model = load(tiny.folder).model
    prompt = tiny.prompt(5 * tiny.window + 3)
    sequence = PagedSequence(model, len(prompt))
    cuts = accumulate(cycle((2, 7, 1, tiny.window + 1, 2)), initial=0)
    starts = [*takewhile(lambda cut: cut < len(prompt), cuts), len(prompt)]
    ours = torch.cat([sequence.run(prompt[start:end]) for start, end in pairwise(starts)])
    assert_same_logits(ours, tiny, prompt)


@pytest.mark.parametrize("name", ALL_TEXT_NAMES)
def test_greedy_tokens_and_their_logits_are_equal(name: str, tiny_model: TinyModels) -> None:
    """A prompt in one pass, then token by token: over the end of the first window, and past the second."""
    tiny = tiny_model(name)
    model = load(tiny.folder).model
    for length in (tiny.window - 3, 2 * tiny.window + 5):
        prompt = tiny.prompt(length)
        logits = PagedSequence(model, length + NUM_GREEDY).greedy_logits(prompt, NUM_GREEDY)
        ours = logits.argmax(-1).tolist()
        # One pass over all of it: as long as the tokens agree, each is what the oracle says after those before it.
        assert ours == tiny.oracle_logits(prompt + ours)[length - 1 : -1].argmax(-1).tolist()
        assert_same_logits(logits, tiny, prompt + ours[:-1])


@pytest.mark.parametrize("name", ["gemma4_e2b", "gemma4_e4b", "e2b_uneven", "gemma3n", "3n_two_streams"])
def test_rows_that_stop_at_shared_layers_change_nothing(name: str, tiny_model: TinyModels) -> None:
    tiny = tiny_model(name)
    model = load(tiny.folder).model
    prompt = tiny.prompt(4 * tiny.window)
    everything = PagedSequence(model, len(prompt)).run(prompt)
    last_rows = PagedSequence(model, len(prompt)).run(prompt, num_logit_rows=3, skip_upper=True)
    assert largest_difference(last_rows, everything[-3:]) <= 5e-5


@pytest.mark.parametrize("name", ["gemma4_31b", "gemma4_26b_a4b", "gemma4_12b", "31b_one_head", "31b_default_heads"])
def test_shared_vectors_serve_as_separate_ones_do(name: str, tiny_model: TinyModels) -> None:
    tiny = tiny_model(name)
    model = load(tiny.folder).model
    prompt = tiny.prompt(3 * tiny.window + 1)
    shared = PagedSequence(model, len(prompt))
    separate = PagedSequence(model, len(prompt), stores=stored_separately(model.spec))
    per_token = [sequence.layout.groups[-1].bytes_per_token for sequence in (shared, separate)]
    assert per_token[1] == 2 * per_token[0]
    # The cap squeezes logits of magnitude 25; 1e-5 of them is what one float32 rounding of the key amounts to.
    chunks = [prompt[:5], prompt[5:-6], *([token] for token in prompt[-6:])]
    for chunk in chunks:
        got, expected = shared.run(chunk), separate.run(chunk)
        assert largest_difference(got, expected) <= 1e-5 * float(expected.abs().max())


@pytest.mark.parametrize("name", MULTIMODAL_NAMES)
def test_text_weights_load_from_multimodal_checkpoints(name: str, tiny_model: TinyModels) -> None:
    tiny = tiny_model(name)
    model = load(tiny.folder).model
    prompt = tiny.prompt(2 * tiny.window + 5)
    ours = PagedSequence(model, len(prompt)).run(prompt)
    assert_same_logits(ours, tiny, prompt)


@pytest.mark.parametrize(("name", "dtype"), HALF_PRECISION)
def test_half_precision_runs(name: str, dtype: str, tiny_model: TinyModels, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = tiny_model(name)
    prompt = tiny.prompt(2 * tiny.window + 5)
    exact = tiny.oracle_logits(prompt)
    model = load(tiny.folder, dtype=dtype).model
    ours = PagedSequence(model, len(prompt), kv_dtype=dtype).run(prompt)
    error = (ours - exact).abs()
    # A copy: on the way back from a half type weights would stay rounded, for every test that comes after.
    rounded = copy.deepcopy(tiny.oracle).to(getattr(torch, dtype))
    theirs = (tiny.oracle_logits(prompt, rounded) - exact).abs()
    with capsys.disabled():
        print(
            f"\n{name} {dtype}: logit error against float32 mean {error.mean():.4f}, largest {error.max():.3f}; "
            f"transformers' own {theirs.mean():.4f}, {theirs.max():.3f}"
        )
    assert ours.isfinite().all()
    assert error.mean() <= 2 * theirs.mean() + 1e-3
