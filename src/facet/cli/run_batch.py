"""`facet run-batch -i FILE -o FILE [MODEL]`: answers a file of requests, in OpenAI's format for batches."""

import argparse
import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from facet.bench.writable import check_writable
from facet.cli.flags import add_server_flags
from facet.cli.models import model_config_from
from facet.config import ServerConfig, setting
from facet.errors import ConfigError
from facet.progress import Advance, Bars

if TYPE_CHECKING:
    from facet.cli.batch_files import Answers, Requests
    from facet.cli.batch_sender import Numbered, Tally

logger = logging.getLogger(__name__)

_STANDARD = "-"
# What concerns clients from elsewhere. It is taken, so that the flags of a server may stay as they are.
_OF_NO_CONCERN = (
    *("host", "port", "uds", "api_key", "root_path", "shutdown_timeout", "request_timeout", "timeout_keep_alive"),
    *("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers", "enable_ssl_refresh"),
    *("allowed_origins", "allowed_methods", "allowed_headers", "allow_credentials", "disable_fastapi_docs"),
    *("enable_sleep_mode", "data_parallel_size", "data_parallel_backend", "max_waiting_requests"),
    *("enable_force_include_usage", "uvicorn_log_level", "allowed_lora_path"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig(ServerConfig):
    """The files of a batch."""

    input_file: str = setting(
        "", "file with a request in each line, in OpenAI's format for batches; -: standard input", also=("-i",)
    )
    output_file: str = setting("", "file for the answers; -: standard output", also=("-o",))
    resume: bool = setting(
        False, "keep the answers that the output file has already, and ask only for those that it has not"
    )
    overwrite: bool = setting(False, "replace the output file if there is one")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("run-batch", help="answer a file of requests, in OpenAI's format for batches")
    add_server_flags(parser, BatchConfig, unlisted=_OF_NO_CONCERN)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    # Imported here and below: other commands need neither.
    from facet.cli.batch_files import Answers, Requests
    from facet.server.run import check_accepted_flags

    config = model_config_from(options, BatchConfig)
    check_accepted_flags(config)
    _check_files(config)
    signal.signal(signal.SIGTERM, _leave)
    with contextlib.closing(Requests(config.input_file, config.max_request_bytes)) as requests:
        if not len(requests):
            raise ConfigError(f"{config.input_file} has no requests. Write one in each line.")
        answers = Answers(config.output_file, requests, keeps=config.resume)
        with contextlib.closing(answers):
            try:
                tally, seconds = _answer(config, requests, answers)
                answers.put_in_order()
            except BaseException:
                if answers.are_kept:
                    print(_unfinished(answers, len(requests)), file=sys.stderr)
                raise
            print(_summary(tally, seconds, answers), file=sys.stderr)
    return 0


def _leave(number: int, frame: object) -> None:
    """Leaves by an exception, so that the engine process is ended on the way out."""
    raise SystemExit(128 + number)


def _check_files(config: BatchConfig) -> None:
    """Checks the files, before a model is loaded."""
    for flag, name in (("-i", config.input_file), ("-o", config.output_file)):
        if not name:
            raise ConfigError(f"{flag} names no file. Give both: facet run-batch -i requests.jsonl -o answers.jsonl.")
        if "://" in name:
            raise ConfigError(f"{flag} {name} is an address, but only files of this machine are read and written.")
    if config.overwrite and config.resume:
        raise ConfigError("--overwrite and --resume exclude each other. Leave one of them out.")
    if config.data_parallel_size > 1 or config.data_parallel_backend == "ray":
        raise ConfigError(
            "facet run-batch runs one replica. Leave --data-parallel-size and --data-parallel-backend out; for several "
            "GPUs divide the file, or the model with --tensor-parallel-size."
        )
    if config.output_file == _STANDARD:
        if config.resume:
            raise ConfigError("--resume needs a file to go on with. Name one with -o.")
        return
    path = Path(config.output_file)
    if path.exists() and not path.is_file():  # a pipe or a device
        return
    if path.exists():
        if config.input_file != _STANDARD and os.path.exists(config.input_file) and path.samefile(config.input_file):
            raise ConfigError(f"-o {path} is the file of the requests. Name another one.")
        if not config.overwrite and not config.resume:
            raise ConfigError(
                f"{path} exists. Add --resume to keep its answers and get those that are missing, or --overwrite to "
                "replace it."
            )
    check_writable("-o", path)


def _answer(config: BatchConfig, requests: "Requests", answers: "Answers") -> tuple["Tally", float]:
    """What came of the requests that have no answer yet, and in how many seconds."""
    from facet.cli.batch_sender import BatchSender, Tally

    tally = Tally()
    if answers.num_kept == len(requests):
        answers.open()
        return tally, 0.0
    from facet.cli.private_server import private_socket

    logger.info("Loading %s ...", next(iter(config.served_model_name), config.model))
    with private_socket(_server_config(config)) as (socket, _), Bars().task("Requests", len(requests)) as advance:
        answers.open()
        advance(answers.num_kept)

        def keep(index: int, line: bytes) -> None:
            answers.add(index, line)
            advance(1)

        start = time.perf_counter()
        sender = BatchSender(socket, keep, tally)
        to_send = _to_send(requests, answers, tally, advance, config.max_request_bytes)
        # Twice as many as run: while an answer is on its way back, the next request is waiting already.
        asyncio.run(sender.send_all(to_send, 2 * config.max_num_seqs))
        return tally, time.perf_counter() - start


def _server_config(config: BatchConfig) -> BatchConfig:
    """The config of a server that only this command can reach."""
    from facet.server.certificates import without_tls

    return dataclasses.replace(
        without_tls(config),
        api_key=(),
        root_path=None,
        shutdown_timeout=1.0,
        # On a terminal there is a bar instead.
        disable_log_stats=config.disable_log_stats or sys.stderr.isatty(),
    )


def _to_send(
    requests: "Requests", answers: "Answers", tally: "Tally", advance: Advance, max_line_bytes: int
) -> Iterator["Numbered"]:
    """The requests without an answer. Lines that are none get their answer here."""
    from facet.cli.batch_lines import BadLineError, custom_id_of, read_request, refusal_line
    from facet.cli.batch_sender import Numbered

    for index, (number, text) in enumerate(requests):
        if answers.has(index):
            continue
        try:
            if text is None:
                raise BadLineError(f"It is longer than {max_line_bytes} bytes, the limit (--max-request-bytes).")
            if requests.is_repeated(index):
                raise BadLineError("The custom_id is that of an earlier line, too. Give each one its own.",
                                   custom_id_of(text))  # fmt: skip
            yield Numbered(index, read_request(text))
        except BadLineError as error:
            answers.add(index, refusal_line(number, error))
            tally.num_failed += 1
            advance(1)


def _unfinished(answers: "Answers", num_requests: int) -> str:
    return (
        f"{answers.num_written:,} of {num_requests:,} requests have a line in {answers.name}. --resume gets those that "
        "are missing."
    )


def _summary(tally: "Tally", seconds: float, answers: "Answers") -> str:
    num_requests = tally.num_answered + tally.num_failed
    before = f" ({answers.num_kept:,} were answered before)" if answers.num_kept else ""
    reasons = ", each with its reason in the output" if tally.num_failed else ""
    rate = tally.num_generated_tokens / seconds if seconds else 0.0
    return (
        f"{num_requests:,} requests in {seconds:,.1f} s{before}: {tally.num_answered:,} answered, {tally.num_failed:,} "
        f"failed{reasons}; {tally.num_prompt_tokens:,} prompt tokens, {tally.num_generated_tokens:,} generated, "
        f"{rate:,.1f} generated per second."
    )
