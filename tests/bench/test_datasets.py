"""Prompts of the lengths asked for, and files with good and bad entries."""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from facet.bench.config import BenchConfig, check_config
from facet.bench.datasets import make_dataset
from facet.bench.dialogue import Turn
from facet.errors import ConfigError
from facet.media.limits import MediaLimits
from facet.media.opening import open_picture
from facet.media.sources import MediaSources
from facet.tokens import Tokenizer
from tests.tokens.gemma_like import build_gemma_like


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """One that adds <bos>."""
    return Tokenizer(build_gemma_like(adds_bos=True))


def turns_of(config: BenchConfig, tokenizer: Tokenizer | None = None) -> list[Turn]:
    return [turn for conversation in make_dataset(config, tokenizer).conversations for turn in conversation]


def ids_of(turn: Turn) -> list[int]:
    assert isinstance(turn.content, np.ndarray)
    return [int(token) for token in turn.content]


class TestRandom:
    def test_token_ids_of_an_exact_length(self) -> None:
        turns = turns_of(BenchConfig(num_prompts=20, random_input_len=33, random_output_len=7))
        assert [(len(ids_of(turn)), turn.num_tokens, turn.max_tokens) for turn in turns] == [(33, 33, 7)] * 20
        assert len({tuple(ids_of(turn)) for turn in turns}) == 20
        assert all(1000 <= token < 32_000 for turn in turns for token in ids_of(turn))

    def test_the_seed_decides(self) -> None:
        first, again, other = (
            [ids_of(turn) for turn in turns_of(BenchConfig(num_prompts=3, seed=seed))] for seed in (1, 1, 2)
        )
        assert first == again
        assert first != other

    def test_a_small_vocabulary(self) -> None:
        turns = turns_of(BenchConfig(num_prompts=5, random_input_len=500, vocab_size=100))
        assert {token for turn in turns for token in ids_of(turn)} == set(range(50, 100))
        with pytest.raises(ConfigError, match="--vocab-size"):
            turns_of(BenchConfig(num_prompts=5, vocab_size=1))

    def test_lengths_in_a_range(self) -> None:
        turns = turns_of(BenchConfig(num_prompts=400, random_input_len=10, random_output_len=4, random_range_ratio=0.5))
        assert {len(ids_of(turn)) for turn in turns} == set(range(5, 16))
        assert {turn.max_tokens for turn in turns} == {2, 3, 4, 5, 6}

    def test_general_lengths_go_over_those_of_the_dataset(self) -> None:
        (turn,) = turns_of(BenchConfig(num_prompts=1, input_len=3, output_len=2))
        assert (len(ids_of(turn)), turn.max_tokens) == (3, 2)

    def test_a_common_prefix(self) -> None:
        turns = turns_of(BenchConfig(num_prompts=5, random_input_len=8, random_prefix_len=6))
        assert {len(ids_of(turn)) for turn in turns} == {14}
        assert len({tuple(ids_of(turn)[:6]) for turn in turns}) == 1
        assert len({tuple(ids_of(turn)[6:]) for turn in turns}) == 5
        turns = turns_of(BenchConfig(num_prompts=2, random_input_len=0, random_prefix_len=6))
        assert ids_of(turns[0]) == ids_of(turns[1])
        with pytest.raises(ConfigError, match="without a token"):
            turns_of(BenchConfig(num_prompts=2, random_input_len=0))

    @pytest.mark.parametrize("num_tokens", [1, 2, 3, 17, 200])
    def test_text_of_an_exact_length(self, tokenizer: Tokenizer, num_tokens: int) -> None:
        """As the server will count: with the <bos> that this tokenizer adds."""
        config = BenchConfig(num_prompts=4, random_input_len=num_tokens, vocab_size=480)
        for turn in turns_of(config, tokenizer):
            assert isinstance(turn.content, str)
            assert len(tokenizer.encode(turn.content)) == num_tokens
            assert not set(tokenizer.encode(turn.content)[1:]) & tokenizer.special_ids

    def test_text_after_a_prefix(self, tokenizer: Tokenizer) -> None:
        config = BenchConfig(num_prompts=4, random_input_len=20, random_prefix_len=10)
        texts = [turn.content for turn in turns_of(config, tokenizer)]
        assert [len(tokenizer.encode(str(text))) for text in texts] == [30] * 4
        assert len({tuple(tokenizer.encode(str(text))[:10]) for text in texts}) == 1

    def test_chats_are_text_of_about_the_length_without_a_tokenizer(self) -> None:
        dataset = make_dataset(BenchConfig(backend="openai-chat", num_prompts=1, random_input_len=30), None)
        content = dataset.conversations[0][0].content
        assert isinstance(content, str)
        assert len(content.split()) == 30
        assert "as the server counted" in dataset.remarks[0]


class TestSessions:
    def test_a_long_turn_and_short_ones(self) -> None:
        config = BenchConfig(
            dataset_name="sessions",
            num_prompts=3,
            num_turns=4,
            random_input_len=50,
            turn_input_len=6,
            random_prefix_len=9,
        )
        conversations = make_dataset(config, None).conversations
        assert [[len(ids_of(turn)) for turn in turns] for turns in conversations] == [[59, 6, 6, 6]] * 3
        assert len({tuple(ids_of(turns[0])[:9]) for turns in conversations}) == 1
        assert len({tuple(ids_of(turn)) for turns in conversations for turn in turns}) == 12

    def test_five_turns_unless_told_otherwise(self) -> None:
        (turns,) = make_dataset(BenchConfig(dataset_name="sessions", num_prompts=1), None).conversations
        assert len(turns) == 5


def test_tool_chats() -> None:
    config = BenchConfig(dataset_name="tools", backend="openai-chat", num_prompts=30, num_turns=2, random_input_len=5)
    conversations = make_dataset(config, None).conversations
    numbers = {len(turns[0].fields["tools"]) for turns in conversations}
    assert min(numbers) == 1
    assert max(numbers) > 4
    for turns in conversations:
        assert len(turns) == 2
        assert turns[0].fields == turns[1].fields
        for tool in turns[0].fields["tools"]:
            schema = tool["function"]["parameters"]
            assert set(schema["required"]) <= set(schema["properties"])
    json.dumps([turn.fields for turns in conversations for turn in turns])


class TestImages:
    def config(self, **settings: Any) -> BenchConfig:
        return BenchConfig(
            **{"dataset_name": "images", "backend": "openai-chat", "num_prompts": 3, "random_input_len": 5, **settings}
        )

    def urls(self, config: BenchConfig) -> list[str]:
        found = []
        for turn in turns_of(config):
            (message,) = cast(list[dict[str, Any]], turn.content)
            *pictures, text = message["content"]
            assert len(text["text"].split()) == 5
            assert len(pictures) == config.images_per_prompt
            found += [picture["image_url"]["url"] for picture in pictures]
        return found

    def test_pictures_of_the_sizes_asked_for_no_two_alike(self) -> None:
        urls = self.urls(self.config(images_per_prompt=2, image_sizes=("64x32", "20x40")))
        pictures = [open_picture(MediaSources().read_url(url, "it"), MediaLimits(), "it") for url in urls]
        assert [picture.size for picture in pictures] == [(64, 32), (20, 40)] * 3
        assert len(set(urls)) == 6

    def test_files_of_a_folder_again_and_again(self, tmp_path: Path) -> None:
        for name in ("a.png", "b.jpg", "notes.txt"):
            (tmp_path / name).write_bytes(name.encode())
        assert [url[:15] for url in self.urls(self.config(dataset_path=str(tmp_path)))] == [
            "data:image/png;",
            "data:image/jpeg",
            "data:image/png;",
        ]

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"image_sizes": ("64",)}, "--image-sizes 64: give sizes such as 1024x768"),
            ({"image_sizes": ("0x9",)}, "--image-sizes 0x9"),
            ({"dataset_path": "/nowhere"}, "/nowhere is no folder with pictures"),
            ({"backend": "openai"}, "images is made of chats: add --backend openai-chat"),
        ],
    )
    def test_what_cannot_be_sent_is_refused(self, settings: dict[str, Any], words: str) -> None:
        def make(config: BenchConfig) -> None:
            check_config(config)
            make_dataset(config, None)

        with pytest.raises(ConfigError, match=words):
            make(self.config(**settings))


class TestShareGpt:
    ENTRIES: list[Any] = [  # noqa: RUF012  (read only)
        {
            "conversations": [
                {"from": "human", "value": "a question " * 10},
                {"from": "gpt", "value": "an answer " * 20},
            ]
        },
        {"messages": [{"role": "user", "content": "another " * 10}, {"role": "assistant", "content": "well " * 10}]},
        {"conversations": [{"from": "human", "value": "nobody answered this one"}]},
        {"conversations": [{"from": "human", "value": "short"}, {"from": "gpt", "value": "an answer " * 20}]},
        {"conversations": [{"from": "human", "value": "long " * 2000}, {"from": "gpt", "value": "an answer " * 20}]},
        {"text": "no conversation"},
        {"conversations": [{"from": "human"}, {"from": "gpt"}]},
    ]

    def config(self, folder: Path, **settings: Any) -> BenchConfig:
        path = folder / "data.json"
        path.write_text(json.dumps(self.ENTRIES))
        return BenchConfig(**{"dataset_name": "sharegpt", "dataset_path": str(path), "num_prompts": 2, **settings})

    def test_questions_with_answers_of_the_recorded_length(self, tmp_path: Path, tokenizer: Tokenizer) -> None:
        for counter in (tokenizer, None):
            turns = turns_of(self.config(tmp_path), counter)
            assert {str(turn.content)[:7] for turn in turns} == {"a quest", "another"}
            for turn in turns:
                entry = self.ENTRIES[0 if str(turn.content).startswith("a quest") else 1]
                said = entry.get("conversations") or entry["messages"]
                answer = said[1].get("value") or said[1]["content"]
                expected = len(tokenizer.encode(answer)) if counter else -(-len(answer) // 4)
                assert turn.max_tokens == expected
        assert {turn.max_tokens for turn in turns_of(self.config(tmp_path, output_len=9))} == {9}

    def test_bad_entries_are_named_and_left_out(self, tmp_path: Path) -> None:
        dataset = make_dataset(self.config(tmp_path, num_prompts=3), None)
        assert len(dataset.conversations) == 3
        assert "2 usable entries" in dataset.remarks[0]
        assert sorted(line.partition("entry ")[2] for line in dataset.complaints) == [
            "6: it has no list of conversations",
            "7: a turn has no text in value",
        ]

    @pytest.mark.parametrize(
        ("text", "words"),
        [('[{"a": 1},\n{"b"]', "line 2"), ('{"a": 1}', "a list"), ("[]", "no entry"), ('[{"a": 1}]', "entry 1")],
    )
    def test_files_that_are_no_dataset(self, tmp_path: Path, text: str, words: str) -> None:
        config = self.config(tmp_path)
        (tmp_path / "data.json").write_text(text)
        with pytest.raises(ConfigError, match=words):
            make_dataset(config, None)


class TestCustom:
    def dataset(self, folder: Path, *lines: str, **settings: Any) -> Any:
        path = folder / "data.jsonl"
        path.write_text("\n".join(lines))
        config = {"dataset_name": "custom", "dataset_path": str(path), "num_prompts": 3, **settings}
        return make_dataset(BenchConfig(**config), None)

    def test_prompts_of_every_form(self, tmp_path: Path) -> None:
        dataset = self.dataset(
            tmp_path,
            '{"prompt": "what is it", "max_tokens": 5}',
            "",
            '{"prompt": [5, 6, 7], "output_tokens": 6}',
            '{"prompt": "and this"}',
            '{"prompt": "one too many"}',
        )
        turns = [turns[0] for turns in dataset.conversations]
        assert [turn.max_tokens for turn in turns] == [5, 6, 256]
        assert turns[0].content == "what is it"
        assert ids_of(turns[1]) == [5, 6, 7]
        assert not dataset.complaints

    def test_chats_with_tools(self, tmp_path: Path) -> None:
        entry = {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}], "tool_choice": "auto"}
        dataset = self.dataset(tmp_path, json.dumps(entry), backend="openai-chat", num_prompts=1, output_len=4)
        ((turn,),) = dataset.conversations
        assert turn.content == entry["messages"]
        assert turn.fields == {"tools": entry["tools"], "tool_choice": "auto"}
        assert turn.max_tokens == 4

    def test_bad_lines_are_named_by_number_and_left_out(self, tmp_path: Path) -> None:
        bad = [
            '{"prompt": ',
            "[1]",
            '{"text": "x"}',
            '{"prompt": [1, "2"]}',
            '{"prompt": [-1]}',
            '{"prompt": "x", "max_tokens": 0}',
            '{"messages": [{"role": "user", "content": "x"}]}',
            '{"messages": 5}',
        ]
        dataset = self.dataset(tmp_path, '{"prompt": "good"}', *bad, num_prompts=1000)
        assert len(dataset.conversations) == 1000
        said = [line.partition("data.jsonl, ")[2] for line in dataset.complaints]
        assert [line.partition(":")[0] for line in said] == [f"line {number}" for number in range(2, 10)]
        for line, words in zip(
            said,
            ["not JSON", "not an object", "neither", "neither", "neither", "max_tokens", "openai-chat", "list"],
            strict=True,
        ):
            assert words in line

    def test_token_ids_are_nothing_for_a_chat(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="a chat takes no token ids"):
            self.dataset(tmp_path, '{"prompt": [5]}', backend="openai-chat")

    def test_files_that_cannot_be_read(self, tmp_path: Path) -> None:
        config = BenchConfig(dataset_name="custom", dataset_path=str(tmp_path / "none.jsonl"))
        with pytest.raises(ConfigError, match="No such file"):
            make_dataset(config, None)
        (tmp_path / "none.jsonl").write_bytes(b"abc\xff")
        with pytest.raises(ConfigError, match="UTF-8 at byte 3"):
            make_dataset(config, None)
