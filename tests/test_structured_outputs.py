"""`StructuredOutputsParams`: one form and no more, whatever it is given as."""

import json
from dataclasses import replace
from typing import Any

import pytest

from facet import RequestError, SamplingParams, StructuredOutputsParams

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}


def test_a_schema_is_the_same_as_a_mapping_and_as_text() -> None:
    as_mapping, as_text = StructuredOutputsParams(json=SCHEMA), StructuredOutputsParams(json=json.dumps(SCHEMA))
    assert as_mapping == as_text
    assert isinstance(as_mapping.json, str)
    assert list(json.loads(as_mapping.json)["properties"]) == ["b", "a"]


def test_settings_that_hold_it_can_be_hashed() -> None:
    for form in ({"json": SCHEMA}, {"choice": ["a", "b"]}, {"json_object": True}):
        hash(SamplingParams(structured_outputs=StructuredOutputsParams(**form)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({}, "not 0 of them"),
        ({"json_object": False}, "not 0 of them"),
        ({"json": SCHEMA, "regex": "a"}, "not 2 of them: json, regex"),
        ({"choice": ["a"], "grammar": "x", "json_object": True}, "not 3 of them: choice, grammar, json_object"),
        ({"json": {"a": {1, 2}}}, "cannot be written as JSON"),
        ({"structural_tag": "x", "regex": "a"}, "not 2 of them: regex, structural_tag"),
        ({"structural_tag": {"a": {1}}}, "structural_tag cannot be written as JSON"),
        ({"json": SCHEMA, "any_whitespace": "x"}, "any_whitespace must be true or false, not 'x'"),
        ({"json": SCHEMA, "disable_any_whitespace": 1}, "disable_any_whitespace must be true or false, not 1"),
        (
            {"json": SCHEMA, "any_whitespace": True, "disable_any_whitespace": True},
            "has any_whitespace and disable_any_whitespace. Leave one of them out",
        ),
        ({"json": SCHEMA, "disable_additional_properties": True}, "Write additionalProperties: false into the schema"),
        ({"json": SCHEMA, "whitespace_pattern": "x"}, "whitespace_pattern is not supported"),
        ({"json_object": "x"}, "json_object must be true or false, not 'x'"),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused(form: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        StructuredOutputsParams(**form)
    assert caught.value.field == "structured_outputs"


def test_white_space_is_no_constraint() -> None:
    assert not StructuredOutputsParams(any_whitespace=True).is_constraint
    assert StructuredOutputsParams(any_whitespace=False, json_object=True).is_constraint


def test_white_space_under_vllms_name() -> None:
    without = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
    assert without == StructuredOutputsParams(json=SCHEMA, any_whitespace=False)
    assert replace(without, any_whitespace=True) == StructuredOutputsParams(json=SCHEMA, any_whitespace=True)
    neutral = StructuredOutputsParams(
        json=SCHEMA, disable_any_whitespace=False, disable_additional_properties=False, whitespace_pattern=None
    )
    assert neutral == StructuredOutputsParams(json=SCHEMA)
    assert hash(neutral) == hash(replace(neutral))


def test_nothing_else_may_stand_for_it() -> None:
    with pytest.raises(RequestError, match="must be a StructuredOutputsParams") as caught:
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]
    assert caught.value.field == "structured_outputs"
