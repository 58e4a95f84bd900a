"""Compares answers of requests run alone with those of requests run together, and with each optional feature on."""

from collections.abc import Iterator
from dataclasses import replace

from facet.doctor.engines import Setup, make_engine, run_alone, run_together
from facet.doctor.findings import Finding, skipped
from facet.doctor.judge import Transcript
from facet.doctor.patient import Patient, compare
from facet.doctor.workload import widest_window
from facet.request import Request

# Tokens that a session's next turn adds.
NUM_NEW_TOKENS = 3


def check_alone(patient: Patient) -> Iterator[Finding]:
    """Runs every request by itself: the baseline of the other checks."""
    engine = make_engine(patient.model, patient.baseline)
    patient.alone.update(run_alone(engine, patient.requests))
    yield compare("alone, finite", patient.alone, patient.alone, patient.limits)


def check_concurrency(patient: Patient, concurrency: int) -> Iterator[Finding]:
    """Runs as a server does, but with chunks so short that long prompts need several."""
    engine = make_engine(patient.model, _served(patient, concurrency))
    got = run_together(engine, patient.requests)
    yield compare(f"{concurrency} in flight", patient.alone, got, patient.limits)


def check_fast_prefill(patient: Patient) -> Iterator[Finding]:
    name = "fast prefill"
    if patient.model.spec.first_shared_layer == patient.model.spec.num_layers:
        yield skipped(name, "every layer of this model has keys of its own")
        return
    other = replace(patient.baseline, fast_prefill=not patient.baseline.fast_prefill)
    got = run_alone(make_engine(patient.model, other), _some(patient))
    yield compare(name, patient.alone, got, patient.rounding)


def check_prefix_cache(patient: Patient) -> Iterator[Finding]:
    """Sessions: the second turn repeats the first and its answer, adds some tokens, and finds the rest in the cache."""
    name, first_turns = "prefix cache", _some(patient)
    setup = replace(_served(patient, patient.effort.concurrencies[0]), prefix_caching=True)
    engine = make_engine(patient.model, setup)
    transcripts = run_together(engine, first_turns)
    second_turns = [_next_turn(patient, request, transcripts[request.request_id]) for request in first_turns]
    got = run_together(engine, second_turns)
    expected = run_alone(make_engine(patient.model, patient.baseline), second_turns)
    num_found = engine.stats().scheduler.cache.num_prompt_tokens_hit
    if num_found == 0:
        yield skipped(name, "the cache kept nothing of such short prompts")
        return
    finding = compare(name, expected, got, patient.limits)
    yield replace(finding, note="; ".join(filter(None, (finding.note, f"{num_found} tokens found"))))


def _next_turn(patient: Patient, request: Request, first: Transcript) -> Request:
    said = [token.token_id for token in first.tokens]
    longest = patient.model.num_positions - patient.effort.num_tokens
    token_ids = (*request.prompt_token_ids, *said, *request.prompt_token_ids[:NUM_NEW_TOKENS])[:longest]
    sampling = replace(request.sampling, prompt_logprobs=None)  # a scored prompt is always computed in full
    return replace(request, prompt_token_ids=token_ids, sampling=sampling)


def check_padded_steps(patient: Patient) -> Iterator[Finding]:
    """Steps padded to the sizes of captured graphs; on a CPU, which has none, the padded step is computed."""
    most = patient.effort.num_requests + 3
    most_rows = _chunk(patient) + most
    setup = replace(_served(patient, most), graph_sizes=(3, most // 2, most), piece_sizes=(most_rows // 3, most_rows))
    got = run_together(make_engine(patient.model, setup), patient.requests)
    yield compare("padded steps", patient.alone, got, patient.limits)


def check_dead_memory(patient: Patient) -> Iterator[Finding]:
    """Freed blocks are filled with NaN, so that reading one makes the request fail.

    Prompts are split into many small chunks, so that windows release blocks at many different steps.
    """
    requests = _some(patient)
    chunk = max(len(request.prompt_token_ids) for request in requests) // patient.effort.num_chunks | 1
    setup = replace(_served(patient, len(requests)), chunk=chunk, poison=True)
    got = run_together(make_engine(patient.model, setup), requests)
    yield compare("NaN in dead memory", patient.alone, got, patient.limits)


def check_little_memory(patient: Patient) -> Iterator[Finding]:
    """Blocks are so scarce that other requests soon reuse them, and NaN in between; some requests are preempted."""
    setup = replace(_served(patient, 8), prefix_caching=True, poison=True, is_short_of_memory=True)
    engine = make_engine(patient.model, setup)
    got = run_together(engine, patient.requests)
    finding = compare("little memory", patient.alone, got, patient.limits)
    num_preemptions = engine.stats().scheduler.num_preemptions
    note = f"{num_preemptions} preemptions" if num_preemptions else ""
    yield replace(finding, note="; ".join(filter(None, (finding.note, note))))


def _served(patient: Patient, concurrency: int) -> Setup:
    return Setup(
        max_num_seqs=concurrency,
        chunk=_chunk(patient),
        fast_prefill=True,
        overlapped=True,
    )


def _chunk(patient: Patient) -> int:
    return widest_window(patient.model.spec) + 5


def _some(patient: Patient) -> list[Request]:
    """Some of the requests, of several lengths, for checks that take many steps."""
    return list(patient.requests)[: max(4, patient.effort.num_requests // 4)]
