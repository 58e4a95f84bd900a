"""Pictures through the engine in Gemma 3n: the tower's rows, and tokens around them whose embeddings the tower has."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from facet.config import ModelConfig
from facet.model.loader import load_model
from facet.model.vision_config import read_vision_spec
from facet.request import Request
from facet.sampling_params import WHOLE_VOCABULARY, SamplingParams
from tests.engine.harness import run
from tests.engine.test_media import assert_close
from tests.engine.test_pictures import engine_of, logprobs_of, prepared
from tests.mobile_net_sample import CONFIG, random_picture, random_weights
from tests.tiny_models import spec_script

BEGIN, SOFT, END = 470, 485, 484
TABLE_IDS = range(484, 500)


def test_every_position_is_that_of_transformers(tmp_path: Path) -> None:
    """Given the rows, which tests/model/test_mobile_net.py compares with timm's."""
    import transformers

    script = spec_script()
    text = {**script.MODELS["gemma3n"][1], "vocab_size_per_layer_input": TABLE_IDS.start}
    oracle = transformers.Gemma3nForCausalLM(transformers.Gemma3nTextConfig(**text)).float()
    script.fill_weights(oracle, 72, False)
    script.eager(oracle)
    vision = {**CONFIG["vision_config"], "vocab_offset": TABLE_IDS.start, "vocab_size": len(TABLE_IDS)}  # type: ignore[dict-item]
    config = {
        "architectures": ["Gemma3nForConditionalGeneration"],
        "model_type": "gemma3n",
        "dtype": "float32",
        "text_config": text,
        "vision_config": vision,
        "boi_token_id": BEGIN,
        "image_token_id": SOFT,
        "eoi_token_id": END,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = read_vision_spec(config, text["hidden_size"])
    assert spec is not None
    tensors = {f"model.{name}": tensor for name, tensor in random_weights(spec).items()}
    tensors |= {f"model.language_model.{name}": tensor for name, tensor in oracle.model.state_dict().items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    loaded = load_model(ModelConfig(model=str(tmp_path), device="cpu", max_model_len=512))

    picture = {"pixels": random_picture()}
    item = prepared(picture, loaded)
    before = [2, *range(20, 30), BEGIN]
    sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=WHOLE_VOCABULARY)
    request = Request(
        request_id="x",
        prompt_token_ids=(*before, *[SOFT] * item.num_tokens, END, 7, 8),
        sampling=sampling,
        media=(item.span(len(before)),),
        contents=(item,),
    )
    ids = torch.tensor(request.prompt_token_ids)
    in_table = torch.isin(ids, torch.tensor(TABLE_IDS))
    tower = loaded.towers["image"]
    with torch.no_grad():
        embeddings = oracle.model.embed_tokens(ids)
        embeddings[in_table] = tower.embedder.look_up(ids[in_table] - TABLE_IDS.start)
        (embeddings[len(before) : len(before) + item.num_tokens],) = tower([picture])
        per_layer = oracle.model.get_per_layer_inputs(torch.where(in_table, 0, ids)[None])
        logits = oracle(inputs_embeds=embeddings[None], per_layer_inputs=per_layer, use_cache=False).logits[0]
    expected = torch.log_softmax(logits, dim=-1)
    engine = engine_of(loaded, max_num_batched_tokens=100)
    assert_close(logprobs_of(run(engine, [request])["x"], loaded.spec.vocab_size), expected[:-1])
    assert set(TABLE_IDS) <= set(loaded.spec.media_token_ids), "what only towers embed is never sampled"
