"""Times a token of one or several requests on a GPU, without HTTP, with random weights.

    python -m benchmarks.generate_gpu --model "Gemma 4 31B" --requests 32 --quantization int4 [--quantize-head]

Prompts have 512 tokens. The time of a token is the difference between answers of 264 tokens and answers of 8, so that
prompts do not count; it is measured three times.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from facet import LLM, SamplingParams
from facet.offline.prompts import TokensPrompt
from tests.published_configs import text_only

PROMPT_LEN, SHORT, LONG = 512, 8, 264

NVFP4 = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
        }
    },
    "ignore": ["lm_head"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Gemma 4 31B")
    parser.add_argument("--requests", type=int, default=1)
    parser.add_argument("--quantization", choices=("fp8", "int8", "int4", "nvfp4"))
    parser.add_argument("--quantize-head", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = text_only(options.model)
        is_stored = options.quantization == "nvfp4"  # in checkpoints alone
        if is_stored:
            config = {**config, "quantization_config": NVFP4}
        (Path(folder) / "config.json").write_text(json.dumps(config))
        started = time.perf_counter()
        llm = LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=2048,
            max_num_seqs=options.requests,
            max_num_batched_tokens=2048,
            enable_prefix_caching=False,
            quantization=None if is_stored else options.quantization,
            quantize_head=options.quantize_head,
            show_progress=False,
        )
        ready = time.perf_counter() - started
    prompts: list[TokensPrompt] = [
        {"prompt_token_ids": [(7 * place + 13 * request) % 1000 + 10 for place in range(PROMPT_LEN)]}
        for request in range(options.requests)
    ]

    def seconds(num_tokens: int) -> float:
        start = time.perf_counter()
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, temperature=0.0)
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start

    seconds(SHORT)
    times = [(seconds(LONG) - seconds(SHORT)) / (LONG - SHORT) * 1e3 for _ in range(3)]
    what = f"{options.model}, {options.quantization or 'bfloat16'}{', head too' if options.quantize_head else ''}"
    figures = " ".join(f"{each:.3f}" for each in times)
    print(f"{what}, {options.requests} requests: {figures} ms a token; ready after {ready:.1f} s")


if __name__ == "__main__":
    main()
