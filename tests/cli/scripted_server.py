"""A server on a real port whose model says what it is told to, for the commands that talk to one."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette

from facet.chat import ChatTemplate
from facet.config import ServerConfig
from facet.engine.messages import EngineInfo
from facet.prompts import AskedModel
from facet.request import Request
from facet.server.app import make_app
from facet.server.served_model import ServedModel
from facet.tokens import Tokenizer
from tests.server.conftest import END, TEMPLATE
from tests.server.running import running
from tests.server.scripted_engine import ScriptedEngine
from tests.tokens.gemma_like import build_gemma_like

MODEL = "scripted"


@dataclass
class Scripted:
    url: str
    engine: ScriptedEngine
    tokenizer: Tokenizer

    @property
    def prompts(self) -> list[str]:
        """What the model was given, one text for each request."""
        return [
            self.tokenizer.decode(list(request.prompt_token_ids), skip_special_tokens=False)
            for request in self.engine.submitted
        ]

    @property
    def request(self) -> Request:
        """The last one."""
        return self.engine.submitted[-1]


@contextlib.contextmanager
def scripted_server(
    answers: Sequence[str] | Callable[[int], str], *, seconds_per_turn: float = 0.0, **settings: object
) -> Iterator[Scripted]:
    """Each request gets the next of `answers`, and the last of them ever after."""
    config = ServerConfig(model=MODEL, disable_log_stats=True, **settings)  # type: ignore[arg-type]
    engine, model, app = scripted_app(config, answers, seconds_per_turn=seconds_per_turn)
    with running(app) as server:
        yield Scripted(server.url, engine, model.asked.require_tokenizer())


def scripted_app(
    config: ServerConfig, answers: Sequence[str] | Callable[[int], str], *, seconds_per_turn: float = 0.0
) -> tuple[ScriptedEngine, ServedModel, Starlette]:
    """What `start_app` makes, without a model."""
    tokenizer = Tokenizer(build_gemma_like())
    count = iter(range(1 << 30))

    def script(request: Request) -> list[int]:
        index = next(count)
        text = answers(index) if callable(answers) else answers[min(index, len(answers) - 1)]
        return [*tokenizer.encode(text, add_special_tokens=False), END]

    engine = ScriptedEngine(script, EngineInfo(480, (1, END), 4096, "", ()), seconds_per_turn=seconds_per_turn)
    model = ServedModel(
        names=(MODEL,),
        root=MODEL,
        vocab_size=480,
        asked=AskedModel(
            max_model_len=4096,
            eos_token_ids=(1, END),
            tokenizer=tokenizer,
            template=ChatTemplate(
                TEMPLATE, special_tokens=tokenizer.special_tokens, control_texts=tokenizer.control_tokens.id_of
            ),
        ),
    )
    return engine, model, make_app(config, engine, model)
