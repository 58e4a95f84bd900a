"""Measures what quantized weights cost: how far the model's next-token distributions are from those without it.

The model answers the prompts greedily. Prompts and answers are then computed twice, with the weights as loaded and with
what they were before (`model/original_weights.py`), and every position is compared:

    KL          how much information the quantized distribution loses, in nats; 0: none
    agreement   whether both find the same token the most likely one

Answers are what counts. Within a prompt, models predict poorly what they are never asked to write, and the figures are
worse: one of them is given beside the others.

One matrix at a time is unquantized, and logits are compared a few rows at a time, so this needs little memory beside
the model: a second model is never there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from facet.doctor.engines import Setup, make_engine, run_together
from facet.doctor.findings import Finding, skipped
from facet.doctor.patient import Patient
from facet.doctor.prompts import read_prompts
from facet.errors import ConfigError
from facet.kv_layout import make_kv_layout
from facet.layers.kv_arena import KVArena
from facet.layers.quantized_weight import QuantizedWeight
from facet.model.gemma import Gemma
from facet.model.original_weights import OriginalWeights, original_weights
from facet.request import Request
from facet.runner.batch import SequenceRows, make_batch_of
from facet.sampling_params import SamplingParams

CHECK = "quantized weights"
# The last tokens of a prompt, at most so many, are taken, so that a pass stays small.
MOST_PROMPT_TOKENS = 384
ROWS_PER_PASS = 1024
# Logits that are compared at once.
_LOGITS_AT_ONCE = 1 << 26
_TOGETHER = 16

# Mean KL up to which weights whose originals are their own codes, and whose inputs are not rounded, may differ: nothing
# but the order of sums does. Beyond it a kernel is wrong.
_ROUNDING_LIMITS = {"float32": 1e-5, "float16": 0.005, "bfloat16": 0.05}
# Beyond it nothing of the model is left.
_QUALITY_LIMIT = 1.0

# What a mean KL means, by the most that it says it of. Rules of thumb: published eight-bit Gemmas are in the first two
# lines, good four-bit ones in the third.
_MEANINGS = (
    (0.001, "As good as unquantized: tokens change only where two were nearly equally likely."),
    (0.01, "Very close: the wording of answers changes here and there, their quality does not."),
    (
        0.05,
        "Close, as good four-bit weights are: wording changes often. Check tasks that hang on every token, such as "
        "code, arithmetic or tool calls.",
    ),
    (0.3, "Noticeably different: expect worse answers. Use more bits, or a checkpoint trained for this format."),
    (_QUALITY_LIMIT, "Far off: answers will be poor. Use more bits."),
)
_BROKEN = "Broken: little of the model is left. The weights are damaged, or quantized for another model."
_WRONG_KERNEL = "Wrong: only the order of sums may differ here, so a kernel computes something else than it should."


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far a quantized model is from itself without quantization."""

    mean_kl: float  # KL(unquantized || quantized) over the tokens of answers, in nats
    largest_kl: float
    agreement: float  # share of them with the same most likely token
    num_positions: int  # tokens of answers
    prompt_mean_kl: float  # over the tokens of prompts
    num_prompt_positions: int
    num_same_answers: int  # greedy answers that would be the same to the last token
    num_answers: int


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and its answer."""

    token_ids: tuple[int, ...]
    num_prompt_tokens: int

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)


def check_quality(patient: Patient) -> Iterator[Finding]:
    model = patient.model
    formats = {module.format for module in model.modules() if isinstance(module, QuantizedWeight)}
    if not formats:
        if patient.config.quality_only:
            raise ConfigError(
                "--quality-only measures quantized weights, and this model has none. Name a quantized checkpoint, or "
                "quantize this one with --quantization."
            )
        yield skipped(CHECK, "no weight of this model is quantized")
        return
    texts = _answered(patient, read_prompts(patient))
    folder = None if patient.config.load_format == "dummy" else patient.folder
    with original_weights(model, folder) as originals:
        distance = measure(model, originals, texts)
        are_stored = originals.are_stored
    only_sums_differ = not are_stored and all(format.rounding is None for format in formats)
    limit = _ROUNDING_LIMITS[patient.dtype] if only_sums_differ else _QUALITY_LIMIT
    note = (
        f"mean KL; largest {distance.largest_kl:.2g}; same most likely token: {distance.agreement:.2%} of "
        f"{distance.num_positions:,}; same answer: {distance.num_same_answers} of {distance.num_answers}"
    )
    compared = (
        "the weights that the checkpoint has"
        if are_stored
        else "the numbers that its codes stand for, and inputs that are not rounded"
    )
    is_good = distance.mean_kl <= limit
    what = "; ".join(sorted({format.line for format in formats}))
    explanation = (
        f"Quality of quantized weights ({what}), compared with {compared}: mean KL {distance.mean_kl:.2g} nats. "
        f"{_WRONG_KERNEL if only_sums_differ and not is_good else meaning(distance.mean_kl)}"
    )
    if not are_stored:
        explanation += (
            " What quantizing cost before the checkpoint was written is not in it: to learn that, load the unquantized "
            "checkpoint with --quantization."
        )
    yield Finding(
        check=CHECK,
        status="pass" if is_good else "fail",
        deviation=distance.mean_kl,
        limit=limit,
        note=note,
        figures=asdict(distance),
        explanation=explanation,
    )


def meaning(mean_kl: float) -> str:
    """What a mean KL divergence means, in words."""
    return next((words for most, words in _MEANINGS if mean_kl <= most), _BROKEN)


def _answered(patient: Patient, prompts: Sequence[tuple[int, ...]]) -> list[Text]:
    """The prompts with their answers by the quantized weights, as a server would give them, until an answer ends."""
    model = patient.model
    num_tokens = min(8 * patient.effort.num_tokens, model.num_positions // 2)
    longest = min(MOST_PROMPT_TOKENS, model.num_positions - num_tokens)
    sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, logprobs=0)
    requests = [
        Request(
            request_id=str(index),
            prompt_token_ids=prompt[-longest:],
            sampling=sampling,
            eos_token_ids=model.spec.eos_token_ids,
        )
        for index, prompt in enumerate(prompts)
    ]
    engine = make_engine(model, Setup(max_num_seqs=_TOGETHER, fast_prefill=True, overlapped=True))
    answers = run_together(engine, requests)
    return [
        Text(
            (*request.prompt_token_ids, *(token.token_id for token in answers[request.request_id].tokens)),
            len(request.prompt_token_ids),
        )
        for request in requests
    ]


@torch.inference_mode()
def measure(model: Gemma, originals: OriginalWeights, texts: Sequence[Text]) -> Distance:
    divergences: list[Tensor] = []
    agreements: list[Tensor] = []
    for some in _passes(texts):
        hidden = hidden_states(model, some)
        with originals.in_place():
            expected_hidden = hidden_states(model, some)
        for rows in _row_ranges(len(hidden), model.spec.vocab_size):
            got = model.logits(hidden[rows]).log_softmax(dim=-1)
            with originals.in_place():
                expected = model.logits(expected_hidden[rows]).log_softmax(dim=-1)
            agreements.append((got.argmax(dim=-1) == expected.argmax(dim=-1)).cpu())
            divergences.append((expected.exp() * (expected - got)).sum(dim=-1).cpu())
    divergence, agrees = torch.cat(divergences).double(), torch.cat(agreements)
    ends = list(accumulate(text.num_rows for text in texts))
    # A row chooses the token behind it: the last of a prompt chooses the first of the answer, and so on.
    answers = [
        slice(start + text.num_prompt_tokens - 1, end - 1)
        for text, (start, end) in zip(texts, pairwise([0, *ends]), strict=True)
    ]
    in_answer = torch.zeros_like(agrees)
    for rows in answers:
        in_answer[rows] = True
    same = [bool(agrees[rows].all()) for rows in answers]
    return Distance(
        mean_kl=float(divergence[in_answer].mean()),
        largest_kl=float(divergence[in_answer].max()),
        agreement=float(agrees[in_answer].double().mean()),
        num_positions=int(in_answer.sum()),
        prompt_mean_kl=float(divergence[~in_answer].mean()),
        num_prompt_positions=int((~in_answer).sum()),
        num_same_answers=sum(same),
        num_answers=len(same),
    )


def _passes(texts: Sequence[Text]) -> Iterator[list[Text]]:
    """Texts that are computed together: as many as make few passes, for each unquantizes every matrix once."""
    some: list[Text] = []
    for text in texts:
        if some and sum(each.num_rows for each in (*some, text)) > ROWS_PER_PASS:
            yield some
            some = []
        some.append(text)
    if some:
        yield some


def hidden_states(model: Gemma, texts: Sequence[Text]) -> Tensor:
    """The hidden states of every token, [tokens, hidden]."""
    device = model.placement.device
    layout = make_kv_layout(model.spec, dtype=str(model.placement.dtype).removeprefix("torch."))
    num_pages, sequences = 1, []
    for text in texts:
        tables = []
        for group in layout.groups:
            count = -(-text.num_rows // group.tokens_per_block)
            tables.append(tuple(range(num_pages, num_pages + count)))
            num_pages += count
        sequences.append(
            SequenceRows(
                token_ids=text.token_ids, num_computed=0, block_tables=tuple(tables), num_logit_rows=text.num_rows
            )
        )
    arena = KVArena(layout, num_pages, device)
    hidden: Tensor = model(make_batch_of(sequences, device, skip_upper=False), arena)
    return hidden.clone()


def _row_ranges(num_rows: int, vocab_size: int) -> Iterator[slice]:
    size = max(1, _LOGITS_AT_ONCE // vocab_size)
    for start in range(0, num_rows, size):
        yield slice(start, start + size)
