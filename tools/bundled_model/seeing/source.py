"""Provides examples about pictures among dialogues, in a form that can be sent to worker processes."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import tokenizers

from facet.media.pictures import prepare_patches
from facet.media.spec import PatchPictures
from tools.bundled_model.dialogues.calling import THINKING_SHARE
from tools.bundled_model.dialogues.conversation import Dialogue, ReplyTurn, UserTurn
from tools.bundled_model.dialogues.system_prompts import make_system_prompt
from tools.bundled_model.dialogues.words import Lexicon, Source
from tools.bundled_model.generate import TrainingExample, encode_dialogue, training_examples
from tools.bundled_model.seeing.questions import ask_about
from tools.bundled_model.seeing.scenes import draw_scene
from tools.bundled_model.seeing.shape import BUDGET, PATCH_SIZE, picture_spec
from tools.bundled_model.seeing.vocabulary import BEGIN, END, SOFT
from tools.bundled_model.stream import PictureRoom, PlacedPicture

# Tokens of an example, fewer than on average (186 and 385): nearly every batch has room for all of its pictures.
_SHORT_PICTURE, _SHORT_DIALOGUE = 165, 340


@dataclass(frozen=True, slots=True)
class SeeingSource:
    """Examples from a seed, of which `share` are about pictures."""

    tokenizer_file: str
    share: float

    def __call__(self, seed: int) -> Iterator[TrainingExample]:
        tokenizer = tokenizers.Tokenizer.from_file(self.tokenizer_file)
        spec = picture_spec(tokenizer)
        others = training_examples(tokenizer, seed)
        source = Source(random.Random(seed), Lexicon.of(held_out=False), is_inventive=True)
        while True:
            yield picture_example(tokenizer, spec, source) if source.chance(self.share) else next(others)


def picture_room(num_rows: int, row_length: int, share: float) -> PictureRoom:
    """Enough for a batch of which `share` of the examples are about pictures."""
    length = share * _SHORT_PICTURE + (1 - share) * _SHORT_DIALOGUE
    return PictureRoom(
        num_pictures=math.ceil(share * num_rows * row_length / length),
        num_patches=BUDGET,
        patch_width=3 * PATCH_SIZE**2,
    )


def picture_example(tokenizer: tokenizers.Tokenizer, spec: PatchPictures, source: Source) -> TrainingExample:
    """A picture and a question or two about it. It is prepared as Facet will prepare it."""
    scene = draw_scene(source)
    prepared = prepare_patches(scene.image, spec, spec.budget, key="")
    turns: list[UserTurn | ReplyTurn] = []
    for _ in range(source.pick((1, 1, 2))):
        exchange = ask_about(scene, source)
        before = "" if turns else BEGIN + SOFT * prepared.num_tokens + END
        turns += [UserTurn(before + exchange.question), ReplyTurn(exchange.answer, exchange.thought)]
    dialogue = Dialogue(
        scene.kind, tuple(turns), system=make_system_prompt(source), thinks=source.chance(THINKING_SHARE)
    )
    example = encode_dialogue(tokenizer, dialogue)
    picture = PlacedPicture(
        example.token_ids.index(spec.tokens.soft),
        prepared.arrays["patches"].numpy(),
        prepared.arrays["positions"].numpy(),
    )
    return TrainingExample(example.token_ids, example.is_target, (picture,))
