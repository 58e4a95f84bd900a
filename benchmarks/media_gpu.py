"""Measures chats with one picture through HTTP, with random weights, and where the time to the first token goes.

    python -m benchmarks.media_gpu [--models "Gemma 4 E4B" "Gemma 3 12B"] [--concurrency 1 8 32] [--output results.json]

For every model, in turn:

    preprocessing   decoding, resizing and cutting up the picture, in this process
    tower           one picture through the vision tower, kernel by kernel and in a captured graph, in this process
    pictures        a server: one picture of 1024 x 768 pixels and a few words, 256 tokens out
    text            the same server: prompts of as many tokens without a picture, which is what prefill takes
    of the server   the same requests by its own metrics: preparing, and from then to the first token, of which waiting
                    for the first step and what came behind it
    streams         texts that are written while pictures arrive, and while text prompts of that length do: the longest
                    and the 99th percentile of the gaps between their tokens

The target of a single picture: its time to the first token is at most preparing + tower + 1.1 times the text's. A
picture that comes alone is prepared by a processor that was idle, which takes longer than ten in a row: what the server
says of it counts.
`--tiny` shrinks the models, to try this program without a GPU.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.running_server import URL, bench_serve, running
from facet.bench.config import BenchConfig
from facet.bench.datasets import make_dataset
from facet.layers.placement import Placement
from facet.media.jobs import prepare_picture_file
from facet.media.limits import MediaLimits
from facet.media.options import MediaOptions
from facet.media.sources import MediaSources
from facet.media.spec_file import read_media_spec
from facet.model.config_fields import read_config_file
from facet.model.families import read_model_spec
from facet.model.towers import find_towers
from facet.prepared_media import PreparedMedia
from facet.progress import Silent
from facet.runner.recording import recording
from facet.runner.tower_graphs import graphs_of
from facet.tokens import Tokenizer
from facet.transfer import array_on_device
from tests.published_configs import Config, pattern, published
from tests.tokens.gemma_like import GEMMA3_TOKENS, GEMMA4_TOKENS, write_tokenizer_folder

TEMPLATES = Path(__file__).parent.parent / "tests" / "chat"
IMAGE_SIZE = "1024x768"
NUM_WORDS = 20
OUTPUT_LEN = 256
MAX_MODEL_LEN = 4096
NUM_STREAMS, STREAM_LEN = 4, 1500
TINY_VOCAB_SIZE = 2048
SERVER_TIMES = {
    "preparing": "facet:media_preparation",
    "from then to the first token": "vllm:time_to_first_token",
    "waiting": "vllm:request_queue_time",
    "from the first step": "vllm:request_prefill_time",
}


@dataclass(frozen=True)
class Family:
    """What a folder needs besides the published config: the ids of media tokens are those of a small tokenizer."""

    control_tokens: tuple[str, ...]
    template: str
    token_ids: dict[str, str]


GEMMA4 = Family(
    GEMMA4_TOKENS,
    "gemma4_like.jinja",
    {"boi_token_id": "<|image>", "image_token_id": "<|image|>", "eoi_token_id": "<image|>"},
)
GEMMA3 = Family(
    GEMMA3_TOKENS,
    "gemma3_like.jinja",
    {
        "boi_token_index": "<start_of_image>",
        "image_token_index": "<image_soft_token>",
        "eoi_token_index": "<end_of_image>",
    },
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["Gemma 4 E4B", "Gemma 3 12B"])
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--output-len", type=int, default=OUTPUT_LEN)
    parser.add_argument("--stream-len", type=int, default=STREAM_LEN)
    parser.add_argument("--tiny", action="store_true", help="shrunk models in float32, on whatever device there is")
    parser.add_argument("--output", type=Path, help="where all results go, as JSON")
    parser.add_argument("--serve-flags", nargs=argparse.REMAINDER, default=[], help="further flags of every server")
    options = parser.parse_args()
    results = {}
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder), model, is_tiny=options.tiny)
            results[model] = measure(Path(folder), options)
        show(model, results[model])
        if options.output:
            options.output.write_text(json.dumps(results, indent=1))


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"parts": measure_parts(folder, is_tiny=options.tiny), "loads": {}}
    print(json.dumps(result["parts"]), flush=True)
    flags = ("--no-enable-prefix-caching", "--max-num-seqs", "128", "--max-model-len", str(MAX_MODEL_LEN))
    dtype = ("--dtype", "float32" if options.tiny else "bfloat16")
    with running(folder, *flags, *dtype, *options.serve_flags):
        for concurrency in options.concurrency:
            num_prompts = max(8, 3 * concurrency)
            # No picture comes twice, or the encoder cache would have it.
            bench_serve(*picture_load(options, concurrency, concurrency, seed=2 * concurrency))  # compiles, warms up
            before = read_sums()
            pictures = bench_serve(*picture_load(options, concurrency, num_prompts, seed=2 * concurrency + 1))
            after = read_sums()
            told = {name: (after[name] - before[name]) / num_prompts for name in before}
            num_tokens = round(pictures["total_input_tokens"] / pictures["completed"])
            bench_serve(*text_load(options, concurrency, concurrency, num_tokens, seed=1))
            text = bench_serve(*text_load(options, concurrency, num_prompts, num_tokens, seed=2))
            result["loads"][concurrency] = {"num_tokens": num_tokens, "pictures": pictures, "text": text, "told": told}
            print(f"c={concurrency}: pictures {summary(pictures)}; text {summary(text)}", flush=True)
            print("of the server: " + ", ".join(f"{name} {value:.1f} ms" for name, value in told.items()), flush=True)
        most = max(options.concurrency)
        result["streams"] = {
            "pictures": measure_streams(options, picture_load(options, most, 3 * most, seed=0)),
            "text": measure_streams(options, text_load(options, most, 3 * most, num_tokens, seed=3)),
        }
    return result


def read_sums() -> dict[str, float]:
    """Milliseconds of all requests so far."""
    with urllib.request.urlopen(f"{URL}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    sums = {
        name: 1000 * sum(float(line.split()[-1]) for line in lines if line.startswith(f"{metric}_seconds_sum"))
        for name, metric in SERVER_TIMES.items()
    }
    return sums


def picture_load(options: argparse.Namespace, concurrency: int, num_prompts: int, *, seed: int) -> tuple[str, ...]:
    return (
        "--backend", "openai-chat", "--dataset-name", "images", "--image-sizes", IMAGE_SIZE, "--random-input-len",
        str(NUM_WORDS), *load(options, options.output_len, concurrency, num_prompts, seed),
    )  # fmt: skip


def text_load(
    options: argparse.Namespace, concurrency: int, num_prompts: int, num_tokens: int, *, seed: int
) -> tuple[str, ...]:
    return (
        "--dataset-name", "random", "--random-input-len", str(num_tokens),
        *load(options, options.output_len, concurrency, num_prompts, seed),
    )  # fmt: skip


def load(
    options: argparse.Namespace, output_len: int, concurrency: int, num_prompts: int, seed: int
) -> tuple[str, ...]:
    return (
        "--random-output-len", str(output_len), "--max-concurrency", str(concurrency), "--num-prompts",
        str(num_prompts), "--seed", str(seed), "--metric-percentiles", "50,99,100",
        *(("--vocab-size", str(TINY_VOCAB_SIZE)) if options.tiny else ()),
    )  # fmt: skip


def measure_streams(options: argparse.Namespace, company: tuple[str, ...]) -> dict[str, Any]:
    """Short prompts with long answers, and beside them a load."""
    streams = (
        "--dataset-name", "random", "--random-input-len", "16",
        *load(options, options.stream_len, NUM_STREAMS, NUM_STREAMS, 4),
    )  # fmt: skip
    with ThreadPoolExecutor() as pool:
        started = pool.submit(bench_serve, *streams)
        time.sleep(1)  # until they are writing
        beside = bench_serve(*company)
        return {"streams": started.result(), "company": beside}


def measure_parts(folder: Path, *, is_tiny: bool) -> dict[str, float]:
    """Milliseconds."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    placement = Placement(dtype=torch.float32 if is_tiny else torch.bfloat16, device=device)
    spec = read_media_spec(folder).pictures
    assert spec is not None, "the model has a vision tower"
    data = picture_bytes()

    def prepare() -> PreparedMedia:
        (prepared,) = prepare_picture_file(data, spec, MediaOptions(), MediaLimits(), "it")
        return prepared

    prepared = prepare()
    config = read_config_file(folder / "config.json")
    tower = find_towers(config, read_model_spec(config), None).load(placement, Silent())["image"]
    item = {name: array_on_device(array.numpy(), device) for name, array in prepared.arrays.items()}
    (graphs,) = graphs_of({"image": tower}).values()
    with recording(device) as recorder:
        graphs.capture(recorder, Silent())
    with torch.inference_mode():
        return {
            "num_soft_tokens": prepared.num_tokens,
            "preprocessing_ms": milliseconds(prepare),
            "tower_ms": milliseconds(lambda: tower([item]), device),
            "captured_tower_ms": milliseconds(lambda: graphs.encode(item), device),
        }


def milliseconds(run: Callable[[], object], device: torch.device | None = None, count: int = 10) -> float:
    """The median, from an idle device to an idle device."""

    def wait() -> None:
        if device is not None and device.type == "cuda":
            torch.cuda.synchronize(device)

    run()
    times = []
    for _ in range(count):
        wait()
        start = time.perf_counter()
        run()
        wait()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def picture_bytes() -> bytes:
    """One of those that the load is made of."""
    config = BenchConfig(
        backend="openai-chat", dataset_name="images", image_sizes=(IMAGE_SIZE,), num_prompts=1, random_input_len=1
    )
    ((turn,),) = make_dataset(config, None).conversations
    messages: Any = turn.content
    return MediaSources().read_url(messages[0]["content"][0]["image_url"]["url"], "it")


def write_model(folder: Path, model: str, *, is_tiny: bool) -> None:
    family = GEMMA4 if "Gemma 4" in model else GEMMA3
    write_tokenizer_folder(folder, control_tokens=family.control_tokens)
    shutil.copy(TEMPLATES / family.template, folder / "chat_template.jinja")
    ids = Tokenizer.from_folder(folder).control_tokens.id_of
    config = published(model)
    if is_tiny:
        shrink(config)
    config |= {name: ids[text] for name, text in family.token_ids.items()}
    (folder / "config.json").write_text(json.dumps(config))
    name_all_ids(folder / "tokenizer.json", read_model_spec(read_config_file(folder / "config.json")).vocab_size)


def name_all_ids(path: Path, vocab_size: int) -> None:
    """Give every token of the model a text: an answer shows when it begins only by tokens that have one."""
    tokenizer = json.loads(path.read_text())
    vocab = tokenizer["model"]["vocab"]
    taken = {*vocab.values(), *(token["id"] for token in tokenizer["added_tokens"])}
    vocab |= {f"w{number}": number for number in range(vocab_size) if number not in taken}
    path.write_text(json.dumps(tokenizer))


def shrink(config: Config) -> None:
    """The same traits, hardly any size."""
    text, vision = config["text_config"], config["vision_config"]
    text |= {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 12, "num_attention_heads": 4}
    text |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": TINY_VOCAB_SIZE, "max_position_embeddings": 8192}
    if "layer_types" in text:
        text |= {"layer_types": pattern(5, 12), "global_head_dim": 32, "num_kv_shared_layers": 5}
        text |= {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": TINY_VOCAB_SIZE}
    vision |= {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"head_dim": 16, "num_key_value_heads": 2} if "layer_types" in text else {}


def summary(result: dict[str, Any]) -> str:
    failed = f" ({result['failed']} FAILED)" if result["failed"] else ""
    return f"TTFT {result['mean_ttft_ms']:.1f} ms, {result['request_throughput']:.2f} req/s{failed}"


def show(model: str, result: dict[str, Any]) -> None:
    parts = result["parts"]
    table = Table(title=f"{model}: a picture of {IMAGE_SIZE}, {parts['num_soft_tokens']:.0f} soft tokens")
    for column in ("c", "tokens", "TTFT", "req/s", "TTFT of text", "req/s of text", "allowed TTFT"):
        table.add_column(column, justify="right")
    for concurrency, measured in result["loads"].items():
        pictures, text = measured["pictures"], measured["text"]
        beside = measured["told"]["preparing"] + parts["captured_tower_ms"]
        allowed = f"{beside + 1.1 * text['mean_ttft_ms']:.1f}" if int(concurrency) == 1 else ""
        ttfts = (f"{each['mean_ttft_ms']:.1f}" for each in (pictures, text))
        rates = (f"{each['request_throughput']:.2f}" for each in (pictures, text))
        columns = [column for pair in zip(ttfts, rates, strict=True) for column in pair]
        table.add_row(str(concurrency), str(measured["num_tokens"]), *columns, allowed)
    console = Console(width=120)
    console.print(table)
    console.print(
        f"preprocessing {parts['preprocessing_ms']:.2f} ms, tower {parts['tower_ms']:.2f} ms, captured "
        f"{parts['captured_tower_ms']:.2f} ms"
    )
    for company, measured in result["streams"].items():
        streams = measured["streams"]
        console.print(
            f"streams beside {company}: gaps of {streams['median_itl_ms']:.1f} ms, p99 {streams['p99_itl_ms']:.1f} ms, "
            f"longest {streams['p100_itl_ms']:.1f} ms; {summary(measured['company'])}"
        )


if __name__ == "__main__":
    main()
