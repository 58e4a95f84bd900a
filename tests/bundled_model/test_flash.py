"""Attention by PyTorch's flash kernels, as far as it goes without a GPU: shapes and gradients arrive where they should.

What it computes is compared in tests/gpu.
"""

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.bundled_model.toy_examples import TINY_CONFIG, VOCABULARY, ToyExample
from tools.bundled_model.flash import flash_attend
from tools.bundled_model.model import Decoder
from tools.bundled_model.shape import make_spec
from tools.bundled_model.stream import pack


def test_every_parameter_gets_a_gradient() -> None:
    with FakeTensorMode():
        model = Decoder(make_spec(TINY_CONFIG), 0, torch.bfloat16)
        token_ids = torch.zeros(2, 64, dtype=torch.int32)
        logits = model(token_ids, token_ids, flash_attend(torch.zeros(9, dtype=torch.int32)))
        assert logits.shape == (2, 64, VOCABULARY)
        logits.sum().backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name


def test_documents_begin_where_they_were_packed() -> None:
    examples = [ToyExample(token_ids=(3,) * length, is_target=(True,) * length) for length in (300, 200, 260, 100)]
    batch = pack(examples, num_rows=2, row_length=512)
    starts = batch.document_starts
    # 300 and 200 in one row, 260 and 100 in the other, and what is left of each as a document of its own
    assert starts[:7].tolist() == [0, 300, 500, 512, 772, 872, 1024]
    assert np.all(starts[6:] == 1024)
