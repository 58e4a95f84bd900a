"""The doctor's own model is one that its checks can all be run on."""

from pathlib import Path

from facet.chat import ChatTemplate
from facet.chat.formats import ReplyMarkers
from facet.config import ModelConfig
from facet.doctor.own_model import VOCAB_SIZE, write_own_model
from facet.model.named_model import read_spec
from facet.tokens import Tokenizer


def test_it_has_every_part(tmp_path: Path) -> None:
    write_own_model(tmp_path, dtype="float32")
    spec, _ = read_spec(ModelConfig(model=str(tmp_path)))
    assert {layer.attention for layer in spec.layers} == {"sliding", "global"}
    assert 0 < spec.first_shared_layer < spec.num_layers
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.vocab_size <= VOCAB_SIZE
    assert ReplyMarkers.find(tokenizer) is not None
    text = "Grüße aus Paris, 20 °C"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    template = ChatTemplate.from_folder(tmp_path, tokenizer)
    assert template is not None
    rendered = template.render([{"role": "user", "content": "Hello"}])
    assert tokenizer.encode_prompt(rendered)[0] == tokenizer.token_to_id("<bos>")
