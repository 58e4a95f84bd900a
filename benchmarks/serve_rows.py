"""The loads of `benchmarks/h200.md`: which server, which requests, which figures, vLLM's own, and what we aim at."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Server:
    model: str
    max_model_len: int
    flags: tuple[str, ...] = ("--skip-tokenizer-init",)
    has_tokenizer: bool = False  # the bundled model's: grammars are matched against its tokens

    @property
    def title(self) -> str:
        """The model, and the flags that other servers of it have not."""
        return " ".join((self.model, *(flag for flag in self.flags if flag != "--skip-tokenizer-init")))


@dataclass(frozen=True)
class Figure:
    """One result of a load. `vllm` was measured with 0.26.0 on the same kind of card."""

    key: str  # in the result file of `facet bench serve`
    unit: str
    vllm: float | None = None
    target: float | None = None
    unit_scale: float = 1.0  # of the file's numbers

    @property
    def more_is_better(self) -> bool:
        return self.key.endswith("throughput")

    def of(self, result: Mapping[str, Any]) -> float:
        return float(result[self.key]) * self.unit_scale

    def meets(self, value: float) -> bool:
        assert self.target is not None
        return value >= self.target if self.more_is_better else value <= self.target

    def written(self, value: float) -> str:
        digits = 0 if value >= 100 else 1 if value >= 20 else 2
        return f"{value:,.{digits}f}"


@dataclass(frozen=True)
class Row:
    name: str
    server: Server
    input_len: int
    output_len: int
    concurrency: int
    num_prompts: int
    figures: tuple[Figure, ...]
    num_warmups: int = 2
    extra_body: Mapping[str, Any] | None = None
    title: str = ""  # where lengths and concurrency do not say it all

    @property
    def load(self) -> str:
        load = f"{self.input_len}/{self.output_len}, c={self.concurrency}"
        return f"{load}, {self.title}" if self.title else load


def requests(vllm: float | None = None, target: float | None = None) -> Figure:
    return Figure("request_throughput", "req/s", vllm, target)


def tokens(vllm: float | None = None, target: float | None = None) -> Figure:
    return Figure("output_throughput", "tok/s", vllm, target)


def ttft(vllm: float | None = None, target: float | None = None) -> Figure:
    return Figure("mean_ttft_ms", "ms TTFT", vllm, target)


def ttft_seconds(vllm: float | None = None, target: float | None = None) -> Figure:
    return Figure("mean_ttft_ms", "s TTFT", vllm, target, 1e-3)


def tpot(vllm: float | None = None, target: float | None = None) -> Figure:
    return Figure("mean_tpot_ms", "ms TPOT", vllm, target)


def duration(vllm: float | None = None, target: float | None = None) -> Figure:
    return Figure("duration", "s in all", vllm, target)


E2B = Server("Gemma 4 E2B", 9216)
E4B = Server("Gemma 4 E4B", 9216)
E4B_ALL = Server("Gemma 4 E4B", 9216, ("--skip-tokenizer-init", "--no-kv-sharing-fast-prefill"))
E4B_WITH_TOKENIZER = Server("Gemma 4 E4B", 9216, (), has_tokenizer=True)
MIDDLE = Server("Gemma 4 12B", 9216)
SPARSE = Server("Gemma 4 26B-A4B", 9216)
LARGE = Server("Gemma 4 31B", 131_072)
GEMMA_3_12B = Server("Gemma 3 12B", 9216)
GEMMA_3_27B = Server("Gemma 3 27B", 9216)
GEMMA_3N = Server("Gemma 3n E4B", 9216)
# A list of numbers that is longer than any answer: every token is chosen under a mask, and none ends the answer.
ENDLESS_JSON = {"structured_outputs": {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 100_000}}}
ALL = "without fast prefill"

ROWS = (
    Row("e2b-8k-c8", E2B, 8192, 150, 8, 48, (requests(), ttft(), tpot())),
    Row("e2b-c1", E2B, 512, 512, 1, 6, (ttft(), tpot())),
    Row("e2b-c100", E2B, 512, 512, 100, 300, (tokens(), tpot()), 8),
    Row("e4b-8k-c8", E4B, 8192, 150, 8, 48, (requests(5.58, 7.2), ttft(445), tpot(6.62))),
    Row("e4b-8k-c32", E4B, 8192, 150, 32, 192, (requests(9.28, 11.2), ttft(731), tpot(18.1)), 8),
    Row("e4b-c1", E4B, 512, 512, 1, 6, (ttft(53), tpot(4.91, 2.8))),
    Row("e4b-c100", E4B, 512, 512, 100, 300, (tokens(11_133, 15_000), tpot(8.38)), 8),
    Row("e4b-8k-c8-all-rows", E4B_ALL, 8192, 150, 8, 48, (requests(4.60, 5.4), ttft(647), tpot()), title=ALL),
    Row("e4b-8k-c32-all-rows", E4B_ALL, 8192, 150, 32, 192, (requests(6.81, 7.3), ttft(1079), tpot()), 8, title=ALL),
    Row("e4b-json-c8", E4B_WITH_TOKENIZER, 512, 256, 8, 48, (tokens(), tpot()), 2, ENDLESS_JSON, "JSON of a schema"),
    Row("12b-c1", MIDDLE, 512, 256, 1, 6, (ttft(), tpot())),
    Row("12b-2k-c32", MIDDLE, 2048, 256, 32, 64, (tokens(), tpot())),
    Row("26b-c1", SPARSE, 512, 256, 1, 6, (ttft(), tpot(4.30))),
    Row("26b-c32", SPARSE, 512, 256, 32, 192, (tokens(2033, 2300), tpot()), 8),
    Row("26b-2k-c100", SPARSE, 2048, 256, 100, 200, (tokens(2886), tpot()), 8),
    Row("26b-8k-c8", SPARSE, 8192, 150, 8, 48, (requests(3.34, 4.0), ttft(716), tpot(11.2))),
    Row("31b-c1", LARGE, 512, 256, 1, 6, (ttft(), tpot(17.7, 16.0))),
    Row("31b-2k-c32", LARGE, 2048, 256, 32, 64, (tokens(655, 700), tpot())),
    Row("31b-64k-c1", LARGE, 65536, 128, 1, 2, (ttft_seconds(10.65, 8.7), tpot(18.4, 16.7)), 1),
    Row("31b-64k-c4", LARGE, 65536, 128, 4, 8, (duration(88.2, 75), tpot(147, 120)), 0),
    Row("3-12b-c1", GEMMA_3_12B, 512, 256, 1, 6, (ttft(), tpot())),
    Row("3-12b-2k-c32", GEMMA_3_12B, 2048, 256, 32, 64, (tokens(), tpot())),
    Row("3-27b-c1", GEMMA_3_27B, 512, 256, 1, 6, (ttft(), tpot())),
    Row("3-27b-2k-c32", GEMMA_3_27B, 2048, 256, 32, 64, (tokens(), tpot())),
    Row("3n-c1", GEMMA_3N, 512, 256, 1, 6, (ttft(), tpot())),
    Row("3n-c100", GEMMA_3N, 512, 256, 100, 300, (tokens(), tpot()), 8),
    Row("3n-8k-c8", GEMMA_3N, 8192, 150, 8, 48, (requests(), ttft(), tpot())),
)
BY_NAME = {row.name: row for row in ROWS}
