"""Defines the kinds of dialogues and the share of each."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial

from tools.bundled_model.dialogues.arithmetic import arithmetic
from tools.bundled_model.dialogues.calling import (
    call_and_answer,
    no_tool_fits,
    one_call,
    several_calls,
    too_little_said,
)
from tools.bundled_model.dialogues.conversation import Dialogue
from tools.bundled_model.dialogues.everyday import everyday
from tools.bundled_model.dialogues.knowledge import knowledge
from tools.bundled_model.dialogues.lists import short_lists
from tools.bundled_model.dialogues.long_prompts import long_prompt, very_long_prompt
from tools.bundled_model.dialogues.plain import ExchangeMaker, plain
from tools.bundled_model.dialogues.small_talk import small_talk
from tools.bundled_model.dialogues.stories import story
from tools.bundled_model.dialogues.words import Source

DialogueMaker = Callable[[Source], Dialogue]

_EXCHANGES: tuple[ExchangeMaker, ...] = (small_talk, arithmetic, short_lists, knowledge, story)

# Shares of dialogues, not of tokens. They add up to 100.
SHARES: dict[str, tuple[float, DialogueMaker]] = {
    "call": (29.6, one_call),
    "several calls": (9, several_calls),
    "no tool fits": (9, no_tool_fits),
    "too little said": (2, too_little_said),
    "answer": (11, call_and_answer),
    "everyday": (13, everyday),
    "long prompt": (2.5, long_prompt),
    "very long prompt": (0.9, very_long_prompt),
    "small talk": (7, partial(plain, kind="small talk", first=small_talk, others=_EXCHANGES)),
    "arithmetic": (5.5, partial(plain, kind="arithmetic", first=arithmetic, others=_EXCHANGES)),
    "lists": (4.5, partial(plain, kind="lists", first=short_lists, others=_EXCHANGES)),
    "knowledge": (4, partial(plain, kind="knowledge", first=knowledge, others=_EXCHANGES)),
    "story": (2, partial(plain, kind="story", first=story, others=_EXCHANGES)),
}


def dialogues(source: Source) -> Iterator[Dialogue]:
    """Dialogues without end, each kind in its share."""
    makers = [maker for _, maker in SHARES.values()]
    cumulative = list(itertools.accumulate(share for share, _ in SHARES.values()))
    while True:
        yield source.rng.choices(makers, cum_weights=cumulative)[0](source)
