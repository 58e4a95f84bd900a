"""A small tokenizer of Gemma's make: BPE with byte fallback, spaces written as "▁", no prefix space."""

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = (
    "The weather in Paris is clear and the wind is light.",
    "Le café est fermé, mais l'hôtel est ouvert jusqu'à minuit.",
    "Grüße aus München; straßenweise Übungen.",
    "def step(self): return plan, commit, launch, settle",
    "one two three four five six seven eight nine ten",
    "  indented text\n\twith tabs and   several   spaces",
    "今日は天気がいいですね。東京は晴れです。",
    "🙂 smile, 👍 thumb",
)
CONTROL_TOKENS = (
    *("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"),
    *("<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
    *('<|"|>', "<|think|>", "<|channel>", "<channel|>", "<|turn>", "<turn|>"),
)
# Those of the larger vocabularies, with media; of Gemma 3 and its kin, another set.
GEMMA4_TOKENS = (
    *CONTROL_TOKENS,
    *("<|image>", "<image|>", "<|image|>", "<|audio>", "<audio|>", "<|audio|>", "<|video|>"),
)
GEMMA3_TOKENS = (
    *("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"),
    *("<start_of_image>", "<end_of_image>", "<image_soft_token>", "<start_of_audio>", "<audio_soft_token>"),
)
# FunctionGemma's beside those, which its tokenizer.json does not call special.
FUNCTION_TOKENS = (
    *("<start_function_declaration>", "<end_function_declaration>", "<start_function_call>", "<end_function_call>"),
    *("<start_function_response>", "<end_function_response>", "<escape>"),
)
# Added tokens that are ordinary text in Gemma's vocabularies.
TEXT_TOKENS = ("\n\n", "\n\n\n", "<table>", "</table>", "<h1>", "<unused7>", "[@BOS@]")
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))


def build_gemma_like(
    *, adds_bos: bool = False, control_tokens: Sequence[str] = CONTROL_TOKENS, text_tokens: Sequence[str] = ()
) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    # For training only: without it, so small a corpus is learnt by heart, one token a sentence.
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    added = [*control_tokens, *text_tokens]
    trainer = trainers.BpeTrainer(
        vocab_size=463 + len(added), special_tokens=[*added, *BYTE_TOKENS], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    if adds_bos:
        bos_id = tokenizer.token_to_id("<bos>")
        tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos_id)])
    # The trainer makes its reserved tokens special; byte tokens must be ordinary ones or decoding drops them.
    description = json.loads(tokenizer.to_str())
    description["added_tokens"] = [token for token in description["added_tokens"] if token["content"] in added]
    for token in description["added_tokens"]:
        token["special"] = token["content"] in control_tokens
    return tokenizers.Tokenizer.from_str(json.dumps(description))


def write_tokenizer_folder(
    folder: Path,
    *,
    adds_bos: bool = False,
    control_tokens: Sequence[str] = CONTROL_TOKENS,
    text_tokens: Sequence[str] = (),
) -> Path:
    tokenizer = build_gemma_like(adds_bos=adds_bos, control_tokens=control_tokens, text_tokens=text_tokens)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "bos_token": "<bos>",
        "eos_token": {"__type": "AddedToken", "content": "<eos>", "special": True},
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
