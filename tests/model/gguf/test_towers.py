"""A file of towers beside a GGUF file: pictures and sound as in the folder that both were made of."""

import json
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file
from torch import Tensor

from facet import LLM, SamplingParams
from facet.bundled_model import FOLDER
from facet.config import ModelConfig
from facet.errors import CheckpointError, ConfigError, UnsupportedModelError, UserError
from facet.layers.placement import Placement
from facet.media.spec_file import read_media_spec
from facet.model.config_fields import read_config_file
from facet.model.families import read_model_spec
from facet.model.gguf import folder
from facet.model.gguf.choosing import model_files, tower_files
from facet.model.gguf.scheme import GgufTensors
from facet.model.hub import folder_of, local_folder
from facet.model.sound_config import read_sound_spec
from facet.model.sound_weights import sound_targets
from facet.model.towers import FoundTowers, find_towers
from facet.model.vision_config import read_vision_spec
from facet.model.vision_weights import vision_targets
from facet.model.weight_files import find_weight_files, read_headers
from facet.progress import Silent
from tests.mobile_net_sample import CONFIG as MOBILE_NET
from tests.mobile_net_sample import random_weights
from tests.model.gguf.tower_writing import is_of_tower, softplus_and_back, stored_name, tower_file, tower_metadata
from tests.model.gguf.writing import model_file, tokenizer_metadata
from tests.published_configs import PUBLISHED
from tests.tiny_checkpoints import SHRUNK, random_tensors
from tests.tiny_models import VISION_NAMES, TinyModel
from tools.bundled_model.text_only import text_config, text_tensors

FLOAT32 = Placement(dtype=torch.float32, device=torch.device("cpu"))
TinyModels = Callable[[str], TinyModel]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def text_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the decoder alone."""
    architecture = str(config["architectures"][0]).replace("ForConditionalGeneration", "ForCausalLM")
    return {"architectures": [architecture], **config["text_config"]}


def write_model(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], **metadata: Any) -> Path:
    """The decoder of a checkpoint with towers, without a tokenizer."""
    path = folder / "model.gguf"
    decoder = {
        "model." + name.replace("language_model.", "").replace("model.", ""): tensor
        for name, tensor in tensors.items()
        if not is_of_tower(name)
    }
    path.write_bytes(model_file(text_of(config), decoder, lambda name: "F32", metadata)[0])
    return path


def write_both(folder: Path, tiny: TinyModel, name: str = "mmproj-F32.gguf", **changes: Any) -> Path:
    config = json.loads((tiny.folder / "config.json").read_text())
    tensors = load_file(tiny.folder / "model.safetensors")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(tower_file(config, tensors, config["text_config"]["hidden_size"], **changes))
    return write_model(folder, config, tensors)


def towers_of(folder: Path) -> FoundTowers:
    config = read_config_file(folder / "config.json")
    return find_towers(config, read_model_spec(config), read_headers(find_weight_files(folder)))


@pytest.mark.parametrize("name", VISION_NAMES)
def test_towers_are_those_of_the_folder(name: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    tiny = tiny_model(name)
    unfolded = local_folder(str(write_both(tmp_path, tiny)))
    ours, theirs = read_config_file(unfolded / "config.json"), read_config_file(tiny.folder / "config.json")
    model, expected = read_model_spec(ours), read_model_spec(theirs)
    assert read_vision_spec(ours, model.hidden_size) == read_vision_spec(theirs, model.hidden_size)
    assert read_sound_spec(ours, model) == read_sound_spec(theirs, expected)
    assert model.bidirectional_image_layers == expected.bidirectional_image_layers
    assert model.architecture == expected.architecture
    ids = {field: value for field, value in theirs.items() if "token" in field and field != "mm_tokens_per_image"}
    config = {**ours, **ids}
    (tmp_path / "checked").mkdir()
    (tmp_path / "checked" / "config.json").write_text(json.dumps(config))
    assert read_media_spec(tmp_path / "checked") == read_media_spec(tiny.folder)
    found, given = (towers_of(folder).load(FLOAT32, Silent()) for folder in (unfolded, tiny.folder))
    assert set(found) == set(given)
    for kind, tower in given.items():
        read = dict(found[kind].named_parameters())
        for place, values in tower.named_parameters():
            if place.endswith("dim_scale"):
                torch.testing.assert_close(read[place], softplus_and_back(values), rtol=1e-5, atol=1e-6)
            elif place == "output_norm.weight":
                torch.testing.assert_close(read[place], values, rtol=0, atol=2**-23)
            else:
                assert torch.equal(read[place], values), place


@pytest.mark.parametrize("type", ["Q8_0", "Q4_0", "F16", "BF16"])
def test_towers_in_fewer_bits_are_what_their_blocks_stand_for(
    type: str, tiny_model: TinyModels, tmp_path: Path
) -> None:
    tiny = tiny_model("e2b_mm_other")
    whole = towers_of(local_folder(str(write_both(tmp_path / "whole", tiny)))).load(FLOAT32, Silent())
    path = write_both(tmp_path / "few", tiny, type_of=lambda name: type)
    found = towers_of(local_folder(str(path))).load(FLOAT32, Silent())
    num_rounded = 0
    for kind, tower in whole.items():
        read = dict(found[kind].named_parameters())
        for place, values in tower.named_parameters():
            largest = float(values.abs().max()) if values.numel() else 0.0
            bound = {"Q8_0": 1 / 250, "Q4_0": 1 / 7, "F16": 2**-11, "BF16": 2**-8}[type]
            assert (read[place] - values).abs().max() <= bound * largest + 1e-7, place
            num_rounded += not torch.equal(read[place], values)
    assert num_rounded > 20


def gemma3n() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Towers of a few channels."""
    audio = dict(hidden_size=32, conf_num_hidden_layers=2, conf_num_attention_heads=2, input_feat_size=32)
    audio |= dict(vocab_size=16, vocab_offset=496, sscp_conv_channel_size=[16, 8])
    text = {**SHRUNK["Gemma 3n E4B"], "vocab_size": 512}
    vision = {**MOBILE_NET["vision_config"], "vocab_offset": 480}  # type: ignore[dict-item]
    config = {
        "architectures": ["Gemma3nForConditionalGeneration"],
        "model_type": "gemma3n",
        "text_config": text,
        "vision_config": vision,
        "audio_config": audio,
    }
    spec = read_vision_spec(config, int(text["hidden_size"]))
    assert spec is not None
    sound = read_sound_spec(config, read_model_spec(config))
    assert sound is not None
    generator = torch.Generator().manual_seed(3)
    heard = {target.name: torch.randn(target.shape, generator=generator) for target in sound_targets(sound)}
    return config, {**random_weights(spec), **heard}


def test_both_towers_of_gemma_3n(tmp_path: Path) -> None:
    config, tensors = gemma3n()
    written = GgufTensors(write_gemma3n(tmp_path, config, tensors))
    shapes = {header.name: header.shape for header in written.headers()}
    assert shapes == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        assert torch.equal(written.read(name, None), tensor), name
    # A network of few channels is not what a file can say; all else is.
    folder = local_folder(str(write_decoder(tmp_path, config)))
    got = read_config_file(folder / "config.json")
    assert read_sound_spec(got, read_model_spec(got)) == read_sound_spec(config, read_model_spec(config))
    narrow = {**got["vision_config"], "model_args": {"channel_multiplier": 0.0125}}
    width = read_model_spec(got).hidden_size
    assert read_vision_spec({**got, "vision_config": narrow}, width) == read_vision_spec(config, width)


def test_gemma_3n_does_not_hear_with_half_a_tower(tmp_path: Path) -> None:
    """Files that llama.cpp wrote for a time lack two norms of it."""
    config, tensors = gemma3n()
    write_gemma3n(tmp_path, config, {name: tensor for name, tensor in tensors.items() if "_0.norm" not in name})
    got = read_config_file(local_folder(str(write_decoder(tmp_path, config))) / "config.json")
    assert "audio_config" not in got
    assert got["vision_config"]["vocab_offset"] == 512 - 128 - 16


def write_gemma3n(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    path = folder / "mmproj-model.gguf"
    path.write_bytes(tower_file(config, tensors, config["text_config"]["hidden_size"]))
    return path


def write_decoder(folder: Path, config: Mapping[str, Any]) -> Path:
    return write_model(folder, config, random_tensors(dict(text_of(config))))


@pytest.mark.parametrize("name", ["Gemma 4 E4B", "Gemma 4 31B", "Gemma 4 12B", "Gemma 3 27B", "Gemma 3n E4B"])
def test_every_tensor_of_a_published_tower_has_a_name(name: str) -> None:
    """No two of them the same, and read back as they were."""
    config = PUBLISHED[name]
    spec = read_model_spec(config)
    vision, sound = read_vision_spec(config, spec.hidden_size), read_sound_spec(config, spec)
    names = [] if vision is None else [target.name for target in vision_targets(vision)]
    names += [] if sound is None else [target.name for target in sound_targets(sound)]
    assert names
    theirs = [stored_name(name, str(config["model_type"])) for name in names]
    assert len(set(theirs)) == len(theirs)
    assert all(name.startswith(("v.", "a.", "mm.")) for name in theirs)


def test_early_files_of_gemma_3(tiny_model: TinyModels, tmp_path: Path) -> None:
    """They call the matrices of an MLP by each other's name."""
    tiny = tiny_model("gemma3_mm")
    write_both(tmp_path, tiny)
    tensors = {
        name.replace("fc1", "fc9").replace("fc2", "fc1").replace("fc9", "fc2"): tensor
        for name, tensor in load_file(tiny.folder / "model.safetensors").items()
    }
    config = json.loads((tiny.folder / "config.json").read_text())
    (tmp_path / "mmproj-F32.gguf").write_bytes(tower_file(config, tensors, config["text_config"]["hidden_size"]))
    swapped = towers_of(local_folder(str(tmp_path / "model.gguf"))).load(FLOAT32, Silent())["image"]
    plain = towers_of(tiny.folder).load(FLOAT32, Silent())["image"]
    for (place, ours), theirs in zip(swapped.named_parameters(), plain.parameters(), strict=True):
        if place != "output_norm.weight":
            assert torch.equal(ours, theirs), place


class TestChoosing:
    def test_files_of_towers_are_no_models(self) -> None:
        names = ["mmproj-F16.gguf", "m-Q4_0.gguf", "m-mmproj-bf16.gguf", "mmproj-m-Q8_0.gguf", "mmproj.gguf"]
        assert model_files(names) == ["m-Q4_0.gguf"]
        assert tower_files(names) == ["m-mmproj-bf16.gguf", "mmproj-F16.gguf", "mmproj-m-Q8_0.gguf", "mmproj.gguf"]

    def test_those_of_another_model_are_passed_over(self, tiny_model: TinyModels, tmp_path: Path) -> None:
        path = write_both(tmp_path, tiny_model("gemma4_e2b_mm"))
        other = json.loads((tiny_model("gemma3_mm").folder / "config.json").read_text())
        tensors = load_file(tiny_model("gemma3_mm").folder / "model.safetensors")
        (tmp_path / "mmproj-BF16.gguf").write_bytes(tower_file(other, tensors, 96))  # of the same width
        (tmp_path / "mmproj-F16.gguf").write_bytes(b"GGUF, but damaged")
        assert (local_folder(str(path)) / "mmproj.gguf").resolve() == (tmp_path / "mmproj-F32.gguf").resolve()

    def test_what_lies_beside_is_looked_at_once(
        self, tiny_model: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write_both(tmp_path, tiny_model("gemma4_e2b_mm"), name="vision.gguf")
        other = json.loads((tiny_model("gemma3_mm").folder / "config.json").read_text())
        misfit = tmp_path / "mmproj-F16.gguf"
        misfit.write_bytes(tower_file(other, load_file(tiny_model("gemma3_mm").folder / "model.safetensors"), 96))
        alone = local_folder(str(path))
        assert "vision_config" not in read_config_file(alone / "config.json")
        with monkeypatch.context() as patch:
            patch.setattr(folder, "Gguf", None)
            assert local_folder(str(path)) == alone
        with pytest.raises(CheckpointError, match="holds towers of another model"):
            local_folder(str(path), towers=str(misfit))
        (tmp_path / "vision.gguf").rename(tmp_path / "mmproj-F32.gguf")
        assert towers_of(local_folder(str(path))).towers, "a file that came later"

    def test_a_model_without_them(self, tiny_model: TinyModels, tmp_path: Path) -> None:
        path = write_both(tmp_path, tiny_model("gemma4_e2b_mm"))
        config = ModelConfig(model=str(path))
        assert "vision_config" in read_config_file(folder_of(config) / "config.json")
        alone = folder_of(replace(config, language_model_only=True))
        assert "vision_config" not in read_config_file(alone / "config.json")
        assert len(find_weight_files(alone)) == 1

    def test_the_file_that_was_named(self, tiny_model: TinyModels, tmp_path: Path) -> None:
        path = write_both(tmp_path, tiny_model("gemma4_e2b_mm"), name="vision.gguf")
        assert "vision_config" not in read_config_file(local_folder(str(path)) / "config.json")
        folder = folder_of(ModelConfig(model=str(path), mmproj=str(tmp_path / "vision.gguf")))
        assert towers_of(folder).towers
        assert local_folder(str(folder)) == folder, "what was unfolded is a model with its towers"

    def test_one_that_does_not_fit(self, tiny_model: TinyModels, tmp_path: Path) -> None:
        path = write_both(tmp_path / "small", tiny_model("gemma4_e2b_mm"))
        write_both(tmp_path / "large", tiny_model("gemma4_31b_mm"))
        other = tmp_path / "large" / "mmproj-F32.gguf"
        with pytest.raises(CheckpointError, match=r"another model: 'gemma4v', for rows of 128 numbers.* gemma4, .* 96"):
            local_folder(str(path), towers=str(other))
        with pytest.raises(
            UnsupportedModelError, match=r"towers for pictures and sound alone\. Name the file of its model"
        ):
            local_folder(str(other))
        with pytest.raises(CheckpointError, match=r"holds no towers .* but a model of 'gemma4'"):
            local_folder(str(path), towers=str(path))
        with pytest.raises(ConfigError, match="--mmproj names '/nowhere', which is no file"):
            local_folder(str(path), towers="/nowhere")
        with pytest.raises(ConfigError, match="is no GGUF file: its towers are its own"):
            local_folder(str(tiny_model("gemma4_e2b_mm").folder), towers=str(other))


def rename(tokens: list[str], names: Mapping[str, str]) -> list[int]:
    """Their ids."""
    ids = [tokens.index(name) for name in names]
    for token_id, name in zip(ids, names.values(), strict=True):
        tokens[token_id] = name
    return ids


class TestBadFiles:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"vision.block_count": None}, r"clip\.vision\.block_count is missing"),
            ({"vision.embedding_length": "wide"}, r"clip\.vision\.embedding_length is 'wide', but must be"),
            ({"audio.attention.head_count": 0}, r"clip\.audio\.attention\.head_count is 0, but must be"),
            ({"vision.projection_dim": 95}, "rows of 95 numbers"),
        ],
    )
    def test_metadata(self, changes: dict[str, Any], message: str, tiny_model: TinyModels, tmp_path: Path) -> None:
        path = write_both(tmp_path, tiny_model("gemma4_e2b_mm"), **changes)
        with pytest.raises((CheckpointError, ConfigError), match=message):
            local_folder(str(path), towers=str(tmp_path / "mmproj-F32.gguf"))

    def test_a_tensor_that_is_missing(self, tiny_model: TinyModels, tmp_path: Path) -> None:
        path = write_both(tmp_path, tiny_model("gemma4_e2b_mm"))
        data = (tmp_path / "mmproj-F32.gguf").read_bytes()
        (tmp_path / "mmproj-F32.gguf").write_bytes(data.replace(b"v.position_embd", b"v.position_xxxx"))
        with pytest.raises(CheckpointError, match=r"has no v\.position_embd\.weight: a part of it is missing"):
            local_folder(str(path))

    def test_a_tensor_that_nobody_knows(self, tiny_model: TinyModels, tmp_path: Path) -> None:
        path = write_both(tmp_path, tiny_model("gemma4_e2b_mm"))
        data = (tmp_path / "mmproj-F32.gguf").read_bytes()
        (tmp_path / "mmproj-F32.gguf").write_bytes(data.replace(b"v.blk.1.ln1", b"v.blk.1.xx1"))
        with pytest.raises(CheckpointError, match=r"1 missing: .*1\.input_layernorm.*1 unexpected: .*v\.blk\.1\.xx1"):
            towers_of(local_folder(str(path)))

    def test_a_bound_that_is_no_number(self, tiny_model: TinyModels, tmp_path: Path) -> None:
        tiny = tiny_model("gemma4_e2b_mm")
        config = json.loads((tiny.folder / "config.json").read_text())
        tensors = load_file(tiny.folder / "model.safetensors")
        (wrong,) = (name for name in tensors if name.endswith("vision_tower.encoder.layers.1.mlp.up_proj.input_max"))
        path = write_model(tmp_path, config, tensors)
        towers = tower_file(config, {**tensors, wrong: torch.ones(2)}, config["text_config"]["hidden_size"])
        (tmp_path / "mmproj.gguf").write_bytes(towers)
        with pytest.raises(CheckpointError, match=r"of another shape: .*up_proj\.input_max \[2\] instead of \[\]"):
            towers_of(local_folder(str(path)))

    def test_a_vocabulary_without_tokens_for_pictures(self, tiny_model: TinyModels, tmp_path: Path) -> None:
        tiny = tiny_model("gemma3_mm")
        write_both(tmp_path, tiny)
        config = json.loads((tiny.folder / "config.json").read_text())
        tensors = load_file(tiny.folder / "model.safetensors")
        metadata = tokenizer_metadata(FOLDER)
        rename(metadata["tokenizer.ggml.tokens"], {"<|image>": "<a>"})
        path = write_model(tmp_path, config, tensors, **metadata)
        with pytest.raises(CheckpointError, match=r"has no token boi.*--language-model-only"):
            local_folder(str(path))
        alone = folder_of(ModelConfig(model=str(path), language_model_only=True))
        assert "vision_config" not in read_config_file(alone / "config.json")

    def test_gemma_3_files_end_before_their_own_placeholder(self, tiny_model: TinyModels, tmp_path: Path) -> None:
        """Those that Google published: an unused token takes its place."""
        tiny = tiny_model("gemma3_mm")
        write_both(tmp_path, tiny)
        config = json.loads((tiny.folder / "config.json").read_text())
        metadata = tokenizer_metadata(FOLDER)
        names = {"<|image>": "<start_of_image>", "<image|>": "<end_of_image>", "<|image|>": "<unused7>"}
        first, last, unused = rename(metadata["tokenizer.ggml.tokens"], names)
        path = write_model(tmp_path, config, load_file(tiny.folder / "model.safetensors"), **metadata)
        spec = read_media_spec(local_folder(str(path)))
        assert spec.pictures is not None
        tokens_of = spec.pictures.tokens
        assert (tokens_of.begin, tokens_of.end, tokens_of.soft) == (first, last, unused)


@pytest.mark.parametrize("name", ["gemma4_e2b_mm", "gemma4_12b_mm", "gemma3_mm"])
def test_whatever_a_file_says_the_answer_is_a_line(name: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    """Numbers and shapes that no tower has: read, or refused with words."""
    tiny, choose = tiny_model(name), random.Random(4)
    config = json.loads((tiny.folder / "config.json").read_text())
    tensors, width = load_file(tiny.folder / "model.safetensors"), int(config["text_config"]["hidden_size"])
    path, towers = write_model(tmp_path, config, tensors), tmp_path / "towers.gguf"
    said = [key.removeprefix("clip.") for key in tower_metadata(config, width) if key.startswith("clip.")]
    values = ("x", 0, -1, 7, 2**31, [1], 1e30, True, None)
    files = [tower_file(config, tensors, width, **{choose.choice(said): choose.choice(values)}) for _ in range(20)]
    shapes = ((3,), (2, 2), (1, 1, 1, 1), (3, 3, 3))
    own = [each for each in tensors if is_of_tower(each) and tensors[each].ndim < 2 and "patch_ln1" not in each]
    files += [
        tower_file(config, {**tensors, choose.choice(own): torch.ones(choose.choice(shapes))}, width) for _ in range(20)
    ]
    num_refused = 0
    for index, data in enumerate(files):
        towers.write_bytes(data)
        os.utime(towers, ns=(index, index))
        try:
            folder = local_folder(str(path), towers=str(towers))
            towers_of(folder).load(FLOAT32, Silent())
            read_media_spec(folder)
        except UserError:
            num_refused += 1
    assert 20 < num_refused <= 40


def test_the_bundled_model_sees_what_its_folder_sees(tmp_path: Path) -> None:
    """Config, tokenizer and template from one file, towers from the other."""
    config = json.loads((FOLDER / "config.json").read_text())
    tensors = load_file(FOLDER / "model.safetensors")
    data, _ = model_file(text_config(FOLDER), text_tensors(FOLDER), lambda name: "F16", tokenizer_metadata(FOLDER))
    (tmp_path / "facet.gguf").write_bytes(data)
    towers = tower_file(config, tensors, config["text_config"]["hidden_size"], lambda name: "F16")
    (tmp_path / "mmproj-facet-F16.gguf").write_bytes(towers)
    picture = Image.new("RGB", (240, 160), "white")
    ImageDraw.Draw(picture).ellipse((80, 40, 160, 120), fill="red")
    question = [{"type": "image", "image": picture}, "What is this?"]
    llm = LLM(
        model=str(tmp_path / "facet.gguf"),
        device="cpu",
        dtype="float32",
        max_model_len=1024,
        mm_processor_kwargs={"max_soft_tokens": 140},  # a file of towers does not say how many are usual
    )
    (answer,) = llm.chat([{"role": "user", "content": question}], SamplingParams(temperature=0, max_tokens=32))
    assert answer.outputs[0].text == "A red circle."
