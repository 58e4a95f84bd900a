"""The bundled model's tokenizer: byte-pair encoding with Gemma 4's control tokens, trained on the dialogues.

A space, a digit and a sign are tokens of their own and words are cut nowhere else than inside, so a word is written
with the same tokens in a tool's declaration, in a request and in a call. Copying is what a small model does best.
Characters that the vocabulary lacks are written as bytes, so any text survives encoding and decoding.

    python -m tools.bundled_model.tokenizer --output FOLDER
"""

import argparse
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from tools.bundled_model.dialogues.mix import dialogues
from tools.bundled_model.dialogues.rendering import render
from tools.bundled_model.dialogues.words import Lexicon, Source

# A token's place is its id.
CONTROL_TOKENS = (
    "<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>",
    "<|tool_response>", "<tool_response|>", '<|"|>', "<|think|>", "<|channel>", "<channel|>", "<|turn>", "<turn|>",
)  # fmt: skip
# Each of these ends a reply: a text, or calls that wait for their results.
ENDS_OF_REPLY = ("<eos>", "<turn|>", "<|tool_response>")

_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_WORDS = r"\p{L}+| +|\n+|[^\p{L} \n]"
_TEMPLATE = Path(__file__).parent / "chat_template.jinja"
DEFAULT_SEED = 1
# Enough that every word of the lists is seen often; more changes few merges.
_NUM_DIALOGUES = 20_000


def build_tokenizer(
    seed: int, vocabulary_size: int = 4096, *, num_dialogues: int = _NUM_DIALOGUES
) -> tokenizers.Tokenizer:
    """Trains on so many dialogues of this seed. The same arguments give the same tokenizer."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = _pre_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size - len(CONTROL_TOKENS) - len(_BYTES),
        initial_alphabet=["\n", "\t", *map(chr, range(32, 127))],
        show_progress=False,
    )
    learner.train_from_iterator(_texts(seed, num_dialogues), trainer)
    learned = json.loads(learner.to_str())["model"]

    tokens = [*CONTROL_TOKENS, *_BYTES, *sorted(learned["vocab"], key=learned["vocab"].__getitem__)]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    merges = [(left, right) for left, right in learned["merges"]]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in CONTROL_TOKENS])
    return tokenizer


def write_tokenizer(tokenizer: tokenizers.Tokenizer, folder: Path) -> None:
    """Writes the tokenizer and chat template files of a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_bytes(_TEMPLATE.read_bytes())


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(_WORDS), "isolated")


def _texts(seed: int, num_dialogues: int) -> Iterator[str]:
    """Text between control tokens only: these are not learned but given."""
    # Not an inventive source: room in the vocabulary is for words that people use.
    source = Source(random.Random(seed), Lexicon.of(held_out=False))
    without_controls = Regex("|".join(map(_escaped, CONTROL_TOKENS)))
    split = pre_tokenizers.Split(without_controls, "removed")
    for dialogue in itertools.islice(dialogues(source), num_dialogues):
        for piece in render(dialogue):
            for text, _ in split.pre_tokenize_str(piece.text):
                yield text


def _escaped(token: str) -> str:
    return token.replace("|", r"\|")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the bundled model's tokenizer and write its files.")
    parser.add_argument("--output", type=Path, required=True, help="folder for tokenizer.json and its companions")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    arguments = parser.parse_args()
    tokenizer = build_tokenizer(arguments.seed)
    write_tokenizer(tokenizer, arguments.output)
    print(f"{arguments.output}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
