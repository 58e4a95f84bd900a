"""Evaluates a checkpoint through Facet itself: greedy, unconstrained, on unseen tools.

python -m tools.bundled_model.evaluate FOLDER [--num 500] [--device cpu|cuda] [--json FILE] [--show 5]
    [--quantization fp8|int8|int4]
"""

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from facet.chat.formats import find_thought
from facet.chat.messages import normalize_messages
from facet.chat.template import ChatTemplate
from facet.chat.tool_choice import normalize_tools, template_variables
from facet.offline import LLM
from facet.sampling_params import SamplingParams
from facet.tokens import Tokenizer
from tools.bundled_model import scoring
from tools.bundled_model.evaluation_cases import Case, Group, long_prompts, make_cases
from tools.bundled_model.scoring import Reply

# No training seed is as high: training counts workers from small numbers.
_SEED = 10**9
_MAX_REPLY_TOKENS = 400
_AT_ONCE = (1, 5, 64)
_TEMPERATURES = (0.0, 0.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    name: str
    num_right: int
    num: int
    wanted: float | None = None  # the share that was promised; None: for information

    @property
    def share(self) -> float:
        return self.num_right / self.num if self.num else 0.0

    @property
    def line(self) -> str:
        wanted = "" if self.wanted is None else f">= {self.wanted:.0%}"
        verdict = "" if self.wanted is None else "ok" if self.share >= self.wanted else "MISSED"
        return f"{self.name:52}{self.share:>8.1%}{f'{self.num_right}/{self.num}':>12}{wanted:>9}  {verdict}".rstrip()


@dataclass(frozen=True, slots=True)
class Answered:
    case: Case
    reply: Reply


class Examiner:
    """A loaded checkpoint that replies to cases."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._llm = LLM(str(folder), show_progress=False, **settings)
        self._tokenizer = Tokenizer.from_folder(folder)
        template = ChatTemplate.from_folder(folder, self._tokenizer)
        assert template is not None, f"{folder} has no chat template"
        self._template = template

    def reply(self, cases: Sequence[Case], *, temperature: float = 0.0) -> list[Answered]:
        """All at once."""
        prompts = [self._prompt(case) for case in cases]
        sampling = SamplingParams(temperature=temperature, max_tokens=_MAX_REPLY_TOKENS, seed=1, detokenize=False)
        outputs = self._llm.generate(prompts, sampling, use_tqdm=False)
        return [
            Answered(
                case,
                scoring.read_reply(
                    self._tokenizer,
                    output.outputs[0].token_ids,
                    is_complete=output.outputs[0].finish_reason == "stop",
                    has_tools=bool(case.dialogue.tools),
                    starts_in_thought=(thought := find_thought(self._tokenizer, prompt)) is not None
                    and thought.is_open,
                ),
            )
            for case, prompt, output in zip(cases, prompts, outputs, strict=True)
        ]

    def close(self) -> None:
        self._llm.close()

    def _prompt(self, case: Case) -> list[int]:
        prompt = self._template.render(
            normalize_messages(case.messages),
            tools=normalize_tools(case.tools).for_template,
            variables=template_variables(chat_template_kwargs={"enable_thinking": case.dialogue.thinks}),
        )
        return self._tokenizer.encode_prompt(prompt)


def is_right(answered: Answered) -> bool:
    """Whether a reply does what its case asks for."""
    case, reply = answered.case, answered.reply
    if case.calls:
        return scoring.calls_are_right(reply, case.calls)
    return scoring.tells(reply, case.facts)


def measures(answered: Sequence[Answered]) -> list[Measure]:
    """What the model card tells, from the replies to `make_cases`."""

    def of(*groups: Group, thinks: bool | None = None) -> list[Answered]:
        return [one for one in answered if one.case.group in groups and thinks in (None, one.case.dialogue.thinks)]

    calls = [one for one in answered if scoring.attempts_call(one.reply)]
    thinking = [one for one in answered if one.case.dialogue.thinks]
    return [
        _share("right call, unseen tools", of("one call"), is_right, 0.90),
        _share("  thinking off", of("one call", thinks=False), is_right),
        _share("  thinking on", of("one call", thinks=True), is_right),
        _share("  right tool, whatever the arguments", of("one call"), _names_the_tool),
        _share("several calls, unseen tools", of("several calls"), is_right),
        _share("valid call syntax", calls, lambda one: scoring.syntax_is_valid(one.reply), 0.98),
        _share("thinking format", thinking, lambda one: scoring.thought_is_well_formed(one.reply), 0.99),
        _share("no tool fits", of("no tool fits"), is_right, 0.85),
        _share("answer tells the result", of("answer from a result"), is_right),
        _share("everyday tools", of("everyday tools"), is_right),
        _share("small sums", of("arithmetic"), is_right),
    ]


def long_prompt_measures(examiner: Examiner, num: int) -> list[Measure]:
    """The same prompts one at a time and in batches: the call must be right, and the same in both."""
    results = []
    cases = long_prompts(num, _SEED)
    for temperature in _TEMPERATURES:
        how = "greedy" if temperature == 0 else f"temperature {temperature}"
        alone: list[str] = []
        for num_at_once in _AT_ONCE:
            wanted = cases if num_at_once == 1 else [cases[i % len(cases)] for i in range(num_at_once)]
            chunks = [[case] for case in wanted] if num_at_once == 1 else [wanted]
            answered = [one for chunk in chunks for one in examiner.reply(chunk, temperature=temperature)]
            alone = alone or [one.reply.text for one in answered]
            num_right = sum(is_right(one) and one.reply.text == alone[i % len(alone)] for i, one in enumerate(answered))
            name = f"regex_scan, 10,000 characters, {how}, {num_at_once} at once"
            results.append(Measure(name=name, num_right=num_right, num=len(answered), wanted=1.0))
    return results


def mistakes(answered: Iterable[Answered]) -> list[str]:
    """What was asked, expected and given, for each reply that is not right."""
    return [
        f"[{one.case.group}{', thinking' if one.case.dialogue.thinks else ''}] {one.case.messages[-1]['content']!r}\n"
        f"    tools    {', '.join(tool.name for tool in one.case.dialogue.tools)}\n"
        f"    expected {[(call.tool_name, call.arguments_as_json()) for call in one.case.calls] or one.case.facts}\n"
        f"    got      {one.reply.text!r}"
        for one in answered
        if not is_right(one)
    ]


def _names_the_tool(one: Answered) -> bool:
    return [name for name, _ in one.reply.calls] == [call.tool_name for call in one.case.calls]


def _share(
    name: str, answered: Sequence[Answered], test: Callable[[Answered], bool], wanted: float | None = None
) -> Measure:
    return Measure(name=name, num_right=sum(map(test, answered)), num=len(answered), wanted=wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description="Examine the bundled model on tools it has never seen.")
    parser.add_argument("folder", type=Path, help="the checkpoint")
    parser.add_argument("--num", type=int, default=500, help="cases of each kind")
    parser.add_argument("--long-prompts", type=int, default=8, help="different long prompts; 0: none")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--quantization", help="as for facet serve: fp8, int8 or int4")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print the first N mistakes of each kind")
    arguments = parser.parse_args()

    examiner = Examiner(arguments.folder, device=arguments.device, quantization=arguments.quantization)
    answered = examiner.reply(make_cases(arguments.num, _SEED))
    results = measures(answered)
    if arguments.long_prompts:
        results += long_prompt_measures(examiner, arguments.long_prompts)
    examiner.close()
    for measure in results:
        print(measure.line)
    for group in dict.fromkeys(one.case.group for one in answered):
        for text in mistakes(one for one in answered if one.case.group == group)[: arguments.show]:
            print(text)
    if arguments.json:
        figures = [{"name": m.name.strip(), "right": m.num_right, "num": m.num, "wanted": m.wanted} for m in results]
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
