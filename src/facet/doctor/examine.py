"""Runs an examination: loads the model, runs every check, reports. A check that raises is a failed finding."""

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from facet.doctor import company
from facet.doctor.attention_check import check_attention
from facet.doctor.chat_check import check_chat
from facet.doctor.config import DoctorConfig
from facet.doctor.environment import check_environment, describe
from facet.doctor.findings import Finding, Report
from facet.doctor.injection_check import check_injection
from facet.doctor.kernel_checks import check_kernels
from facet.doctor.own_model import write_own_model
from facet.doctor.patient import Patient
from facet.doctor.quality import CHECK as QUALITY
from facet.doctor.quality import check_quality
from facet.doctor.storage import check_kv_dtypes
from facet.doctor.window_edge import check_window_edge
from facet.doctor.workload import FULL, NORMAL, QUICK, Effort, context_needed, make_requests
from facet.engine.device_failures import device_failures_in_words
from facet.errors import CapacityError, CheckpointError, ConfigError
from facet.model.batch_invariance import arithmetic_of, with_batch_invariance
from facet.model.loader import load_model
from facet.model.named_model import read_spec
from facet.model.resolving import resolve_device
from facet.progress import Progress, Silent

# A chat with a tool, rendered and encoded character by character, needs about this many tokens.
CONTEXT_FOR_CHAT = 1024

Check = Callable[[Patient], Iterator[Finding]]


def examine(config: DoctorConfig, progress: Progress | None = None) -> Report:
    """Raises `UserError` if there is nothing to examine: no such model, not enough memory, contradicting flags."""
    progress = progress or Silent()
    if config.quick and config.full:
        raise ConfigError("--quick and --full contradict each other. Give one of them.")
    if config.model:
        return _examine(config, config.model, progress)
    with tempfile.TemporaryDirectory(prefix="facet-doctor-") as folder:
        dtype = "bfloat16" if resolve_device(config.device).type == "cuda" else "float32"
        write_own_model(Path(folder), dtype=dtype)
        own = replace(config, model=folder, load_format="dummy")
        return _examine(own, "a small random model", progress)


def _examine(config: DoctorConfig, name: str, progress: Progress) -> Report:
    start = time.perf_counter()
    described = describe()
    patient = _load(config, progress)
    findings = list(check_environment(described))
    checks = [(QUALITY, check_quality)] if config.quality_only else checks_for(patient.effort)
    with progress.task("Examining", len(checks)) as advance:
        for title, check in checks:
            findings += _run(title, check, patient)
            advance(1)
    return Report(
        model=name,
        device=str(patient.model.placement.device),
        dtype=patient.dtype,
        is_batch_invariant=patient.is_batch_invariant,
        environment=described,
        findings=tuple(findings),
        seconds=time.perf_counter() - start,
    )


def _load(config: DoctorConfig, progress: Progress) -> Patient:
    effort = QUICK if config.quick else FULL if config.full else NORMAL
    with device_failures_in_words():
        spec, _ = read_spec(config, config_only=True)
        if not isinstance(config.max_model_len, int):
            # No more than is used: a model's whole context would cost memory and show nothing.
            needed = max(context_needed(spec, effort), CONTEXT_FOR_CHAT)
            config = replace(config, max_model_len=min(needed, spec.max_positions))
        elif config.max_model_len < effort.least_context:
            raise ConfigError(
                f"--max-model-len is {config.max_model_len}, but an examination needs {effort.least_context} tokens or "
                "more. Leave it out to use as many as are needed."
            )
        config = with_batch_invariance(config, resolve_device(config.device))
        loaded = load_model(config, progress, arithmetic=arithmetic_of(config))
    return Patient(
        config=config,
        model=loaded.model,
        folder=loaded.folder,
        effort=effort,
        requests=make_requests(spec, effort, context_length=loaded.context_length, seed=config.seed),
    )


def checks_for(effort: Effort) -> list[tuple[str, Check]]:
    """The checks in the order of the table. The baseline comes before all checks that compare with it."""
    return [
        ("kernels", check_kernels),
        ("attention", check_attention),
        ("window edge", check_window_edge),
        ("alone", company.check_alone),
        *(
            (f"{count} in flight", partial(company.check_concurrency, concurrency=count))
            for count in effort.concurrencies
        ),
        ("injected control tokens", check_injection),
        ("chat with tools", check_chat),
        ("fast prefill", company.check_fast_prefill),
        ("prefix cache", company.check_prefix_cache),
        ("padded steps", company.check_padded_steps),
        ("NaN in dead memory", company.check_dead_memory),
        ("little memory", company.check_little_memory),
        ("KV dtypes", check_kv_dtypes),
        (QUALITY, check_quality),
    ]


def _run(title: str, check: Check, patient: Patient) -> list[Finding]:
    findings: list[Finding] = []
    start = time.perf_counter()
    try:
        for finding in check(patient):
            now = time.perf_counter()
            findings.append(replace(finding, seconds=now - start))
            start = now
    except (ConfigError, CheckpointError, CapacityError):
        raise  # the user's to fix, like everything that is refused before the first check
    except torch.OutOfMemoryError:
        with device_failures_in_words():
            raise
    except Exception as error:  # whatever breaks here would have broken a server
        words = str(error).strip().splitlines() or ["no reason was given"]
        note = f"{type(error).__name__}: {words[0]}"
        findings.append(Finding(check=title, status="fail", note=note, seconds=time.perf_counter() - start))
    return findings
