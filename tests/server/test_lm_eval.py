"""lm_eval against the server: what `local-completions` and `local-chat-completions` send, and what they read.

The requests here are those of lm_eval 0.4, field by field, and answers are read as it reads them; where the package is
installed it is run as well. What comes out is compared with what transformers computes for the same model.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from facet.chat import ChatTemplate
from facet.config import ServerConfig
from facet.tokens import Tokenizer
from tests.server.conftest import END
from tests.server.running import RunningServer, running_with_engine
from tests.tiny_models import TinyModel

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CONTEXT = 256
SEED = 1234  # lm_eval's
EOS = {1, END}
TASK: list[dict[str, Any]] = [
    {"question": "The weather in Paris", "choices": ["one two", "three", "four five six"], "answer": 0},
    {"question": "one two three", "choices": ["four", "seven eight"], "answer": 0},
    {"question": "What is two and two?", "choices": ["four", "five", "six", "seven"], "answer": 1},
]
# Sums of a few log-probabilities in float32, computed in another order: 3e-5 apart as measured.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Scored:
    """A context and a continuation as token ids, with transformers' verdict."""

    context: list[int]
    continuation: list[int]
    logprob: float
    is_greedy: bool


class Oracle:
    def __init__(self, model: TinyModel, tokenizer: Tokenizer) -> None:
        self._model = model
        self._tokenizer = tokenizer

    def score(self, context: list[int], continuation: list[int]) -> Scored:
        ids = context + continuation
        logprobs = self._model.oracle_logits(ids).log_softmax(-1)
        rows = range(len(context) - 1, len(ids) - 1)
        return Scored(
            context,
            continuation,
            sum(float(logprobs[row, ids[row + 1]]) for row in rows),
            all(int(logprobs[row].argmax()) == ids[row + 1] for row in rows),
        )

    def score_text(self, context: str, continuation: str) -> Scored:
        """Cut as lm_eval cuts: the continuation is what the whole has after the context's tokens."""
        num_context = len(self._tokenizer.encode(context))
        ids = self._tokenizer.encode(context + continuation)
        return self.score(ids[:num_context], ids[num_context:])

    def answer(self, prompt: list[int], num_tokens: int) -> str:
        """The likeliest tokens up to the end of the answer, as text."""
        ids = self._model.oracle_greedy(prompt, num_tokens)
        end = next((place for place, token_id in enumerate(ids) if token_id in EOS), len(ids))
        return self._tokenizer.decode(ids[:end])


@pytest.fixture(scope="module")
def server(model_folder: Path) -> Iterator[RunningServer]:
    config = ServerConfig(
        model=str(model_folder),
        served_model_name=("tiny",),
        disable_log_stats=True,
        device="cpu",
        max_model_len=CONTEXT,
        kv_cache_memory_bytes=32 << 20,
        max_num_batched_tokens=64,
    )
    with running_with_engine(config) as server:
        yield server


@pytest.fixture(scope="module")
def served_tokenizer(model_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(model_folder)


@pytest.fixture(scope="module")
def oracle(tiny_model: Callable[[str], TinyModel], served_tokenizer: Tokenizer) -> Oracle:
    return Oracle(tiny_model("gemma4_e2b_served"), served_tokenizer)


def ask(server: RunningServer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def loglikelihoods(server: RunningServer, batch: Sequence[Scored]) -> list[tuple[float, bool]]:
    """`LocalCompletionsAPI._create_payload` and `parse_logprobs`."""
    body = {
        "model": "tiny",
        "prompt": [scored.context + scored.continuation for scored in batch],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": SEED,
        "echo": True,
    }
    results = []
    choices = sorted(ask(server, COMPLETIONS, body)["choices"], key=lambda choice: choice["index"])
    for scored, choice in zip(batch, choices, strict=True):
        # The last is the one token that had to be generated.
        places = slice(len(scored.context), -1)
        own = choice["logprobs"]["token_logprobs"][places]
        best = [max(top.values()) for top in choice["logprobs"]["top_logprobs"][places]]
        assert len(own) == len(best) == len(scored.continuation)
        results.append((sum(own), own == best))
    return results


def generations(server: RunningServer, prompts: list[list[int]], until: list[str], max_tokens: int) -> list[str]:
    body = {
        "prompt": prompts,
        "model": "tiny",
        "max_tokens": max_tokens,
        "temperature": 0,
        "stop": [*until, "<eos>"],
        "seed": SEED,
    }
    texts = [""] * len(prompts)
    for choice in ask(server, COMPLETIONS, body)["choices"]:
        texts[choice["index"]] = choice["text"]
    return texts


class TestLoglikelihood:
    @pytest.mark.parametrize("batch_size", [1, 4, 16])
    def test_choices_are_scored_as_transformers_scores_them(
        self, server: RunningServer, oracle: Oracle, batch_size: int
    ) -> None:
        pairs = [oracle.score_text(entry["question"], f" {choice}") for entry in TASK for choice in entry["choices"]]
        # The longest first, as lm_eval sorts them.
        pairs.sort(key=lambda scored: -len(scored.context + scored.continuation))
        for _ in range(2):  # the second time much of it is in the prefix cache
            found: list[tuple[float, bool]] = []
            for start in range(0, len(pairs), batch_size):
                found += loglikelihoods(server, pairs[start : start + batch_size])
            assert [logprob for logprob, _ in found] == pytest.approx([pair.logprob for pair in pairs], abs=TOLERANCE)
            assert [is_greedy for _, is_greedy in found] == [pair.is_greedy for pair in pairs]

    def test_a_continuation_the_model_would_have_chosen_is_greedy(
        self, server: RunningServer, oracle: Oracle, tiny_model: Callable[[str], TinyModel]
    ) -> None:
        model = tiny_model("gemma4_e2b_served")
        context = model.prompt(20)
        likeliest = model.oracle_greedy(context, 6)
        last_differs = [*likeliest[:-1], 300 if likeliest[-1] != 300 else 301]
        pairs = [oracle.score(context, likeliest), oracle.score(context, last_differs)]
        assert [pair.is_greedy for pair in pairs] == [True, False]
        assert [is_greedy for _, is_greedy in loglikelihoods(server, pairs)] == [True, False]

    def test_a_window_as_long_as_the_context(
        self, server: RunningServer, oracle: Oracle, tiny_model: Callable[[str], TinyModel]
    ) -> None:
        """loglikelihood_rolling: one token of context, and all others but the one to be generated are scored."""
        ids = tiny_model("gemma4_e2b_served").prompt(CONTEXT - 1)
        window = oracle.score(ids[:1], ids[1:])
        ((logprob, is_greedy),) = loglikelihoods(server, [window])
        assert logprob == pytest.approx(window.logprob, abs=TOLERANCE * 10)  # a sum of 254
        assert is_greedy == window.is_greedy


class TestGeneration:
    def test_prompts_of_token_ids(self, server: RunningServer, oracle: Oracle, served_tokenizer: Tokenizer) -> None:
        prompts = [served_tokenizer.encode(entry["question"]) for entry in TASK]
        expected = [oracle.answer(prompt, 12) for prompt in prompts]
        assert generations(server, prompts, ["\n\n", "Question:"], 12) == expected
        stop = next(text[3:5] for text in expected if len(text) > 6)
        assert generations(server, prompts, [stop], 12) == [text.split(stop)[0] for text in expected]

    def test_a_chat(
        self, server: RunningServer, oracle: Oracle, model_folder: Path, served_tokenizer: Tokenizer
    ) -> None:
        template = ChatTemplate.from_folder(model_folder, served_tokenizer)
        assert template is not None
        for entry in TASK:
            messages = [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": entry["question"]},
            ]
            prompt = served_tokenizer.encode_prompt(template.render(messages, add_generation_prompt=True))
            body = {
                "messages": messages,
                "model": "tiny",
                "max_tokens": 12,
                "temperature": 0,
                "stop": ["\n\n", "Question:"],
                "seed": SEED,
            }
            (choice,) = ask(server, CHAT, body)["choices"]
            assert choice["index"] == 0
            assert choice["message"]["content"].strip() == oracle.answer(prompt, 12).strip()

    def test_an_image_is_refused_in_words(self, server: RunningServer) -> None:
        """What an MMMU task sends. lm_eval shows the message and gives up after its retries."""
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "auto"}}
        content = [image, {"type": "text", "text": "What is this?"}]
        response = server.post(CHAT, {"model": "tiny", "messages": [{"role": "user", "content": content}]})
        assert response.status_code == 400
        assert "text only, no images" in response.json()["error"]["message"]


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed")
class TestThePackageItself:
    """`lm_eval` as a user starts it, over a task from two files."""

    @pytest.fixture
    def tasks(self, tmp_path: Path) -> Path:
        folder = tmp_path / "tasks"
        folder.mkdir()
        (folder / "data.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in TASK))
        common = {
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(folder / "data.jsonl")}},
            "test_split": "test",
            "doc_to_text": "{{question}}",
        }
        mean = {"aggregation": "mean", "higher_is_better": True}
        tasks: list[dict[str, Any]] = [
            {
                "task": "tiny_choices",
                "output_type": "multiple_choice",
                "doc_to_choice": "choices",
                "doc_to_target": "answer",
                "metric_list": [{"metric": "acc", **mean}],
            },
            {
                "task": "tiny_answers",
                "output_type": "generate_until",
                "doc_to_target": "{{choices[answer]}}",
                "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 12, "do_sample": False},
                "metric_list": [{"metric": "exact_match", **mean}],
            },
        ]
        for task in tasks:
            (folder / f"{task['task']}.yaml").write_text(json.dumps({**common, **task}))  # JSON is YAML
        return folder

    @staticmethod
    def samples(tasks: Path, out: Path, model: str, url: str, task: str, *more: str) -> list[dict[str, Any]]:
        arguments = ["--model", model, "--model_args", f"model=tiny,base_url={url}{''.join(more)}"]
        chat = ["--apply_chat_template"] if "chat" in model else []
        subprocess.run(
            [sys.executable, "-m", "lm_eval", *arguments, *chat, "--include_path", str(tasks), "--tasks", task,
             "--log_samples", "--output_path", str(out)],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(out / "hf")},
            check=True,
            capture_output=True,
            timeout=300,
        )  # fmt: skip
        (path,) = out.rglob(f"samples_{task}_*.jsonl")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return sorted(lines, key=lambda line: int(line["doc_id"]))

    def test_local_completions(
        self, server: RunningServer, oracle: Oracle, model_folder: Path, tasks: Path, tmp_path: Path
    ) -> None:
        more = f",tokenizer={model_folder},add_bos_token=True,num_concurrent=4,max_length={CONTEXT}"
        url = f"{server.url}{COMPLETIONS}"
        samples = self.samples(tasks, tmp_path, "local-completions", url, "tiny_choices", more)
        for sample, entry in zip(samples, TASK, strict=True):
            pairs = [oracle.score_text(entry["question"], f" {choice}") for choice in entry["choices"]]
            found = [float(logprob) for logprob, _ in sample["filtered_resps"]]
            assert found == pytest.approx([pair.logprob for pair in pairs], abs=TOLERANCE)
            best = max(range(len(pairs)), key=lambda index: pairs[index].logprob)
            assert sample["acc"] == float(best == entry["answer"])

    def test_local_chat_completions(self, server: RunningServer, tasks: Path, tmp_path: Path) -> None:
        samples = self.samples(tasks, tmp_path, "local-chat-completions", f"{server.url}{CHAT}", "tiny_answers")
        for sample, entry in zip(samples, TASK, strict=True):
            messages = [{"role": "user", "content": entry["question"]}]
            body = {"model": "tiny", "messages": messages, "max_tokens": 12, "temperature": 0, "stop": ["\n\n"]}
            ((text,),) = sample["resps"]
            assert text
            assert text == ask(server, CHAT, body)["choices"][0]["message"]["content"]
