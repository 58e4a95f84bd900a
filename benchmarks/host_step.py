"""Times what the host does in a step of the engine, part by part, with a device that computes nothing.

    python -m benchmarks.host_step
    python -m benchmarks.host_step --load drafter --requests 8 --profile

Engine, scheduler, cache and runner are the real ones, on the path of captured graphs; a pass of the model computes a
made-up next token and nothing else, and a token is chosen by one small operation where a GPU would run kernels. Every
operation on a small tensor stands for a launch. Requests decode in the cache of a model shaped like E4B, in four loads:

    plain     sampled by default settings, overlapped
    grammar   a JSON string that never ends
    suffix    drafts from the text, all of which are right
    drafter   drafts of a model, accepted at the rates that `drafts_gpu.py` takes for E4B

Medians over steps, in microseconds. What one part does inside another counts for the inner one alone. `gap` is the time
between the last tokens or drafts that are waited for and the next pass, where no other step is in flight: the device is
idle meanwhile. With `--wait`, no step is launched ahead of the drafts before it.
"""

import argparse
import cProfile
import json
import pstats
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial, wraps
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
import torch
import zmq
from torch import Tensor

from facet.chat.answer_grammar import json_schema_grammar
from facet.config import ModelConfig
from facet.drafts.config import SuffixDrafts, read_draft_config
from facet.drafts.model_drafter import ModelDrafter
from facet.drafts.step_times import StepTimes
from facet.drafts.text_drafter import TextDrafter
from facet.engine.engine import Engine
from facet.engine.service import EngineService, make_info
from facet.engine.settings import EngineSettings
from facet.grammar_spec import GrammarSpec
from facet.kernels.token_choice import ChoiceSettings, Outcome
from facet.kv_cache.accountant import blocks_for
from facet.kv_dtypes import choose_kv_dtypes
from facet.kv_layout import make_kv_layout
from facet.layers.kv_arena import KVArena
from facet.model.draft_loader import load_draft_model
from facet.model.draft_model import DraftModel
from facet.model.gemma import Gemma
from facet.model.loader import load_model
from facet.progress import Silent
from facet.request import Request
from facet.runner.draft_ahead import DraftAhead, DraftsInFlight
from facet.runner.graphs import DecodeGraphs, default_sizes
from facet.runner.runner import Runner
from facet.runner.step_sampling import SampledStep
from facet.sampling import Grammars, Sampler
from facet.sampling_params import SamplingParams
from facet.scheduler.drafting import Drafter
from facet.scheduler.scheduler import Scheduler
from facet.step import StepPlan
from tests.tiny_drafters import write_pair
from tests.tokens.gemma_like import write_tokenizer_folder

LOADS = ("plain", "grammar", "suffix", "drafter")
RATES = (0.85, 0.65)  # at which drafts of the model are accepted
MAX_MODEL_LEN, PROMPT_LEN = 4096, 512
VOCAB_SIZE, HIDDEN_SIZE = 512, 64
FIRST_TOKEN, NUM_TOKENS = 17, 400  # that are said
STEP_SECONDS = {1: 0.0033, 1024: 0.0066}  # as if a device computed
WARM_UP_STEPS = 20
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
# What is timed, by part. A method of a drafter may be any drafter's.
DRAFTER_METHODS = ("could_gain", "num_ahead", "num_unseen", "propose", "is_worth_waiting", "learn", "hear")
WATCHED: dict[str, Sequence[tuple[Any, str]]] = {
    "draft": [
        (Scheduler, "draftable"),
        *((drafter, name) for drafter in (TextDrafter, ModelDrafter) for name in DRAFTER_METHODS),
    ],
    "plan": [(Scheduler, "plan"), (Scheduler, "plan_ahead")],
    "commit": [(Scheduler, "commit")],
    "launch": [(Runner, "launch")],
    "masks": [(Grammars, "masks"), (Grammars, "settle")],
    "sample": [(Runner, "sample")],
    "ahead": [(DraftAhead, "draft")],
    "wait": [(SampledStep, "wait"), (DraftsInFlight, "wait")],
    "settle": [(Scheduler, "settle"), (Scheduler, "learn")],
    "messages": [(EngineService, "step")],  # without the step itself, but with sending
    "loop": [(Engine, "step")],
    "device": [
        (DecodeGraphs, "_run_lower"),
        (DecodeGraphs, "_run_upper"),
        (DraftAhead, "_run"),
        (Gemma, "lower"),
        (Gemma, "logits"),
    ],
}
COLUMNS = (*(part for part in WATCHED if part != "device"), "gap", "all")


def first_allowed(
    logits: Tensor, settings: ChoiceSettings, noise_keys: Tensor | None, raw_max: Tensor | None = None
) -> Outcome:
    """Stands for the kernels that choose tokens."""
    outcome = Outcome.empty(len(logits), logits.device)
    assert outcome.storage is not None
    outcome.storage.fill_(1)
    torch.argmax(logits, dim=-1, out=outcome.token_ids)
    return outcome


class Stopwatch:
    """Seconds by part, of the step that is under way."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = defaultdict(float)
        self.is_busy: Callable[[], bool] = lambda: False  # whether the device has another step
        self._inner = [0.0]  # seconds of watched calls inside each call that is under way
        self._waited: float | None = None  # when something was last waited for, and nothing replayed since

    def watch(self, owner: Any, name: str, part: str) -> Any:
        function = getattr(owner, name)

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            start = self.clock()
            try:
                return function(*args, **kwargs)
            finally:
                stop = self.clock()
                self.seconds[part] += stop - start - self._inner.pop()
                self._inner[-1] += stop - start
                if part == "wait":
                    self._waited = stop

        return patch.object(owner, name, timed)

    def note_launch(self) -> None:
        if self._waited is not None:
            self.seconds["gap"] += 0.0 if self.is_busy() else self.clock() - self._waited
            self._waited = None


def next_token(token_ids: Tensor) -> Tensor:
    """What the model says, and its drafter too: a text that repeats itself after a while."""
    return FIRST_TOKEN + (token_ids - FIRST_TOKEN + 7) % NUM_TOKENS


class EmptyModel:
    """In place of a model's passes: of a row only the next token is computed."""

    def __init__(self, watch: Stopwatch, hidden_size: int) -> None:
        self._watch = watch
        self._hidden_size = hidden_size

    def lower(self, model: Gemma, token_ids: Tensor, *_: object, **__: object) -> Tensor:
        self._watch.note_launch()
        return torch.zeros(len(token_ids), self._hidden_size)

    def upper(self, model: Gemma, stream: Tensor, token_ids: Tensor, *_: object) -> Tensor:
        hidden = stream.clone()
        hidden[:, 0] = next_token(token_ids)
        return hidden

    def logits(self, model: Gemma, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        logits = torch.empty(len(hidden), VOCAB_SIZE) if out is None else out
        return logits.zero_().scatter_(1, hidden[:, :1].long(), 1.0)

    def plan(self, model: DraftModel, *_: object) -> None:
        """How a drafter attends does not matter."""

    def draft_one(self, model: DraftModel, token_ids: Tensor, hidden: Tensor, *_: object) -> tuple[Tensor, Tensor]:
        return next_token(token_ids), hidden

    def patches(self) -> Iterator[Any]:
        for owner, names in ((Gemma, ("lower", "upper", "logits")), (DraftModel, ("plan", "draft_one"))):
            for name in names:
                method = getattr(self, name)
                yield patch.object(owner, name, lambda *args, own=method, **named: own(*args, **named))


class FixedTimes(StepTimes):
    """Drafts are worth their time, whatever steps take here."""

    def learn_step(self, plan: StepPlan, seconds: float) -> None:
        """Nothing."""


class World(NamedTuple):
    """What engines are made of."""

    model: Path
    drafter: Path
    grammar: GrammarSpec


def make_world(folder: Path) -> World:
    model, drafter = write_pair("Gemma 4 E4B", folder)
    for path in (model, drafter):
        config = json.loads((path / "config.json").read_text())
        for fields in (config, config.get("text_config", {})):
            for name in ("vocab_size", "vocab_size_per_layer_input"):
                if name in fields:
                    fields[name] = VOCAB_SIZE
        (path / "config.json").write_text(json.dumps(config))
    write_tokenizer_folder(model)
    return World(model, drafter, json_schema_grammar(SCHEMA))


def make_service(world: World, load: str, num_requests: int) -> EngineService:
    config = ModelConfig(model=str(world.model), load_format="dummy", dtype="float32", max_model_len=MAX_MODEL_LEN)
    model = load_model(config).model
    dtypes = choose_kv_dtypes(model.spec, asked="auto", model_dtype="float32")
    layout = make_kv_layout(model.share, dtype=dtypes, min_tokens_per_block=16)
    num_blocks = blocks_for(
        layout, num_sequences=num_requests, num_tokens=MAX_MODEL_LEN, max_num_batched_tokens=MAX_MODEL_LEN
    )
    settings = EngineSettings(
        layout=layout,
        num_blocks=num_blocks,
        max_num_seqs=num_requests,
        max_num_batched_tokens=MAX_MODEL_LEN,
        max_model_len=MAX_MODEL_LEN,
        enable_prefix_caching=True,
        fast_prefill=True,
        overlapped=True,
        poison_freed_blocks=False,
        graph_sizes=default_sizes(4 * num_requests),
        piece_sizes=(),
        encoder=None,
        max_num_encoded_rows=0,
        max_step_seconds=None,
    )
    runner = Runner(
        model,
        KVArena(layout, num_blocks, model.placement.device),
        max_num_seqs=num_requests,
        max_model_len=MAX_MODEL_LEN,
        graph_sizes=settings.graph_sizes,
        draft_model=load_draft_model(str(world.drafter), model, config, Silent()) if load == "drafter" else None,
        made_up_rates=RATES if load == "drafter" else (),
    )
    runner.capture_graphs(Silent())
    engine = Engine(runner, settings, world.model, make_drafter(load))
    engine.load_grammars(in_background=False)
    return EngineService(engine, make_info(engine, str(world.model)))


def make_drafter(load: str) -> Drafter | None:
    times = FixedTimes(STEP_SECONDS)
    if load == "suffix":
        config = read_draft_config({"method": "suffix", "num_speculative_tokens": 3})
        assert isinstance(config, SuffixDrafts)
        return TextDrafter(config, times)
    return ModelDrafter(len(RATES), times) if load == "drafter" else None


def submit(engine: Engine, world: World, load: str, num_requests: int) -> None:
    for index in range(num_requests):
        prompt = [FIRST_TOKEN + (7 * place + index) % NUM_TOKENS for place in range(PROMPT_LEN + index)]
        engine.submit(
            Request(
                request_id=f"cmpl-{index:032d}",
                prompt_token_ids=tuple(prompt),
                eos_token_ids=(1,),
                sampling=SamplingParams(
                    temperature=1.0,
                    top_k=64,
                    top_p=0.95,
                    seed=index,
                    max_tokens=MAX_MODEL_LEN - PROMPT_LEN - index,
                    ignore_eos=True,
                ),
                grammar=world.grammar if load == "grammar" else None,
            )
        )


def measure(service: EngineService, num_steps: int, watch: Stopwatch) -> list[dict[str, float]]:
    """Of every step the seconds by part, beside "all" of them and the "tokens" it brought."""
    context = zmq.Context()
    outbox, inbox = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    inbox.bind("inproc://front")
    outbox.connect("inproc://front")
    encoder, steps = msgspec.msgpack.Encoder(), []
    for _ in range(num_steps):
        watch.seconds.clear()
        start = watch.clock()
        messages = service.step()
        sending = watch.clock()
        outbox.send(encoder.encode(messages))
        stop = watch.clock()
        watch.seconds["messages"] += stop - sending
        inbox.recv()
        num_tokens = sum(len(message.token_ids) for message in messages if hasattr(message, "token_ids"))
        steps.append(dict(watch.seconds) | {"all": stop - start, "tokens": num_tokens})
    context.destroy(linger=0)
    return steps


def run(
    world: World, load: str, num_requests: int, num_steps: int, watch: Stopwatch, *, sort: str | None, waits: bool
) -> str:
    with ExitStack() as stack:
        if waits:
            stack.enter_context(patch.object(ModelDrafter, "num_unseen", lambda *_: {}))
        for one in EmptyModel(watch, HIDDEN_SIZE).patches():
            stack.enter_context(one)
        stack.enter_context(patch("facet.runner.step_sampling.Sampler", partial(Sampler, uses_kernels=True)))
        stack.enter_context(patch("facet.sampling.choice.choose_tokens", first_allowed))
        for part, methods in WATCHED.items() if sort is None else ():
            for owner, name in methods:
                stack.enter_context(watch.watch(owner, name, part))
        service = make_service(world, load, num_requests)
        watch.is_busy = lambda: service._engine._in_flight is not None
        submit(service._engine, world, load, num_requests)
        while service.stats().num_sampled_tokens < num_requests or service.stats().num_running < num_requests:
            service.step()
        for _ in range(WARM_UP_STEPS):
            service.step()
        if sort is not None:
            with cProfile.Profile() as profiler:
                measure(service, num_steps, watch)
            pstats.Stats(profiler).sort_stats(sort).print_stats(45)
            return ""
        steps = measure(service, num_steps, watch)
    for step in steps:
        step["all"] -= step.pop("device")
    columns = [1e6 * median(step.get(part, 0.0) for step in steps) for part in COLUMNS]
    tokens = sum(step["tokens"] for step in steps) / len(steps) / num_requests
    return (
        f"{load:>8} {num_requests:>8} " + " ".join(f"{value:>8.0f}" for value in columns) + f" {tokens:>8.2f} a request"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", nargs="+", choices=LOADS, default=LOADS)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32, 100])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--wait", action="store_true", help="for the drafts of a step before the next is launched")
    parser.add_argument("--cpu-time", action="store_true", help="of this process, where others disturb it")
    parser.add_argument(
        "--profile", choices=("tottime", "cumtime"), help="print where the time goes, function by function"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'load':>8} {'requests':>8} " + " ".join(f"{part:>8}" for part in (*COLUMNS, "tokens")))
    with tempfile.TemporaryDirectory() as folder:
        world = make_world(Path(folder))
        for load in options.load:
            for num_requests in options.requests:
                watch = Stopwatch(time.process_time if options.cpu_time else time.perf_counter)
                line = run(world, load, num_requests, options.steps, watch, sort=options.profile, waits=options.wait)
                print(line, flush=True)


if __name__ == "__main__":
    main()
