"""Flags come from the fields of a config and go back into them; there is no other way in."""

import argparse
import dataclasses
from dataclasses import dataclass

import pytest

from facet.cli.asking import AskConfig
from facet.cli.flags import add_config_flags, config_from
from facet.config import EngineConfig, ModelConfig, ServerConfig, setting
from facet.doctor.config import DoctorConfig
from facet.engine.plan_config import PlanConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """One field of every kind."""

    model: str = setting("", "which")
    two_words: int = setting(3, "a number, 100% of the time")
    maybe: float | None = setting(None, "a fraction or nothing")
    enabled: bool = setting(True, "on or off")
    decided: bool | None = setting(None, "on, off, or as the machine is; default: on a GPU")
    mode: str = setting("a", "one of two", choices=("a", "b"))


def parse(*arguments: str) -> Wishes:
    parser = argparse.ArgumentParser()
    add_config_flags(parser, Wishes)
    return config_from(parser.parse_args(arguments), Wishes)


def test_defaults_are_the_fields() -> None:
    assert parse() == Wishes()


def test_every_kind_of_field() -> None:
    given = parse("name", "--two-words", "4", "--maybe", "0.5", "--no-enabled", "--mode", "b")
    assert given == Wishes(model="name", two_words=4, maybe=0.5, enabled=False, mode="b")
    assert parse("--enabled").enabled


def test_a_switch_may_be_left_open() -> None:
    assert [parse(*given).decided for given in ((), ("--decided",), ("--no-decided",))] == [None, True, False]


@pytest.mark.parametrize("config_type", [ModelConfig, EngineConfig, ServerConfig, PlanConfig, DoctorConfig, AskConfig])
def test_batch_invariance_is_on_off_or_as_the_machine_is(config_type: type[ModelConfig]) -> None:
    """In every command that loads a model."""
    parser = argparse.ArgumentParser()
    add_config_flags(parser, config_type)
    for arguments, expected in (([], None), (["--batch-invariant"], True), (["--no-batch-invariant"], False)):
        assert config_from(parser.parse_args(arguments), config_type).batch_invariant is expected


@pytest.mark.parametrize("arguments", [("--two-words", "x"), ("--maybe", "half"), ("--mode", "c"), ("--enabled", "no")])
def test_values_of_another_type_are_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse("name", *arguments)


def test_help_says_what_a_flag_is_for_and_what_it_is_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        parse("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "--two-words INT a number, 100% of the time (default: 3)" in text
    assert "--maybe FLOAT a fraction or nothing" in text
    assert "--decided, --no-decided on, off, or as the machine is; default: on a GPU" in text
    assert "(default: None)" not in text
    assert "{a,b}" in text


def test_every_setting_of_a_model_has_help() -> None:
    assert all(field.metadata["help"] for field in dataclasses.fields(ModelConfig))
