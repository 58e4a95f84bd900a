"""The attention that the bundled model is trained with on a GPU, against the one that defines it."""

import numpy as np
import torch
from torch import Tensor

from tests.bundled_model.toy_examples import ToyExample
from tools.bundled_model.attention import dense_attend
from tools.bundled_model.flash import flash_attend
from tools.bundled_model.model import Decoder
from tools.bundled_model.shape import BUNDLED_CONFIG, make_spec
from tools.bundled_model.stream import pack


def test_gradients_are_those_of_the_dense_mask() -> None:
    lengths = [700, 3, 1, 128, 129, 64, 400, 260, 90, 200]
    generator = np.random.default_rng(0)
    examples = [
        ToyExample(token_ids=tuple(generator.integers(3, 4000, length).tolist()), is_target=(True,) * length)
        for length in lengths
    ]
    batch = pack(examples, 2, 1024)
    model = Decoder(make_spec(BUNDLED_CONFIG), 0, torch.bfloat16).cuda()
    token_ids, positions, document_ids, starts = (
        torch.from_numpy(array.astype(np.int32)).cuda()
        for array in (batch.token_ids, batch.positions, batch.document_ids, batch.document_starts)
    )

    def gradients(attend: object) -> dict[str, Tensor]:
        model.zero_grad(set_to_none=True)
        logits = model(token_ids, positions, attend)
        logits.square().mean().backward()
        return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}

    expected = gradients(dense_attend(document_ids))
    got = gradients(flash_attend(starts))
    for name, gradient in expected.items():
        difference = float((got[name] - gradient).norm() / gradient.norm().clamp(min=1e-12))
        assert difference < 0.05, f"{name}: {difference:.3f}"
