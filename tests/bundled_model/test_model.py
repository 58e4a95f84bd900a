"""The trainable decoder: documents in one row do not see each other, and both ways of attending agree."""

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from tests.bundled_model.toy_examples import TINY_CONFIG, VOCABULARY
from tools.bundled_model.attention import block_mask, dense_attend, dense_mask, flex_attend
from tools.bundled_model.model import Decoder
from tools.bundled_model.shape import BUNDLED_CONFIG, make_spec

WINDOW = TINY_CONFIG["sliding_window"]


@pytest.fixture(scope="module")
def model() -> Decoder:
    return Decoder(make_spec(TINY_CONFIG), seed=3)


def random_ids(length: int, seed: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_documents_in_one_row_are_as_if_alone(model: Decoder) -> None:
    lengths = (3 * WINDOW + 1, 1, WINDOW, 2 * WINDOW + 5)
    documents = [random_ids(length, seed) for seed, length in enumerate(lengths)]
    positions = torch.cat([torch.arange(length) for length in lengths])
    document_ids = torch.cat([torch.full((length,), index) for index, length in enumerate(lengths)])

    together = model(torch.cat(documents)[None], positions[None], dense_attend(document_ids[None]))[0]

    for document, ours in zip(documents, together.split(lengths), strict=True):
        index = torch.arange(len(document))[None]
        alone = model(document[None], index, dense_attend(torch.zeros_like(index)))[0]
        torch.testing.assert_close(ours, alone, atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_token_changes_what_comes_after_it_and_only_that(model: Decoder) -> None:
    ids = random_ids(4 * WINDOW, seed=9)[None]
    changed = ids.clone()
    place = 2 * WINDOW
    changed[0, place] = (ids[0, place] + 1) % VOCABULARY
    positions, attend = torch.arange(4 * WINDOW)[None], dense_attend(torch.zeros_like(ids))
    difference = (model(ids, positions, attend) - model(changed, positions, attend)).abs().amax(dim=-1)[0]
    assert float(difference[:place].max()) == 0
    assert float(difference[place:].min()) > 1e-4


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@torch.no_grad()
def test_flex_attention_agrees_with_the_written_down_mask(model: Decoder) -> None:
    length = 256
    ids, positions = random_ids(2 * length, seed=4).view(2, length), torch.arange(length).expand(2, -1)
    document_ids = torch.zeros(2, length, dtype=torch.int32)
    document_ids[0, 100:] = 1
    document_ids[1, 30:] = 1
    document_ids[1, 128:] = 2
    dense = model(ids, positions, dense_attend(document_ids))
    flex = model(ids, positions, flex_attend(document_ids))
    torch.testing.assert_close(flex, dense, atol=1e-4, rtol=0)


@pytest.mark.parametrize("window", [None, 1, 5, 127, 128, 129, 130, 255, 256, 257, 400, 5000])
@pytest.mark.parametrize("num_documents", [1, 2, 30])
def test_the_block_mask_is_that_of_the_mask_itself(window: int | None, num_documents: int) -> None:
    """Which blocks are empty, mixed and full, against counting every pair of tokens."""
    num_rows, length = 3, 768
    generator = torch.Generator().manual_seed(num_documents)
    document_ids = torch.randint(0, num_documents, (num_rows, length), generator=generator).sort(dim=1).values
    ours = block_mask(document_ids, window)

    sees = dense_mask(document_ids, window)
    pairs = sees.view(num_rows, 6, 128, 6, 128).sum(dim=(2, 4))
    # Of the blocks on the diagonal none is full: half of their pairs lie in the future.
    assert torch.equal(_as_matrix(ours.full_kv_num_blocks, ours.full_kv_indices), pairs == 128 * 128)
    partial = _as_matrix(ours.kv_num_blocks, ours.kv_indices)
    assert torch.equal(partial, (pairs > 0) & (pairs < 128 * 128))

    by_torch = create_block_mask(ours.mask_mod, num_rows, 1, length, length, device="cpu")
    assert torch.equal(ours.to_dense(), by_torch.to_dense())


def _as_matrix(counts: Tensor | None, indices: Tensor | None) -> Tensor:
    """[rows, query blocks, key blocks], from lists of indices."""
    assert counts is not None
    assert indices is not None
    is_listed = torch.arange(indices.shape[-1]) < counts[:, 0, :, None]
    return torch.zeros(is_listed.shape, dtype=torch.bool).scatter(-1, indices[:, 0].long(), is_listed)


def test_recomputing_layers_changes_no_gradient(model: Decoder) -> None:
    ids = random_ids(3 * WINDOW, seed=2)[None]
    positions, attend = torch.arange(3 * WINDOW)[None], dense_attend(torch.zeros_like(ids))
    gradients = []
    for recompute in (False, True):
        model.zero_grad()
        model(ids, positions, attend, recompute=recompute).square().mean().backward()
        gradients.append({name: value.grad for name, value in model.named_parameters() if value.requires_grad})
    assert all(gradient is not None for gradient in gradients[0].values()), "every parameter takes part"
    for name in gradients[0]:
        torch.testing.assert_close(gradients[0][name], gradients[1][name], msg=name)


def test_the_first_weights_follow_from_the_seed() -> None:
    first, second, other = (Decoder(make_spec(TINY_CONFIG), seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["layers.0.mlp.up_proj.weight"], other["layers.0.mlp.up_proj.weight"])


def test_the_bundled_shape() -> None:
    """What the model was chosen for: three global layers of its own, upper layers that share, heads a GPU takes."""
    spec = make_spec(BUNDLED_CONFIG)
    owners = [layer for layer in spec.layers if layer.owns_kv]
    assert sum(layer.attention == "global" for layer in owners) == 3
    assert [layer.kv_from_layer for layer in spec.layers[-3:]] == [5, 5, 6]
    assert {layer.head_dim for layer in spec.layers} == {64, 128}
    assert spec.logit_softcap == 30
    assert spec.max_positions == 8192
