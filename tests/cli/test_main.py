"""The command's manners: exit codes, one line for what a user can fix, a traceback only where one was asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from facet.cli import MODULES, main, make_parser
from facet.version import __version__
from tests.published_configs import Config
from tests.tiny_checkpoints import INDEX, SHRUNK, random_tensors, write_checkpoint, write_config

CONFIG = SHRUNK["Gemma 3 1B"]
SOURCE = Path(__file__).parents[2] / "src"


class Outcome:
    def __init__(self, code: int, captured: pytest.CaptureFixture[str]) -> None:
        self.code = code
        self.out, self.err = captured.readouterr()


@pytest.fixture
def facet(capsys: pytest.CaptureFixture[str]) -> "Run":
    return Run(capsys)


class Run:
    """The command, in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> Outcome:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as leaving:  # argparse leaves this way
            code = int(leaving.code or 0)
        return Outcome(code, self.capsys)

    def refusal(self, *arguments: object) -> str:
        outcome = self(*arguments)
        assert outcome.code == 2
        assert outcome.err.startswith("error: ")
        assert outcome.err.endswith("\n")
        assert outcome.err.count("\n") == 1
        assert "Traceback" not in outcome.out + outcome.err
        return outcome.err


def good(folder: Path, **change: object) -> Path:
    return write_checkpoint(folder, {**CONFIG, **change}, random_tensors(CONFIG))


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("bogus",), "facet has no command bogus. It has serve, deploy, chat,"),
            (("sevre",), "facet has no command sevre. Did you mean serve?"),
            (("bench", "serv"), "facet bench has no command serv. Did you mean serve?"),
            (("inspect", "x", "--port", "1"), "facet inspect has no --port. (--help"),
            (("bench", "serve", "--kv-cache-dtype", "x"), "facet bench serve has no --kv-cache-dtype. (--help"),
            (("inspect", "x", "--devise", "cpu"), "has no --devise. Did you mean --device?"),
            (("inspect", "x", "--devise=cpu"), "has no --devise. Did you mean --device?"),
            (("inspect", "x", "--xyzzy"), "has no --xyzzy."),
            (("inspect", "x", "--dev", "cpu"), "has no --dev"),
            (("inspect", "x", "y"), "has no y"),
            (("inspect", "x", ""), "has no ''"),
            (("inspect", "x", "a\nb"), "has no a"),
            (("inspect", "x", "--dtype", "int3"), "bfloat16"),
            (("inspect", "x", "--dtype"), "--dtype"),
            (("inspect", "x", "--load-format", "tensorizer"), "dummy"),
            (("inspect", "x", "--max-model-len", "long"), "--max-model-len"),
            (("inspect", "x", "--seed", "1.5"), "--seed"),
            (("inspect", ""), "No model was named"),
        ],
        ids=str,
    )
    def test_wrong_ones(self, facet: Run, arguments: tuple[str, ...], words: str) -> None:
        assert words in facet.refusal(*arguments)

    def test_version(self, facet: Run) -> None:
        outcome = facet("--version")
        assert (outcome.code, outcome.out) == (0, f"facet {__version__}\n")

    @pytest.mark.parametrize("arguments", [(), ("bench",)])
    def test_without_a_command_those_there_are(self, facet: Run, arguments: tuple[str, ...]) -> None:
        outcome = facet(*arguments)
        assert (outcome.code, outcome.err) == (0, "")
        assert "serve" in outcome.out

    def test_help_has_groups(self, facet: Run) -> None:
        text = facet("serve", "--help").out
        assert text.startswith("usage: facet serve [MODEL] [FLAG ...]\n")
        titles = (
            "How a model is served over HTTP:",
            "How requests are run:",
            "Which model to load, from where, and how",
        )
        places = [text.index(title) for title in titles]
        assert places == sorted(places)
        assert places[0] < text.index("--port INT") < places[1] < text.index("--max-num-seqs INT") < places[2]

    @pytest.mark.parametrize("command", ["serve", "inspect"])
    def test_help_names_every_flag_and_its_default(self, facet: Run, command: str) -> None:
        outcome = facet(command, "--help")
        assert outcome.code == 0
        for flag in ("--revision", "--dtype", "--load-format", "--device", "--max-model-len", "--seed", "--verbose"):
            assert flag in outcome.out
        assert "(default: auto)" in outcome.out


class TestBadModels:
    """The list of the issue, through the command."""

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"architectures": ["LlamaForCausalLM"]}, "Gemma4ForConditionalGeneration"),
            ({"num_key_value_heads": 3}, "multiple"),
            ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
            ({"num_hidden_layers": -1}, "num_hidden_layers"),
            ({"hidden_size": "16"}, "hidden_size"),
            ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
            ({"vocab_size": 10**15}, "vocab_size"),
            ({"vocab_size": 65}, "1 of another shape"),
            ({"num_hidden_layers": 13, "layer_types": None}, "13 missing"),
            ({"quantization_config": {"quant_method": "awq\nx"}}, "quantized"),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("flags", [(), ("--load",)], ids=str)
    def test_configs(self, facet: Run, tmp_path: Path, change: Config, words: str, flags: tuple[str, ...]) -> None:
        assert words in facet.refusal("inspect", good(tmp_path, **change), *flags)

    def test_a_vocabulary_no_machine_can_hold(self, facet: Run, tmp_path: Path) -> None:
        folder = write_config(tmp_path, {**CONFIG, "vocab_size": 2**31 - 1, "hidden_size": 2**20})
        message = facet.refusal("inspect", folder, "--load", "--load-format", "dummy", "--device", "cpu")
        assert "GiB of memory" in message

    def test_config_is_not_json(self, facet: Run, tmp_path: Path) -> None:
        folder = good(tmp_path)
        (folder / "config.json").write_text("{")
        assert "cannot be read as JSON" in facet.refusal("inspect", folder)

    def test_config_is_missing(self, facet: Run, tmp_path: Path) -> None:
        assert "config.json does not exist" in facet.refusal("inspect", tmp_path)

    def test_weights_are_cut_short(self, facet: Run, tmp_path: Path) -> None:
        path = good(tmp_path) / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-10])
        assert "broken or cut short" in facet.refusal("inspect", tmp_path)

    def test_weights_are_missing(self, facet: Run, tmp_path: Path) -> None:
        assert "holds no .safetensors file" in facet.refusal("inspect", write_config(tmp_path, CONFIG), "--load")

    def test_a_shard_is_missing(self, facet: Run, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path, CONFIG, random_tensors(CONFIG), num_shards=2)
        (folder / "model-00001-of-00002.safetensors").unlink()
        assert "lacks model-00001-of-00002.safetensors" in facet.refusal("inspect", folder)

    def test_the_index_points_outside(self, facet: Run, tmp_path: Path) -> None:
        folder = write_config(tmp_path, CONFIG)
        (folder / INDEX).write_text('{"weight_map": {"a": "../secrets"}}')
        assert "../secrets" in facet.refusal("inspect", folder, "--load")

    def test_a_tensor_whose_name_breaks_lines(self, facet: Run, tmp_path: Path) -> None:
        tensors = random_tensors(CONFIG)
        tensors["model.two\nlines"] = tensors["model.norm.weight"].clone()
        assert "1 unexpected: model.two lines" in facet.refusal("inspect", write_checkpoint(tmp_path, CONFIG, tensors))

    def test_weights_that_are_not_numbers(self, facet: Run, tmp_path: Path) -> None:
        tensors = random_tensors(CONFIG)
        tensors["model.norm.weight"].fill_(float("nan"))
        message = facet.refusal("inspect", write_checkpoint(tmp_path, CONFIG, tensors), "--load", "--device", "cpu")
        assert "not finite" in message

    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            (("--max-model-len", "65"), "1 to 64"),
            (("--max-model-len", "-5"), "1 to 64"),
            (("--device", "tpu"), "--device tpu"),
            (("--device", "meta"), "--device meta"),
            (("--device", "cuda:99"), "cuda:99"),
        ],
        ids=str,
    )
    def test_flags_that_do_not_fit_the_model(
        self, facet: Run, tmp_path: Path, flags: tuple[str, ...], words: str
    ) -> None:
        assert words in facet.refusal("inspect", good(tmp_path), "--load", *flags)

    def test_a_name_that_is_nothing(self, facet: Run) -> None:
        assert "neither a folder nor the name of a model" in facet.refusal("inspect", "no-such-model")


class TestVerbose:
    def test_shows_where_an_error_was_raised(self, facet: Run, tmp_path: Path) -> None:
        outcome = facet("inspect", tmp_path, "--verbose")
        assert outcome.code == 2
        assert outcome.err.startswith("Traceback (most recent call last):")
        assert "config_fields.py" in outcome.err
        assert "does not exist" in outcome.err.splitlines()[-1]

    def test_changes_nothing_where_all_is_well(self, facet: Run, tmp_path: Path) -> None:
        outcome = facet("inspect", good(tmp_path), "--verbose")
        assert (outcome.code, outcome.err) == (0, "")


def test_an_interrupt_is_not_an_error(facet: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("facet.cli.inspect.read_spec", interrupted)
    outcome = facet("inspect", tmp_path)
    assert (outcome.code, outcome.err) == (130, "")


def test_a_mistake_of_ours_is_not_dressed_up_as_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("facet.cli.inspect.read_spec", broken)
    with pytest.raises(KeyError, match="a bug"):
        main(["inspect", str(tmp_path)])


def test_every_command_is_found_alone() -> None:
    """Where it is given, others are not imported."""

    def names(command: str | None = None) -> list[str]:
        (commands,) = make_parser(command)._subparsers._group_actions  # type: ignore[union-attr]
        return list(commands.choices)  # type: ignore[arg-type]

    assert names() == names("no such command") == list(MODULES)
    for command, module in MODULES.items():
        assert names(command) == [other for other in MODULES if MODULES[other] == module]


class TestAsAProcess:
    """Once for real: interpreter, streams and exit code included."""

    @staticmethod
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "facet", *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)

    def test_a_good_model(self, tmp_path: Path) -> None:
        done = self.run("inspect", good(tmp_path), "--load", "--device", "cpu")
        assert (done.returncode, done.stderr) == (0, "")
        assert "gave finite logits" in done.stdout

    def test_a_bad_model(self, tmp_path: Path) -> None:
        done = self.run("inspect", good(tmp_path, num_key_value_heads=3))
        assert done.returncode == 2
        assert done.stderr.startswith("error: Layer 0 has 4 query heads and 3 key-value heads")
        assert done.stderr.count("\n") == 1

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
    @pytest.mark.parametrize("command", ["list", "--help"])
    def test_a_full_disk(self, tmp_path: Path, command: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "HF_HUB_CACHE": str(tmp_path)}
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "facet", command],
                **dict(stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, env=environment, check=False),
            )
        assert done.returncode == 1
        assert done.stderr == (
            "error: A write failed: No space left on device. Make room on the disk, or write elsewhere.\n"
        )

    def test_a_terminal_of_ascii(self, tmp_path: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONIOENCODING": "ascii", "COLUMNS": "30"}
        done = subprocess.run(
            [sys.executable, "-m", "facet", "inspect", str(write_config(tmp_path, CONFIG))],
            **dict(capture_output=True, text=True, timeout=120, env=environment, check=False),
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "?" in done.stdout

    @pytest.mark.parametrize("module", ["facet.cli", "facet.cli.inspect"])
    def test_an_interrupt_while_modules_are_imported(self, tmp_path: Path, module: str) -> None:
        program = tmp_path / "program.py"
        program.write_text(
            "import runpy, sys\n"
            "class Interrupting:\n"
            "    def find_spec(self, name, *_):\n"
            f"        if name == {module!r}:\n"
            "            raise KeyboardInterrupt\n"
            "sys.meta_path.insert(0, Interrupting())\n"
            "sys.argv = ['facet', 'inspect']\n"
            "runpy.run_module('facet', run_name='__main__')\n"
        )
        done = subprocess.run(
            [sys.executable, str(program)],
            **dict(capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(SOURCE)}),
        )
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
