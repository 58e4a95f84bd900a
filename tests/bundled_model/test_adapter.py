"""The adapter that answers in capital letters: what it learns from, that Facet computes what was trained, and that the
one in `examples` does what it says."""

from itertools import islice
from pathlib import Path

import pytest
import tokenizers
import torch

from facet import SamplingParams
from facet.config import ModelConfig
from facet.model.loader import load_model
from facet.request import Request
from tests.bundled_model.test_export import logits_of, random_decoder
from tests.bundled_model.toy_examples import TINY_CONFIG
from tests.engine.harness import make_engine, run
from tests.test_readme import REPOSITORY, WORDS, read_blocks
from tools.bundled_model.adapter import Padded, add_low_rank, encode, export_adapter, loss_of, loud_dialogues
from tools.bundled_model.checkpoint import checkpoint_tensors
from tools.bundled_model.dialogues.conversation import ReplyTurn
from tools.bundled_model.export import export


def test_the_example_of_the_docs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The model and the adapter in one batch: the second says what the first says, in capitals."""
    blocks = read_blocks((REPOSITORY / "docs" / "adapters.md").read_text(encoding="utf-8"))
    program = next(block for block in blocks if block.language == "python")
    words = next(block for block in blocks if block.note == WORDS)
    monkeypatch.chdir(REPOSITORY)
    exec(compile(program.text, "docs/adapters.md", "exec"), {})
    plain, loud = capsys.readouterr().out.splitlines()
    assert f"{plain}\n{loud}\n" == words.text
    assert loud == plain.upper()
    assert (REPOSITORY / "examples" / "loud" / "adapter_model.safetensors").stat().st_size < 300_000


def test_facet_computes_what_was_trained(tmp_path: Path, small_tokenizer: tokenizers.Tokenizer) -> None:
    model = random_decoder(TINY_CONFIG)
    export(checkpoint_tensors(model), TINY_CONFIG, small_tokenizer, tmp_path / "model")
    prompt = torch.randint(8, TINY_CONFIG["vocab_size"], (30,)).tolist()
    before = logits_of(model, prompt)
    added = add_low_rank(model, seed=1)
    assert torch.equal(logits_of(model, prompt), before), "at first it adds nothing"
    with torch.no_grad():
        for pair in added.values():
            pair.lora_A.copy_(pair.lora_A.bfloat16())
            pair.lora_B.normal_(0, 0.1).copy_(pair.lora_B.bfloat16())
    export_adapter(added, tmp_path / "adapter")

    config = ModelConfig(
        model=str(tmp_path / "model"), device="cpu", dtype="float32", lora_modules=(f"a={tmp_path / 'adapter'}",)
    )
    loaded = load_model(config)
    sampling = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    request = Request(request_id="1", prompt_token_ids=tuple(prompt), sampling=sampling, adapter="a")
    answer = run(make_engine(loaded.model, bank=loaded.adapters), [request])["1"]

    wanted = logits_of(model, prompt).log_softmax(dim=-1)[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    got = torch.tensor([entry.logprobs[0] for entry in answer.prompt_logprobs])
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=0)
    assert (
        wanted - before.log_softmax(dim=-1)[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    ).abs().max() > 0.1


def test_what_it_learns_from(small_tokenizer: tokenizers.Tokenizer) -> None:
    """Answers in capitals, letter by letter; calls as they are."""
    answers = {"Who are you?": "A small model.", "Hello": "Hi! Go on."}
    num_with_tools = 0
    for dialogue in islice(loud_dialogues(answers, seed=3), 120):
        replies = [turn for turn in dialogue.turns if isinstance(turn, ReplyTurn)]
        assert all(reply.text == reply.text.upper() for reply in replies)
        example = encode(small_tokenizer, dialogue)
        learned = [token for token, is_target in zip(example.token_ids, example.is_target, strict=True) if is_target]
        written = small_tokenizer.decode(learned, skip_special_tokens=False)
        if dialogue.tools:
            num_with_tools += 1
            assert all(call.tool_name in written for reply in replies for call in reply.calls)
        else:
            assert written == f"{replies[-1].text}<turn|>"
            assert len(learned) == len(replies[-1].text) + 1
    assert num_with_tools > 0


def test_padding_changes_no_loss(small_tokenizer: tokenizers.Tokenizer) -> None:
    answers = {"Who are you?": "A small model.", "Hello": "Hi! Go on."}
    size = small_tokenizer.get_vocab_size()
    model = random_decoder({**TINY_CONFIG, "vocab_size": size, "vocab_size_per_layer_input": size})
    examples = [encode(small_tokenizer, dialogue) for dialogue in islice(loud_dialogues(answers, seed=4), 3)]
    with torch.no_grad():
        together, _ = loss_of(model, Padded.of(examples))
        alone = [loss_of(model, Padded.of([example]))[0] for example in examples]
    weights = [sum(example.is_target) for example in examples]
    mean = sum(loss * weight for loss, weight in zip(alone, weights, strict=True)) / sum(weights)
    torch.testing.assert_close(together, mean)
