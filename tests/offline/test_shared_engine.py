"""Calls of several threads, calls that are interrupted, and what is left when an `LLM` is closed."""

import gc
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from facet import LLM, RequestError, UserError
from facet.offline.collector import Collector
from tests.offline.conftest import GREEDY, make_llm

TEXTS = ["one two", "three four five", "six", "seven eight"]


@pytest.fixture(params=["llm", "remote"])
def either(request: pytest.FixtureRequest) -> LLM:
    """In this process, and in one of its own."""
    llm: LLM = request.getfixturevalue(request.param)
    return llm


def tokens_of(llm: LLM, text: str) -> list[int]:
    return llm.generate(text, GREEDY)[0].outputs[0].token_ids


def in_threads(calls: list[Callable[[], Any]]) -> list[Any]:
    """What they return, called all at once. A call that never returns fails the test and is left alone."""
    results: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        results[index] = calls[index]()

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a call waits for ever"
    return results


def test_threads_share_one(either: LLM) -> None:
    expected = [tokens_of(either, text) for text in TEXTS] * 3
    calls = [lambda text=text: tokens_of(either, text) for text in TEXTS * 3]  # type: ignore[misc]
    *answers, stats = in_threads([*calls, either.stats])
    assert answers == expected
    assert stats.num_blocks > 0


def test_cached_prefixes_are_forgotten(either: LLM) -> None:
    def num_cached() -> int:
        return either.generate([[*range(60, 99)]], GREEDY)[0].num_cached_tokens

    num_cached()
    assert num_cached() == 38
    assert either.reset_prefix_cache()
    assert num_cached() == 0


def test_the_error_of_one_thread_is_its_own(either: LLM) -> None:
    def refused() -> str:
        with pytest.raises(RequestError) as caught:
            either.generate([[5] * 600], GREEDY)
        return str(caught.value)

    expected = tokens_of(either, "six")
    words, answer, *_ = in_threads([refused, lambda: tokens_of(either, "six"), refused, refused])
    assert "maximum context length is 512" in words
    assert answer == expected


def test_refusals_that_come_late_are_not_another_calls(either: LLM) -> None:
    for _ in range(3):
        with pytest.raises(RequestError, match="maximum context length is 512"):
            either.generate([[5] * 600] * 20, GREEDY)
        assert len(tokens_of(either, "one two")) == 8


def test_a_call_that_is_interrupted_is_over(either: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Collector, new: object) -> bool:
        raise KeyboardInterrupt

    expected = tokens_of(either, "one two")
    with monkeypatch.context() as patch:
        patch.setattr(Collector, "feed", interrupt)
        with pytest.raises(KeyboardInterrupt):
            either.generate(TEXTS, GREEDY)
    assert tokens_of(either, "one two") == expected
    assert either.stats().num_running == either.stats().num_waiting == 0


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises, also where tests run in the background of a shell, which has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_step_is_done_first(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    runner: Any = llm._engine.require_open().engine.runner  # type: ignore[attr-defined]
    launch, expected = runner.launch, [tokens_of(llm, text) for text in TEXTS]
    for num_before in range(4):
        launches = iter(range(100))

        def interrupted(plan: Any, num_before: int = num_before, launches: Any = launches) -> Any:
            if next(launches) == num_before:
                signal.raise_signal(signal.SIGINT)
            return launch(plan)

        with monkeypatch.context() as patch:
            patch.setattr(runner, "launch", interrupted)
            with pytest.raises(KeyboardInterrupt):
                llm.generate(TEXTS, GREEDY)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert [tokens_of(llm, text) for text in TEXTS] == expected


def test_a_call_in_a_call_is_refused(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a handler of signals may make one: it could wait for ever."""
    with monkeypatch.context() as patch:
        patch.setattr(Collector, "feed", lambda self, new: llm.generate("six", GREEDY))
        with pytest.raises(UserError, match="in the middle of a call of the same thread"):
            llm.generate("one two", GREEDY)
    assert len(tokens_of(llm, "one two")) == 8


@pytest.mark.parametrize("separate_process", [False, True])
def test_what_is_closed_answers_no_more(folder: Path, separate_process: bool) -> None:
    with make_llm(folder, separate_process=separate_process) as llm:
        assert len(tokens_of(llm, "one two")) == 8
        engine = weakref.ref(llm._engine.require_open())
    conversation = [{"role": "user", "content": "one"}]
    calls: list[Callable[[], Any]] = [
        lambda: llm.generate("one two", GREEDY),
        lambda: llm.chat(conversation, GREEDY),
        lambda: llm.generate([]),
        llm.stats,
        llm.sleep,
        llm.wake_up,
    ]
    for call in calls:
        with pytest.raises(UserError, match=r"This LLM is closed\. Make another one\."):
            call()
    llm.close()
    assert engine() is None


def test_closing_gives_back_the_memory_of_weights(folder: Path) -> None:
    llm = make_llm(folder)
    client: Any = llm._engine.require_open()
    model = weakref.ref(client.engine.runner.model)
    gc.disable()
    try:
        llm.close()
        assert model() is None
    finally:
        gc.enable()


def test_a_with_closes_after_an_error(folder: Path) -> None:
    with pytest.raises(RequestError, match="maximum context length is 512"), make_llm(folder) as llm:
        llm.generate([[5] * 600], GREEDY)
    with pytest.raises(UserError, match="closed"):
        llm.stats()


def test_closing_waits_for_the_call_of_another_thread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm, has_begun = make_llm(folder), threading.Event()
    feed = Collector.feed

    def slow(self: Collector, new: Any) -> bool:
        has_begun.set()
        return feed(self, new)

    monkeypatch.setattr(Collector, "feed", slow)

    def close() -> None:
        has_begun.wait(60)
        llm.close()

    answer, _ = in_threads([lambda: tokens_of(llm, "one two"), close])
    assert len(answer) == 8
