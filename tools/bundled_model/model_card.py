"""Writes the bundled model's card: what it is, what it is not, and what was measured."""

from collections.abc import Mapping, Sequence
from typing import Any

_CARD = """\
---
license: apache-2.0
language: en
library_name: facet
pipeline_tag: text-generation
---

# The bundled model

A language model of {parameters} million parameters that ships inside Facet, so that `facet serve` answers, thinks and
calls tools on any machine, offline, right after installation. It has the architecture of a Gemma 4 E model but none of
its weights: it was trained from scratch by the scripts in `tools/bundled_model`, on text that those scripts generate.

**It is** a demonstration and a test subject. It reads tool declarations it has never seen, chooses one, copies the
arguments from the request, waits for the result and answers from it. It thinks first when asked to, says so when no
tool fits, and can talk a little about Facet, do small sums in words, sort short lists and tell a short story.{sight}

**It is not** a source of facts, advice or prose. It knows nothing beyond its generated dialogues, speaks only plain
English in short sentences, is easily confused by requests unlike those below, and must not be relied on for anything.
For that, serve a real Gemma.

## Shape

{shape}

The last {num_shared} layers read the keys and values of earlier layers; each layer has a small input of its own per
token; the output head is the embedding. Answers end with {ends}.

## Measured

{evaluation}

## Training

{training}

How to build it: `tools/bundled_model/README.md`.
"""

_SHAPE_ROWS = (
    ("hidden size", "hidden_size"),
    ("layers", "num_hidden_layers"),
    ("query heads, key and value heads", ("num_attention_heads", "num_key_value_heads")),
    ("head size in sliding layers, in global layers", ("head_dim", "global_head_dim")),
    ("feed-forward width", "intermediate_size"),
    ("per-layer input width", "hidden_size_per_layer_input"),
    ("window of sliding layers", "sliding_window"),
    ("vocabulary", "vocab_size"),
    ("longest context", "max_position_embeddings"),
)
_SIGHT = """

It sees a little: shapes and their colours, how many there are and where, and numbers, all drawn by a script. Of short
words it gets some letters right, seldom all. A photograph is beyond it."""
_NOT_MEASURED = "Not measured yet."


def model_card(
    *,
    num_parameters: int,
    config: Mapping[str, Any],
    sees: bool,
    ends: Sequence[str],
    training: Sequence[Mapping[str, Any]],
    evaluation: Sequence[Mapping[str, Any]] | None,
) -> str:
    """`training` is what the trainer wrote to training.json, one run after the other; `evaluation` what evaluate.py
    wrote with --json."""
    return _CARD.format(
        parameters=f"{num_parameters / 1e6:.1f}",
        sight=_SIGHT if sees else "",
        shape=_shape_table(config),
        num_shared=config["num_kv_shared_layers"],
        ends=", ".join(f"`{token}`" for token in ends),
        evaluation=_NOT_MEASURED if evaluation is None else _evaluation_table(evaluation),
        training=_training_words(training) if training else _NOT_MEASURED,
    )


def _shape_table(config: Mapping[str, Any]) -> str:
    kinds = "".join("g" if kind == "full_attention" else "s" for kind in config["layer_types"])
    rows = [(words, _value(config, names)) for words, names in _SHAPE_ROWS]
    return _table(("", ""), [*rows, ("sliding (s) and global (g) layers", f"`{kinds}`")])


def _value(config: Mapping[str, Any], names: str | tuple[str, ...]) -> str:
    return ", ".join(str(config[name]) for name in ((names,) if isinstance(names, str) else names))


def _training_words(runs: Sequence[Mapping[str, Any]]) -> str:
    num_steps, num_tokens, minutes = (sum(run[name] for run in runs) for name in ("num_steps", "num_tokens", "minutes"))
    devices = " and one ".join(dict.fromkeys(run["device"] for run in runs))
    in_runs = f", in {len(runs)} runs, each continuing the one before" if len(runs) > 1 else ""
    return (
        f"{num_steps:,} steps, {num_tokens / 1e6:,.0f} million tokens, {minutes:.1f} minutes on one {devices}{in_runs}."
        f" Given the text before each, it predicts {runs[-1]['held_out_tokens_right']:.2%} of its own tokens right in "
        "dialogues that it was not trained on."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _evaluation_table(evaluation: Sequence[Mapping[str, Any]]) -> str:
    """One row per measure, in the order of the evaluation."""
    rows = [
        (
            str(measure["name"]),
            f"{measure['right'] / max(1, measure['num']):.1%}",
            f"{measure['right']} of {measure['num']}",
            "" if measure["wanted"] is None else f"{measure['wanted']:.0%}",
        )
        for measure in evaluation
    ]
    words = (
        "Run through Facet, without constraints, on tools and requests whose words did not occur in training, except "
        "as parts of longer made-up words."
    )
    return f"{words}\n\n{_table(('measure', 'share', 'cases', 'goal'), rows)}"
