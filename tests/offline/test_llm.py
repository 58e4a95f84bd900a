"""`facet.LLM`: the shapes it takes, the shapes it returns, and the text it makes of tokens."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import facet
from facet import LLM, ConfigError, RequestError, SamplingParams, StructuredOutputsParams
from tests.offline.conftest import GREEDY, make_llm


def test_a_prompt_may_come_in_any_shape(llm: LLM) -> None:
    text = "The weather in Paris"
    ids = llm.get_tokenizer().encode(text)
    shapes = [text, [text], ids, {"prompt": text}, {"prompt_token_ids": ids}, [{"prompt_token_ids": ids}]]
    results = [llm.generate(shape, GREEDY)[0] for shape in shapes]  # type: ignore[arg-type]
    assert {tuple(result.outputs[0].token_ids) for result in results} == {tuple(results[0].outputs[0].token_ids)}
    assert all(result.prompt_token_ids == ids for result in results)
    assert [result.prompt for result in results] == [text, text, None, text, None, None]


def test_what_an_output_holds(llm: LLM) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True, logprobs=2, prompt_logprobs=1)
    (result,) = llm.generate("one two three", sampling)
    (output,) = result.outputs
    assert result.finished
    assert (output.finish_reason, len(output.token_ids)) == ("length", 5)
    assert output.text == llm.get_tokenizer().decode(output.token_ids, skip_special_tokens=True)
    assert output.logprobs is not None
    assert [next(iter(position)) for position in output.logprobs] == output.token_ids
    best = output.logprobs[0][output.token_ids[0]]
    assert best.rank == 1
    assert best.decoded_token == llm.get_tokenizer().decode(output.token_ids[0])
    assert output.cumulative_logprob == pytest.approx(
        sum(position[token].logprob for token, position in zip(output.token_ids, output.logprobs, strict=True))
    )
    assert result.prompt_logprobs is not None
    assert len(result.prompt_logprobs) == len(result.prompt_token_ids)
    assert result.prompt_logprobs[0] is None
    for token, position in zip(result.prompt_token_ids[1:], result.prompt_logprobs[1:], strict=True):
        assert position is not None
        assert token in position


def test_tokens_of_media_are_never_sampled(llm: LLM, folder: Path, tmp_path: Path) -> None:
    prompt = "The weather in Paris"
    (usual,) = llm.generate(prompt, GREEDY)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    media = sorted(set(usual.outputs[0].token_ids))
    config |= dict(zip(("image_token_id", "boi_token_index", "eoi_token_index", "audio_token_id"), media, strict=False))
    (tmp_path / "config.json").write_text(json.dumps(config))
    other = LLM(str(tmp_path), device="cpu", max_model_len=512, kv_cache_memory_bytes=8 << 20, show_progress=False)
    (result,) = other.generate(prompt, replace(GREEDY, max_tokens=64))
    other.close()
    assert not set(media[:4]) & set(result.outputs[0].token_ids)


def test_many_prompts_come_back_in_order_each_as_if_alone(llm: LLM) -> None:
    texts = [f"one two {'three ' * index}four" for index in range(12)]
    together = llm.generate(texts, GREEDY)
    assert [result.prompt for result in together] == texts
    for text, result in zip(texts, together, strict=True):
        assert llm.generate(text, GREEDY)[0].outputs[0].token_ids == result.outputs[0].token_ids


def test_several_answers_to_one_prompt(llm: LLM) -> None:
    sampling = SamplingParams(n=3, temperature=1.0, max_tokens=8, seed=7, ignore_eos=True, prompt_logprobs=0)
    (result,) = llm.generate("one two", sampling)
    answers = [output.token_ids for output in result.outputs]
    assert [output.index for output in result.outputs] == [0, 1, 2]
    assert len({tuple(answer) for answer in answers}) == 3
    assert answers == [output.token_ids for output in llm.generate("one two", sampling)[0].outputs]
    assert result.prompt_logprobs is not None
    assert len(result.prompt_logprobs) == len(result.prompt_token_ids)


def test_cached_tokens_are_those_that_the_first_answer_found(folder: Path) -> None:
    with make_llm(folder, max_num_seqs=1) as llm:  # one after the other: the second finds the first one's prompt
        sampling = SamplingParams(n=2, max_tokens=2, ignore_eos=True)
        counts = [llm.generate({"prompt_token_ids": [*range(40, 80)]}, sampling)[0].num_cached_tokens for _ in range(2)]
    assert counts == [0, 39]


def test_stop_strings_end_text_and_request(llm: LLM) -> None:
    whole = llm.generate("one", GREEDY)[0].outputs[0].text
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    before, steps = whole[: whole.index(stop)], llm.stats().num_sampled_tokens
    cut = llm.generate("one", SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True, stop=stop,
                                             skip_special_tokens=False))[0].outputs[0]  # fmt: skip
    assert (cut.text, cut.finish_reason, cut.stop_reason) == (before, "stop", stop)
    assert llm.stats().num_sampled_tokens - steps < 30
    kept = SamplingParams(
        temperature=0.0,
        max_tokens=8,
        ignore_eos=True,
        stop=stop,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
    )
    assert llm.generate("one", kept)[0].outputs[0].text == before + stop


def test_bad_words_do_not_appear(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    words = {token: tokenizer.decode([token]) for token in range(300, tokenizer.vocab_size)}
    token, word = next(
        (token, word)
        for token, word in words.items()
        if word.isalpha() and tokenizer.encode(word, add_special_tokens=False) == [token]
    )
    wanted = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logit_bias={token: 100.0})
    assert llm.generate("two", wanted)[0].outputs[0].token_ids == [token] * 4
    assert token not in llm.generate("two", replace(wanted, bad_words=[word]))[0].outputs[0].token_ids


def test_chat_renders_the_models_own_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "one two"}]
    (result,) = llm.chat(messages, GREEDY)
    assert result.prompt == "<|turn>user\none two<turn|>\n<|turn>model"
    (output,) = result.outputs
    assert output.reply is not None
    assert output.reply.content == output.text
    assert replace(output, reply=None) == llm.generate(result.prompt_token_ids, GREEDY)[0].outputs[0]
    assert len(llm.chat([messages, messages], GREEDY)) == 2


def test_answers_keep_to_their_form(llm: LLM) -> None:
    def params(**form: Any) -> SamplingParams:
        return SamplingParams(seed=3, max_tokens=64, structured_outputs=StructuredOutputsParams(**form))

    messages = [{"role": "user", "content": "one two"}]
    chosen, matched = llm.generate(["one", "two"], [params(choice=["Paris", "wind"]), params(regex="[ab]{3}")])
    assert chosen.outputs[0].text in ("Paris", "wind")
    assert re.fullmatch("[ab]{3}", matched.outputs[0].text)
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    (as_schema,) = llm.chat(messages, params(json=schema))
    (as_format,) = llm.chat(
        messages,
        SamplingParams(seed=3, max_tokens=64),
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    )
    for result in (as_schema, as_format):
        reply = result.outputs[0].reply
        assert reply is not None
        assert json.loads(reply.content or "")["a"] in (1, 2)
    assert as_schema.outputs == as_format.outputs


def test_defaults_are_those_of_the_models_authors(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text(
        '{"temperature": 0.7, "top_k": 64, "top_p": 0.95, "eos_token_id": [1, 16], "do_sample": true}'
    )
    llm = LLM(str(tmp_path), device="cpu", max_model_len=256, kv_cache_memory_bytes=8 << 20, show_progress=False)
    defaults = llm.get_default_sampling_params()
    assert (defaults.temperature, defaults.top_k, defaults.top_p) == (0.7, 64, 0.95)


def test_one_bad_prompt_is_an_error_and_the_next_call_works(llm: LLM) -> None:
    with pytest.raises(RequestError, match="prompt is empty"):
        llm.generate([[2, 3], []], GREEDY)
    with pytest.raises(RequestError, match="2 sampling settings for 1 prompts"):
        llm.generate("one", [GREEDY, GREEDY])
    with pytest.raises(RequestError, match="maximum context length is 512"):
        llm.generate([[5] * 600], GREEDY)
    with pytest.raises(RequestError, match="'image'"):
        llm.generate({"image": "x"}, GREEDY)  # type: ignore[arg-type]
    assert len(llm.generate("one", GREEDY)[0].outputs[0].token_ids) == 8
    assert llm.stats().num_running == llm.stats().num_waiting == 0


def test_an_engine_in_its_own_process_answers_alike(llm: LLM, remote: LLM) -> None:
    texts = ["one two", "three four five", "six"]
    assert [r.outputs for r in remote.generate(texts, GREEDY)] == [r.outputs for r in llm.generate(texts, GREEDY)]


def test_exported_names_are_true() -> None:
    assert all(hasattr(facet, name) for name in facet.__all__)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_modellen": 5}, "LLM has no setting 'max_modellen'. Did you mean 'max_model_len'?"),
        ({"zzz": 5}, "LLM has no setting 'zzz'. `facet serve --help` lists the settings."),
        ({"port": 5}, r"LLM has no setting 'port': it is for a server \(facet serve --port\)."),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2 is not possible"),
        ({"lora_modules": ["a"]}, "--lora-modules a names no path"),
        ({"lora_modules": "a=/x"}, "lora_modules is 'a=/x', but must be a list of texts"),
        ({"override_generation_config": {"temprature": 1}}, "temprature"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("facet.offline.llm.LocalEngine", lambda *_: pytest.fail("an engine was made"))
    with pytest.raises(facet.ConfigError, match=words):
        LLM("owner/name", **settings)


def test_settings_as_vllms_programs_have_them(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = dict(
        trust_remote_code=True, tensor_parallel_size=1, swap_space=4, disable_log_stats=True
    )
    with caplog.at_level("INFO", "facet"):
        llm = LLM(
            str(folder),
            device="cpu",
            max_model_len=-1,
            kv_cache_memory_bytes=8 << 20,
            show_progress=False,
            hf_overrides={"max_position_embeddings": 300},
            **settings,
        )
    assert len(llm.generate([[2] * 290], GREEDY)[0].outputs[0].token_ids) == 8
    with pytest.raises(RequestError, match="300"):
        llm.generate([[2] * 300], GREEDY)
    notes = [record.getMessage() for record in caplog.records if "has no effect" in record.getMessage()]
    assert notes == [
        "trust_remote_code=True has no effect: code from a checkpoint is never run.",
        "swap_space=4 has no effect: requests that must wait are computed again, not swapped.",
    ]


@pytest.mark.parametrize("separate_process", [False, True])
def test_a_model_sleeps_and_wakes_up(folder: Path, separate_process: bool) -> None:
    llm = LLM(
        str(folder),
        device="cpu",
        max_model_len=512,
        kv_cache_memory_bytes=8 << 20,
        show_progress=False,
        enable_sleep_mode=True,
        separate_process=separate_process,
    )
    try:
        expected = llm.generate("one two", GREEDY)[0].outputs[0].token_ids
        for level in (1, 2):
            llm.sleep(level)
            with pytest.raises(RequestError, match="The model is asleep"):
                llm.generate("one two", GREEDY)
            llm.wake_up()
            assert llm.generate("one two", GREEDY)[0].outputs[0].token_ids == expected
        with pytest.raises(ConfigError, match="no level 3"):
            llm.sleep(3)
    finally:
        llm.close()


def test_without_the_setting_a_model_does_not_sleep(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="does not sleep"):
        llm.sleep()
    llm.wake_up()
