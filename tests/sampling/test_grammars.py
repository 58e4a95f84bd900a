"""Grammars beside a batch: what tokens spell, which grammars are kept, and how one walks with an answer."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st

from facet.errors import CheckpointError, RequestError
from facet.grammar_spec import GrammarSpec
from facet.request import Request
from facet.sampling import GrammarCompiler, Grammars, as_request_error, token_bytes
from facet.sampling import grammar_compiler as compiler_module
from facet.sampling.dead_rules import find_dead_rule
from facet.sampling.grammar import grammar_mask
from facet.sampling.grammar_walker import GrammarWalker, Stage
from facet.sampling.token_bytes import read_token_bytes
from facet.sampling.vocabulary import Vocabulary
from facet.sampling_params import SamplingParams
from facet.step import Admission, NewBlocks, StepMasks, StepPlan, StepResult
from facet.thoughts import ThoughtTokens
from tests.tokens.gemma_like import CONTROL_TOKENS, build_gemma_like, write_tokenizer_folder

VOCAB_SIZE = 512
EOS, OPENS, CLOSES, TRIGGER, END = 1, 13, 14, 7, 8
THOUGHT = ThoughtTokens(open_id=OPENS, close_id=CLOSES)
CALL = f'start: <[{TRIGGER}]> "ab" <[{END}]>\n'
TOKENIZER = build_gemma_like()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def compiler(folder: Path) -> GrammarCompiler:
    return GrammarCompiler(folder, vocab_size=VOCAB_SIZE, eos_token_ids=[EOS])


def walker_of(compiler: GrammarCompiler, **spec: Any) -> GrammarWalker:
    made = GrammarSpec(**spec)
    return GrammarWalker(made, compiler.start(made).result(), vocab_size=VOCAB_SIZE, stop_token_ids=[EOS])


def letter(text: str) -> int:
    token_id = TOKENIZER.token_to_id(text)
    return TOKENIZER.token_to_id(f"<0x{ord(text):02X}>") if token_id is None else token_id


def allowed(walker: GrammarWalker) -> set[int]:
    mask = walker.mask()
    if mask is None:
        return set(range(VOCAB_SIZE))
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


class TestTokenBytes:
    def test_what_tokens_spell(self, folder: Path) -> None:
        spelled = read_token_bytes(folder, VOCAB_SIZE)
        vocabulary = TOKENIZER.get_vocab()
        assert len(spelled) == VOCAB_SIZE
        assert spelled[vocabulary["▁tab"]] == b" tab"
        assert spelled[vocabulary["<0x0A>"]] == b"\n"
        assert spelled[TOKENIZER.get_vocab_size()] == b""
        for token in CONTROL_TOKENS:
            with pytest.raises(UnicodeDecodeError):
                spelled[vocabulary[token]].decode()

    def test_the_library_says_the_same(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        ids, special = token_bytes._read(path)
        assert (ids, special) == token_bytes._ask_library(path)
        assert special

    def test_a_vocabulary_that_is_written_otherwise(self, tmp_path: Path) -> None:
        scored = tokenizers.models.Unigram([("<unk>", 0.0), ("▁a", -1.0), ("<0x0A>", -2.0)], unk_id=0)
        tokenizer = tokenizers.Tokenizer(scored)
        tokenizer.add_special_tokens(["<eos>"])
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        assert read_token_bytes(tmp_path, 5) == [b"<unk>", b" a", b"\n", b"\xff3", b""]

    def test_ids_beyond_the_model_are_left_out(self, folder: Path) -> None:
        assert len(read_token_bytes(folder, 300)) == 300

    def test_a_folder_without_a_tokenizer(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
            read_token_bytes(tmp_path, VOCAB_SIZE)


class TestCompiler:
    def test_a_grammar_is_compiled_once(self, folder: Path) -> None:
        compiler = GrammarCompiler(folder, vocab_size=VOCAB_SIZE, eos_token_ids=[EOS])
        first = compiler.start(GrammarSpec(kind="choice", sources=("a",)))
        again = compiler.start(GrammarSpec(kind="choice", sources=("a",), field="response_format", thought=THOUGHT))
        assert first is again
        assert compiler.start(GrammarSpec(kind="regex", sources=("a",))) is not first

    def test_the_longest_unused_is_dropped(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiler_module, "MAX_CACHED_GRAMMARS", 2)
        compiler = GrammarCompiler(folder, vocab_size=VOCAB_SIZE, eos_token_ids=[EOS])
        specs = [GrammarSpec(kind="choice", sources=(text,)) for text in "abc"]
        a, b = compiler.start(specs[0]), compiler.start(specs[1])
        assert compiler.start(specs[0]) is a
        compiler.start(specs[2])
        assert compiler.start(specs[0]) is a
        assert compiler.start(specs[1]) is not b

    def test_the_cache_is_bounded_in_bytes(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiler_module, "MAX_CACHED_BYTES", 1)
        compiler = GrammarCompiler(folder, vocab_size=VOCAB_SIZE, eos_token_ids=[EOS])
        spec = GrammarSpec(kind="choice", sources=("a",))
        first = compiler.start(spec)
        first.result()
        compiler.start(GrammarSpec(kind="choice", sources=("b",))).result()
        assert compiler.start(spec) is not first

    def test_why_a_grammar_is_none(self, compiler: GrammarCompiler) -> None:
        spec = GrammarSpec(kind="regex", sources=("(",), field="structured_outputs.regex")
        failed = compiler.start(spec)
        error = failed.exception()
        assert error is not None
        told = as_request_error(error, spec)
        assert told.field == "structured_outputs.regex"
        assert "parenthesis is not closed" in str(told)
        assert ".cc" not in str(told)

    @pytest.mark.parametrize(
        ("kind", "source"),
        [
            ("json_schema", '{"$ref": "#"}'),
            ("json_schema", '{"anyOf": [{"$ref": "#"}]}'),
            ("json_schema", '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}'),
            ("json_schema", '{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}'),
            ("ebnf", "root ::= root"),
            ("ebnf", 'root ::= root "a"'),
            ("ebnf", 'root ::= "a" root'),
            ("ebnf", "root ::= x\nx ::= y\ny ::= x"),
            ("ebnf", 'root ::= "b" | "a" x\nx ::= x'),
            ("ebnf", "root ::= []"),
            ("ebnf", "start: start"),
            ("regex", r"[^\s\S]"),
            ("tool_calls", f"start: <[{TRIGGER}]> rule_0 <[{END}]>\nrule_0: rule_0\n"),
        ],
    )
    def test_what_no_text_satisfies_is_refused(self, compiler: GrammarCompiler, kind: Any, source: str) -> None:
        spec = GrammarSpec(kind=kind, sources=(source,), thought=THOUGHT)
        error = compiler.start(spec).exception(timeout=60)
        assert error is not None
        told = str(as_request_error(error, spec))
        assert "can never be completed" in told or "no token of the model can begin" in told

    @pytest.mark.parametrize(
        ("kind", "source"),
        [
            ("json_schema", '{"type": "object", "properties": {"a": {"$ref": "#"}}}'),
            ("json_schema", '{"type": "array", "items": {"$ref": "#"}}'),
            ("ebnf", 'root ::= "(" root ")" | ""'),
            ("ebnf", 'root ::= x{0,3} "[]::=|" y-1\nx ::= "\\"" | x x\ny-1 ::= [^a\\]] | "a"+'),
            ("ebnf", 'root ::= TagDispatch(("<a>", x))\nx ::= "b"'),
            ("ebnf", 'start: x y\nx[max_chars=6]: /[a-z]*/\ny: "a"{2,3}'),
            ("regex", "a{2,200}(b|c)*"),
        ],
    )
    def test_what_refers_to_itself_and_ends_is_no_mistake(
        self, compiler: GrammarCompiler, kind: Any, source: str
    ) -> None:
        assert compiler.start(GrammarSpec(kind=kind, sources=(source,))).exception(timeout=60) is None

    def test_long_chains_of_rules_are_followed_in_time(self) -> None:
        lines = [f"r{number} ::= ((r{number} r{number + 1}) | (r{number + 1}))" for number in range(20_000)]
        started = time.process_time()
        assert find_dead_rule("\n".join(["root ::= ((r0))", *lines, 'r20000 ::= (("a"))'])) is None
        assert find_dead_rule("\n".join(["root ::= ((r0))", *lines, "r20000 ::= ((root))"])) == "root"
        assert time.process_time() - started < 20  # linear: about a second

    def test_without_a_tokenizer_grammars_are_refused(self, tmp_path: Path) -> None:
        spec = GrammarSpec(kind="choice", sources=("a",))
        with pytest.raises(RequestError, match="without a tokenizer"):
            GrammarCompiler(None, vocab_size=VOCAB_SIZE, eos_token_ids=[EOS]).start(spec)
        failed = GrammarCompiler(tmp_path, vocab_size=VOCAB_SIZE, eos_token_ids=[EOS]).start(spec)
        error = failed.exception()
        assert error is not None
        assert "no tokenizer.json" in str(as_request_error(error, spec))


class TestWalker:
    def test_an_answer_bound_from_its_start(self, compiler: GrammarCompiler) -> None:
        walker = walker_of(compiler, kind="choice", sources=("no", "yes"))
        assert {letter("n"), letter("y")} <= allowed(walker)
        assert not {EOS, OPENS, letter("x")} & allowed(walker)
        for text in "no":
            walker.accept(letter(text))
        assert allowed(walker) == {EOS}
        walker.accept(EOS)
        assert walker.stage is Stage.ENDED
        assert allowed(walker) == {EOS}

    def test_a_thought_may_come_first(self, compiler: GrammarCompiler) -> None:
        walker = walker_of(compiler, kind="choice", sources=("no",), thought=THOUGHT)
        assert OPENS in allowed(walker)
        walker.accept(OPENS)
        assert allowed(walker) == set(range(VOCAB_SIZE)) - {EOS}
        walker.accept(letter("x"))
        walker.accept(CLOSES)
        assert OPENS not in allowed(walker)
        assert letter("n") in allowed(walker)

    def test_a_thought_the_prompt_has_opened(self, compiler: GrammarCompiler) -> None:
        inside = ThoughtTokens(open_id=OPENS, close_id=CLOSES, is_open=True)
        walker = walker_of(compiler, kind="choice", sources=("no",), thought=inside)
        assert walker.stage is Stage.THOUGHT
        walker.accept(CLOSES)
        assert walker.stage is Stage.BOUND

    def test_a_trigger_binds_until_its_end(self, compiler: GrammarCompiler) -> None:
        walker = walker_of(compiler, kind="tool_calls", sources=(CALL,), trigger_token_id=TRIGGER, thought=THOUGHT)
        for token in (letter("x"), OPENS, TRIGGER, CLOSES):  # a trigger inside a thought is none
            assert walker.mask() is None
            walker.accept(token)
        assert walker.stage is Stage.FREE
        for _ in range(2):
            walker.accept(TRIGGER)
            assert letter("a") in allowed(walker)
            assert not {EOS, END, letter("x")} & allowed(walker)
            for token in (letter("a"), letter("b")):
                walker.accept(token)
            assert allowed(walker) == {END}
            walker.accept(END)
            assert walker.stage is Stage.FREE

    def test_once_means_once(self, compiler: GrammarCompiler) -> None:
        walker = walker_of(
            compiler, kind="tool_calls", sources=(CALL,), trigger_token_id=TRIGGER, may_trigger_again=False
        )
        for token in (TRIGGER, letter("a"), letter("b"), END):
            walker.accept(token)
        assert allowed(walker) == set(range(VOCAB_SIZE)) - {TRIGGER}
        walker.accept(letter("x"))
        assert walker.stage is Stage.SPENT

    def test_a_token_out_of_place_ends_in_nothing_allowed(self, compiler: GrammarCompiler) -> None:
        walker = walker_of(compiler, kind="choice", sources=("no",))
        walker.accept(letter("x"))
        assert walker.stage is Stage.FAILED
        assert allowed(walker) == set()
        walker.accept(letter("n"))
        assert allowed(walker) == set()

    @given(data=st.data())
    def test_whatever_is_allowed_is_taken(self, compiler: GrammarCompiler, data: st.DataObject) -> None:
        source = f'start: <[{TRIGGER}]> ("a" | /[0-9]{{1,3}}/ | <[{END}]> "b")* <[{END}]>\n'
        is_triggered = data.draw(st.booleans())
        walker = walker_of(
            compiler,
            kind="tool_calls",
            sources=(source,),
            trigger_token_id=TRIGGER if is_triggered else None,
            thought=data.draw(st.sampled_from([None, THOUGHT])),
        )
        for _ in range(12):
            tokens = sorted(allowed(walker))
            assert tokens, "there is always a way on"
            likely = [token for token in tokens if token in {EOS, OPENS, CLOSES, TRIGGER, END}] or tokens
            walker.accept(data.draw(st.sampled_from(likely) | st.sampled_from(tokens)))
            assert walker.stage is not Stage.FAILED


class TestSeats:
    """Plans as a scheduler makes them, with nothing but what concerns grammars."""

    def plan(self, seats: dict[int, int], **parts: Any) -> StepPlan:
        empty = np.zeros(0, np.int32)
        count = len(seats)
        settings: dict[str, Any] = {
            "step": 1,
            "released_seats": (),
            "admissions": (),
            "freed_blocks": empty,
            "page_copies": empty.reshape(0, 2),
            "new_blocks": NewBlocks(seats=empty, groups=empty, indices=empty, block_ids=empty),
            "seats": np.array(list(seats), np.int32),
            "request_numbers": np.array(list(seats.values()), np.int64),
            "num_computed": np.zeros(count, np.int32),
            "num_scheduled": np.ones(count, np.int32),
            "num_drafts": np.zeros(count, np.int32),
            "samples": np.ones(count, np.bool_),
            "num_logit_rows": np.ones(count, np.int32),
            "draft_token_ids": np.zeros(0, np.int64),
        }
        return StepPlan(**{**settings, **parts})

    def admission(self, seat: int, grammar: GrammarSpec | None, outputs: tuple[int, ...] = ()) -> Admission:
        request = Request(
            request_id=f"r{seat}",
            prompt_token_ids=(2,),
            sampling=SamplingParams(),
            eos_token_ids=(EOS,),
            grammar=grammar,
        )
        return Admission(seat=seat, request=request, output_token_ids=outputs, num_computed_tokens=0, tables=())

    def grammars(self, compiler: GrammarCompiler, *admissions: Admission) -> Grammars:
        grammars = Grammars(VOCAB_SIZE)
        for admission in admissions:
            if admission.request.grammar is not None:
                grammars.add(admission.request, compiler.start(admission.request.grammar).result())
        return grammars

    def test_masks_are_for_the_requests_that_have_grammars(self, compiler: GrammarCompiler) -> None:
        choice = GrammarSpec(kind="choice", sources=("no",))
        free = GrammarSpec(kind="tool_calls", sources=(CALL,), trigger_token_id=TRIGGER)
        admissions = (self.admission(0, None), self.admission(1, choice), self.admission(2, free))
        grammars = self.grammars(compiler, *admissions)
        mask = grammars.masks(self.plan({0: 10, 1: 11, 2: 12}, admissions=admissions))
        assert mask is not None
        assert tuple(mask.places) == (1,)
        grammars.settle(self.plan({0: 10, 1: 11, 2: 12}), StepResult(token_ids=((5,), (letter("n"),), (TRIGGER,))))
        mask = grammars.masks(self.plan({2: 12, 0: 10, 1: 11}))
        assert mask is not None
        assert tuple(mask.places) == (0, 2)
        assert grammars.masks(self.plan({0: 10})) is None

    def test_a_seat_that_has_changed_hands_does_not_see_the_old_token(self, compiler: GrammarCompiler) -> None:
        choice = GrammarSpec(kind="choice", sources=("no",))
        admission = self.admission(1, choice)
        grammars = self.grammars(compiler, admission)
        before = grammars.masks(self.plan({1: 11}, admissions=(admission,)))
        again = self.plan({1: 12}, released_seats=(1,), admissions=(self.admission(1, choice),))
        grammars.masks(again)
        grammars.settle(self.plan({1: 11}), StepResult(token_ids=((letter("n"),),)))
        after = grammars.masks(self.plan({1: 12}))
        assert before is not None
        assert after is not None
        assert before.bitmask.tolist() == after.bitmask.tolist()

    def test_free_text_is_not_waited_for_until_the_trigger_has_come(self, compiler: GrammarCompiler) -> None:
        free = GrammarSpec(kind="tool_calls", sources=(CALL,), trigger_token_id=TRIGGER)
        admission = self.admission(0, free)
        grammars = self.grammars(compiler, admission)
        plan, admitting = self.plan({0: 10}), self.plan({0: 10}, admissions=(admission,))
        assert grammars.masks(admitting) is None
        mask = grammars.masks(plan)  # the first token is on its way, and may be the trigger
        assert mask is not None
        assert list(mask.only_after) == [TRIGGER]
        expected = [None, True, None, None, None, False]
        for token, waits in zip([5, TRIGGER, letter("a"), letter("b"), END, 6], expected, strict=True):
            grammars.settle(plan, StepResult(token_ids=((token,),)))
            assert grammars.take_waits() == ({} if waits is None else {10: waits})
            mask = grammars.masks(plan)
            is_bound = waits is not False and token not in (5, END)
            assert (mask is not None and list(mask.only_after) == [None]) == is_bound

    def test_a_token_sampled_before_its_trigger_was_seen_does_not_end_the_waiting(
        self, compiler: GrammarCompiler
    ) -> None:
        free = GrammarSpec(kind="tool_calls", sources=(CALL,), trigger_token_id=TRIGGER)
        admission = self.admission(0, free)
        grammars = self.grammars(compiler, admission)
        plan = self.plan({0: 10})
        grammars.masks(self.plan({0: 10}, admissions=(admission,)))
        grammars.masks(plan)  # overlapped: launched before the first token is known
        grammars.settle(plan, StepResult(token_ids=((TRIGGER,),)))
        grammars.settle(plan, StepResult(token_ids=((letter("a"),),)))
        assert grammars.take_waits() == {10: True}
        mask = grammars.masks(plan)
        assert mask is not None
        assert list(mask.only_after) == [None]

    def test_a_resumed_request_has_seen_its_tokens(self, compiler: GrammarCompiler) -> None:
        choice = GrammarSpec(kind="choice", sources=("no",))
        admission = self.admission(3, choice, outputs=(letter("n"), letter("o")))
        grammars = self.grammars(compiler, admission)
        mask = grammars.masks(self.plan({3: 11}, admissions=(admission,)))
        assert mask is not None
        assert mask.bitmask[0, 0].item() == 1 << EOS


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_a_mask_may_depend_on_a_token_that_only_the_device_knows(device: str) -> None:
    words = np.zeros((3, 2), np.int32)
    words[:, 0] = [0b10, 0b100, 0b1000]
    masks = StepMasks(bitmask=words, places=(0, 2, 3), only_after=(None, 7, 7))
    last_token_ids = torch.tensor([8, 7], device=device)  # by seat
    on_device = grammar_mask(masks, last_token_ids, torch.tensor([1, 1, 1, 0], device=device))
    logits = torch.zeros(4, 40, device=device)
    on_device.apply(logits, Vocabulary(40))
    finite = [torch.isfinite(row).nonzero().flatten().tolist() for row in logits.cpu()]
    assert finite == [[1], list(range(40)), [2], list(range(40))]


def test_without_grammars_nothing_is_masked() -> None:
    grammars = Grammars(VOCAB_SIZE)
    plan = TestSeats().plan({0: 1})
    assert grammars.masks(plan) is None
    grammars.settle(plan, StepResult(token_ids=((3,),)))


@pytest.mark.parametrize("tokenizer", [None, "{broken", '{"model": {}}'])
def test_a_tokenizer_that_cannot_be_read_is_said_to_who_sends_a_grammar(tmp_path: Path, tokenizer: str | None) -> None:
    if tokenizer is not None:
        (tmp_path / "tokenizer.json").write_text(tokenizer)
    compiler = GrammarCompiler(tmp_path, vocab_size=VOCAB_SIZE, eos_token_ids=(1,))
    compiler.load()  # as an engine does at its start, whether or not grammars will come
    error = compiler.start(GrammarSpec(kind="choice", sources=("a",))).exception(timeout=30)
    assert error is not None
    compiler.close()
