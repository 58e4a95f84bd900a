"""Trains an adapter for the bundled model, on a CPU: it answers what it would have answered, in capital letters.

    python -m tools.bundled_model.adapter --minutes 30 --output examples/loud

The model answers questions of its dialogues first. What it said, in capitals, is what low-rank matrices beside its own
then learn; the model itself does not change. They are written as PEFT writes them, and measured through Facet.
"""

import argparse
import itertools
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from facet.offline import LLM, LoRARequest
from facet.sampling_params import SamplingParams
from tools.bundled_model.attention import dense_attend
from tools.bundled_model.checkpoint import CHECKPOINT_PREFIX, DECODER_OF_SEVERAL
from tools.bundled_model.dialogues.conversation import Dialogue, ReplyTurn, UserTurn
from tools.bundled_model.dialogues.mix import dialogues
from tools.bundled_model.dialogues.rendering import render
from tools.bundled_model.dialogues.words import Lexicon, Source
from tools.bundled_model.drafting.train import load_target
from tools.bundled_model.generate import TrainingExample, training_dialogues
from tools.bundled_model.model import Decoder
from tools.bundled_model.modules import Matrix
from tools.bundled_model.shape import BUNDLED_FOLDER

RANK, ALPHA = 4, 8.0
# Neither keys, since queries can change the same, nor the first layer: so the file stays below 300 kB.
FIRST_LAYER = 1
ENDINGS = ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
NAME = "loud"
_HELD_OUT_SEED = 10**9 + 2  # no training seed is as high
_TOKENS_PER_STEP = 1024  # padding included
_SORTED = 128  # examples, so that those of a step are about as long
_LONGEST = 384  # tokens of a dialogue
_TOOLS_SHARE = 0.06  # of dialogues: calls must stay what they are
_STORIES_SHARE = 0.25  # of the stories that there are: they are much longer than other answers
_PLAIN = ("small talk", "arithmetic", "lists", "knowledge", "story")  # kinds of dialogues without tools
_END_OF_REPLY = "<turn|>"


class LowRank(nn.Module):
    """A product and the low-rank matrices beside it. At first these add nothing."""

    def __init__(self, base: Matrix, rank: int, scale: float, generator: torch.Generator) -> None:
        super().__init__()
        num_outputs, num_inputs = base.weight.shape
        self.base = base
        self.scale = scale
        self.lora_A = nn.Parameter(torch.empty(rank, num_inputs))
        self.lora_B = nn.Parameter(torch.zeros(num_outputs, rank))
        nn.init.uniform_(self.lora_A, -(num_inputs**-0.5), num_inputs**-0.5, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + linear(linear(x, self.lora_A), self.lora_B) * self.scale
        return out


def add_low_rank(model: Decoder, seed: int, *, rank: int = RANK, alpha: float = ALPHA) -> dict[str, LowRank]:
    """Puts matrices beside those of the layers; by their names."""
    generator = torch.Generator().manual_seed(seed)
    added = {}
    for name, module in list(model.named_modules()):
        parent, _, ending = name.rpartition(".")
        if isinstance(module, Matrix) and ending in ENDINGS and int(name.split(".")[1]) >= FIRST_LAYER:
            added[name] = LowRank(module, rank, alpha / rank, generator)
            setattr(model.get_submodule(parent), ending, added[name])
    return added


def own_answers(llm: LLM, questions: Sequence[str], adapter: str | None = None) -> list[str]:
    """What the model says, the likeliest token each time."""
    outputs = llm.chat(
        [[{"role": "user", "content": question}] for question in questions],
        SamplingParams(temperature=0, max_tokens=320),
        use_tqdm=False,
        lora_request=None if adapter is None else LoRARequest(adapter),
    )
    return [output.outputs[0].text for output in outputs]


def questions_of(made: Iterator[Dialogue], num: int, rng: random.Random) -> list[str]:
    """Different questions that need no tool."""
    found: dict[str, None] = {}
    for dialogue in made:
        if dialogue.kind not in _PLAIN or dialogue.tools:
            continue
        if dialogue.kind == "story" and rng.random() > _STORIES_SHARE:
            continue
        found |= {turn.text: None for turn in dialogue.turns if isinstance(turn, UserTurn)}
        if len(found) >= num:
            return list(found)[:num]
    raise AssertionError("there are dialogues without end")


def loud_dialogues(answers: Mapping[str, str], seed: int) -> Iterator[Dialogue]:
    """One question or two that the model has answered; and, now and then, tools."""
    rng = random.Random(seed)
    questions = list(answers)
    with_tools = (made for made in training_dialogues(seed) if made.tools and not made.thinks)
    while True:
        if rng.random() < _TOOLS_SHARE:
            made = next(with_tools)
            turns = tuple(
                replace(turn, text=turn.text.upper()) if isinstance(turn, ReplyTurn) else turn for turn in made.turns
            )
            yield replace(made, turns=turns)
        else:
            asked = rng.sample(questions, rng.choice((1, 1, 1, 1, 2)))
            pairs = ((UserTurn(question), ReplyTurn(answers[question].upper())) for question in asked)
            yield Dialogue(NAME, tuple(itertools.chain.from_iterable(pairs)))


def encode(tokenizer: tokenizers.Tokenizer, dialogue: Dialogue) -> TrainingExample:
    """The last reply is to be learned, letter by letter: words in capitals have no tokens, and where the tokenizer
    joins two letters by chance, spelling is harder to learn. Replies before it are as a client sends them."""
    pieces = render(dialogue)
    token_ids: list[int] = []
    is_target: list[bool] = []
    for piece in pieces:
        is_learned = piece.is_target and (bool(dialogue.tools) or piece is pieces[-1])
        text, end, _ = piece.text.rpartition(_END_OF_REPLY) if is_learned else ("", "", "")
        parts = [*text, end] if end else [piece.text]
        ids = [token for part in parts for token in tokenizer.encode(part, add_special_tokens=False).ids]
        token_ids += ids
        is_target += [is_learned] * len(ids)
    return TrainingExample(tuple(token_ids), tuple(is_target))


@dataclass(frozen=True, slots=True)
class Padded:
    """Documents [B, T], padded behind their ends, where no token sees it."""

    token_ids: Tensor
    is_target: Tensor  # of the token at the place

    @classmethod
    def of(cls, examples: Sequence[TrainingExample]) -> "Padded":
        longest = max(len(example.token_ids) for example in examples)
        token_ids = torch.zeros(len(examples), longest, dtype=torch.int64)
        is_target = torch.zeros(len(examples), longest, dtype=torch.bool)
        for row, example in enumerate(examples):
            token_ids[row, : len(example.token_ids)] = torch.tensor(example.token_ids)
            is_target[row, : len(example.token_ids)] = torch.tensor(example.is_target)
        return cls(token_ids, is_target)


def batches(examples: Iterator[TrainingExample], rng: random.Random) -> Iterator[Padded]:
    """About `_TOKENS_PER_STEP` tokens each, of documents that are about as long."""
    fitting = (example for example in examples if len(example.token_ids) <= _LONGEST)
    while True:
        chunk = sorted(itertools.islice(fitting, _SORTED), key=lambda example: len(example.token_ids), reverse=True)
        groups = []
        while chunk:
            num = max(1, _TOKENS_PER_STEP // len(chunk[0].token_ids))
            groups.append(chunk[:num])
            chunk = chunk[num:]
        rng.shuffle(groups)
        yield from map(Padded.of, groups)


def loss_of(model: Decoder, batch: Padded) -> tuple[Tensor, Tensor]:
    """The mean loss of the tokens to be learned, and the share that is the likeliest."""
    ids = batch.token_ids
    places = torch.arange(ids.shape[1]).expand_as(ids)
    state, _ = model.states(ids, places, dense_attend(torch.zeros_like(ids)))
    is_next = batch.is_target[:, 1:]
    logits, labels = model.logits(state[:, :-1][is_next]), ids[:, 1:][is_next]
    return cross_entropy(logits, labels), (logits.argmax(dim=-1) == labels).float().mean()


def train(
    model: Decoder, added: Mapping[str, LowRank], made: Iterator[Padded], *, minutes: float, rate: float, output: Path
) -> int:
    """Returns the number of steps. Exports on the way, so that a run that is broken off leaves what it has."""
    torch.set_flush_denormal(True)  # twice as fast
    parameters = [half for pair in added.values() for half in (pair.lora_A, pair.lora_B)]
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    began = said = time.monotonic()
    figures: list[tuple[float, float]] = []
    for step in itertools.count():
        progress = (time.monotonic() - began) / (60 * minutes)
        if progress >= 1:
            return step
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 30, (1 - progress) / 0.6)
        loss, right = loss_of(model, next(made))
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        figures.append((float(loss.detach()), float(right)))
        if time.monotonic() - said > 30:
            said = time.monotonic()
            mean_loss, mean_right = (sum(column) / len(figures) for column in zip(*figures, strict=True))
            print(f"{progress:6.1%}  step {step + 1}  loss {mean_loss:.4f}  right {mean_right:.2%}", flush=True)
            figures = []
            export_adapter(added, output)
    raise AssertionError("unreachable: steps go on until the time is over")


def export_adapter(added: Mapping[str, LowRank], folder: Path, *, rank: int = RANK, alpha: float = ALPHA) -> None:
    """Writes it as PEFT does."""
    folder.mkdir(parents=True, exist_ok=True)
    prefix = f"base_model.model.{CHECKPOINT_PREFIX}{DECODER_OF_SEVERAL}"
    tensors = {
        f"{prefix}{name}.{half}.weight": getattr(pair, half).detach().bfloat16().contiguous()
        for name, pair in added.items()
        for half in ("lora_A", "lora_B")
    }
    save_file({name: tensors[name] for name in sorted(tensors)}, folder / "adapter_model.safetensors", {"format": "pt"})
    (folder / "adapter_model.safetensors").chmod(0o644)
    config = dict(
        peft_type="LORA",
        task_type="CAUSAL_LM",
        base_model_name_or_path="facet",
        target_modules=rf".*language_model\.layers\.[{FIRST_LAYER}-9]\..*\.({'|'.join(ENDINGS)})",
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        bias="none",
        fan_in_fan_out=False,
        inference_mode=True,
        init_lora_weights=True,
        modules_to_save=None,
        rank_pattern={},
        alpha_pattern={},
        use_dora=False,
        use_rslora=False,
    )
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    num_questions: int
    capitals: float  # share of all letters
    capitals_without: float  # of the model alone
    same: int  # answers that are the model's own, in capitals
    words: float  # share of words that are the model's own, in their places

    def line(self) -> str:
        return (
            f"{self.num_questions} held-out questions: {self.capitals:.1%} of the letters are capitals (without the "
            f"adapter {self.capitals_without:.1%}); {self.same} answers are the model's own in capitals, and "
            f"{self.words:.1%} of all words"
        )


def measure(folder: Path, seen: Mapping[str, str], num: int, *, shown: int = 0) -> Measured:
    """With questions that it has not seen, from words that no training dialogue has."""
    rng = random.Random(_HELD_OUT_SEED)
    made = dialogues(Source(rng, Lexicon.of(held_out=True), is_inventive=True))
    questions = [one for one in questions_of(made, 3 * num, rng) if one not in seen][:num]
    with LLM(str(BUNDLED_FOLDER), show_progress=False, lora_modules=(f"{NAME}={folder}",)) as llm:
        plain, loud = own_answers(llm, questions), own_answers(llm, questions, NAME)
    wrong = [triple for triple in zip(questions, plain, loud, strict=True) if triple[1].upper() != triple[2]]
    for question, before, after in wrong[:shown]:
        print(f"{question!r}: {before!r} became {after!r}")
    pairs = [(before.upper().split(), after.split()) for before, after in zip(plain, loud, strict=True)]
    return Measured(
        num_questions=len(questions),
        capitals=_capitals(loud),
        capitals_without=_capitals(plain),
        same=len(questions) - len(wrong),
        words=sum(sum(map(str.__eq__, *pair)) for pair in pairs) / sum(max(map(len, pair)) for pair in pairs),
    )


def _capitals(texts: Sequence[str]) -> float:
    letters = [letter for letter in "".join(texts) if letter.isalpha()]
    return sum(map(str.isupper, letters)) / max(1, len(letters))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train an adapter that makes the bundled model answer in capitals.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30, help="of training (30)")
    parser.add_argument("--questions", type=int, default=4000, help="that the model answers first (4000)")
    parser.add_argument("--rate", type=float, default=6e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="so many answers with other words")
    arguments = parser.parse_args()
    questions = questions_of(training_dialogues(arguments.seed), arguments.questions, random.Random(arguments.seed))
    with LLM(str(BUNDLED_FOLDER), show_progress=False) as llm:
        answers = dict(zip(questions, own_answers(llm, questions), strict=True))
    print(f"the model answered {len(answers)} questions", flush=True)
    tokenizer = tokenizers.Tokenizer.from_file(str(BUNDLED_FOLDER / "tokenizer.json"))
    model = load_target(BUNDLED_FOLDER)
    added = add_low_rank(model, arguments.seed)
    examples = (encode(tokenizer, dialogue) for dialogue in loud_dialogues(answers, arguments.seed))
    made = batches(examples, random.Random(arguments.seed))
    num_steps = train(model, added, made, minutes=arguments.minutes, rate=arguments.rate, output=arguments.output)
    export_adapter(added, arguments.output)
    print(f"{num_steps} steps; {measure(arguments.output, answers, 50, shown=arguments.show).line()}")


if __name__ == "__main__":
    main()
