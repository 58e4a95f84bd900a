"""Rooms import downwards only, nothing imports in a circle, and the maps in the documents are true.

Read from the source by `ast`, so that an import deferred into a function or kept for the type checker counts
like any other: those are how a knot is hidden.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
SOURCE = REPOSITORY / "src" / "facet"

# From top to bottom, as a request passes through them. A room imports itself, rooms further down, and the
# vocabulary: the modules directly under facet/, which import no room. README and CONTRIBUTING repeat this map
# and are compared with it below.
ROOMS = {
    "cli": "parses the command line into a frozen config",
    "bench": "measures the speed of a server or an engine",
    "doctor": "checks that a machine computes a model correctly",
    "server": "the HTTP API: JSON to requests, answers to JSON",
    "offline": "the Python API: facet.LLM",
    "prompts": "makes requests of prompts and conversations, for both APIs",
    "chat": "renders messages as text and parses replies",
    "tokens": "text to token ids and back",
    "engine": "runs requests in steps",
    "scheduler": "decides which requests run in a step",
    "kv_cache": "tracks where keys and values are stored",
    "runner": "executes a step's plan on the device",
    "sampling": "logits to token ids",
    "model": "token ids to logits",
    "layers": "the torch modules of a model",
    "kernels": "tensor operations, each with a plain reference",
}
# Planning and text need no tensors, and stay quick to import and to test.
ROOMS_WITHOUT_TORCH = {"bench", "prompts", "chat", "tokens", "scheduler", "kv_cache"}
VOCABULARY_WITH_TORCH = {"forward_batch", "transfer"}

RANKS = {room: rank for rank, room in enumerate(ROOMS)}
RANK_OF_ROOT = -1  # facet/__init__.py and __main__.py stand above every room
RANK_OF_VOCABULARY = len(ROOMS)


@dataclass(frozen=True, slots=True)
class Import:
    importer: str
    target: str  # a module of the tree where there is one of that name, else what was written
    line: int


def find_modules(root: Path) -> dict[str, Path]:
    """Dotted names of all modules under a package's folder; a package stands for its __init__.py."""
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def find_imports(name: str, modules: Mapping[str, Path]) -> Iterator[Import]:
    path = modules[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name, alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                yield Import(name, submodule if submodule in modules else source, node.lineno)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            target = node.args[0].value
            if function in {"import_module", "__import__"} and isinstance(target, str):
                yield Import(name, target, node.lineno)


def rank_of(module: str, modules: Mapping[str, Path]) -> int:
    """How far down a module stands; looks at the first folder below facet/."""
    parts = module.split(".")
    if len(parts) == 1 or parts[1] == "__main__":
        return RANK_OF_ROOT
    if parts[1] in RANKS:
        return RANKS[parts[1]]
    is_folder = len(parts) > 2 or modules[module].name == "__init__.py"
    assert not is_folder, f"src/facet/{parts[1]}/ is a folder but not a room: add it to ROOMS, in its place"
    return RANK_OF_VOCABULARY


def find_violations(root: Path) -> list[str]:
    """One line for each import that may not be."""
    modules = find_modules(root)
    ranks = {name: rank_of(name, modules) for name in modules}
    violations = []
    edges: dict[str, list[str]] = {}
    for name in modules:
        edges[name] = []
        for found in find_imports(name, modules):
            where = f"{name}, line {found.line}, imports {found.target}"
            if found.target in modules:
                edges[name].append(found.target)
                if ranks[found.target] < ranks[name]:
                    violations.append(f"{where}: that is upwards")
            elif found.target.split(".")[0] == root.name:
                violations.append(f"{where}: there is no such module")
            elif complaint := complain_about_library(name, found.target.split(".")[0], ranks[name]):
                violations.append(f"{where}: {complaint}")
    cycle = find_cycle(edges)
    if cycle:
        violations.append(f"a circle: {' -> '.join(cycle)}")
    return violations


def complain_about_library(importer: str, library: str, rank: int) -> str | None:
    if library == "transformers":
        return "it is the oracle of our tests and no part of Facet"
    if library == "torch":
        parts = importer.split(".")
        if rank == RANK_OF_VOCABULARY and parts[1] not in VOCABULARY_WITH_TORCH:
            return "the vocabulary has no tensors"
        if len(parts) > 1 and parts[1] in ROOMS_WITHOUT_TORCH:
            return f"{parts[1]} has no tensors"
    return None


def find_cycle(edges: Mapping[str, list[str]]) -> list[str] | None:
    """One circle of modules, closed with its first; None if there is none."""
    finished: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in finished:
            return None
        for target in edges[name]:
            if cycle := visit(target, [*path, name]):
                return cycle
        finished.add(name)
        return None

    return next((cycle for name in edges if (cycle := visit(name, []))), None)


def test_facet_keeps_to_its_rooms() -> None:
    violations = find_violations(SOURCE)
    assert not violations, "\n".join(violations)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_the_map_in_a_document_is_the_one_above(document: str) -> None:
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    drawn = dict(re.findall(r"^[├└]── (\w+)/ +(.+?)(?: {2,}.*)?$", text, flags=re.MULTILINE))
    assert list(drawn.items()) == list(ROOMS.items())


class TestTheCheckItself:
    """Each forbidden thing, in a small tree that is otherwise in order."""

    IN_ORDER = {  # noqa: RUF012  (read only)
        "__init__.py": "from facet.engine.llm import LLM",
        "__main__.py": "from facet.cli import main",
        "cli.py": "from facet.server import app\ndef main(): import facet.engine.llm",
        "errors.py": "import json",
        "forward_batch.py": "from torch import Tensor",
        "server/__init__.py": "",
        "server/app.py": "from facet.chat import template",
        "chat/__init__.py": "",
        "chat/template.py": "import jinja2\nfrom facet.errors import FacetError",
        "engine/__init__.py": "",
        "engine/llm.py": "from . import loop\nfrom ..errors import FacetError",
        "engine/loop.py": "from facet.scheduler.plan import plan_step",
        "scheduler/__init__.py": "from facet.scheduler.plan import plan_step",
        "scheduler/plan.py": "if TYPE_CHECKING:\n    from facet.model import gemma",
        "model/__init__.py": "",
        "model/gemma.py": "import torch\nfrom facet.forward_batch import ForwardBatch",
    }

    @staticmethod
    def violations_with(folder: Path, **changes: str) -> list[str]:
        root = folder / "facet"
        for name, source in {**TestTheCheckItself.IN_ORDER, **changes}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        return find_violations(root)

    def test_a_tree_in_order_passes(self, tmp_path: Path) -> None:
        assert self.violations_with(tmp_path) == []

    @pytest.mark.parametrize(
        ("file", "source", "words"),
        [
            ("model/gemma.py", "from facet.scheduler import plan", "facet.scheduler.plan: that is upwards"),
            ("model/gemma.py", "import facet.engine.llm", "facet.engine.llm: that is upwards"),
            ("model/gemma.py", "from ..engine import llm", "facet.engine.llm: that is upwards"),
            (
                "model/gemma.py",
                "def f():\n    from facet.engine import llm",
                "line 2, imports facet.engine.llm",
            ),
            ("model/gemma.py", "if TYPE_CHECKING:\n    import facet.engine", "facet.engine: that is upwards"),
            (
                "model/gemma.py",
                "import importlib\nimportlib.import_module('facet.server')",
                "that is upwards",
            ),
            ("model/gemma.py", "__import__('facet.server.app')", "that is upwards"),
            ("engine/loop.py", "from facet import LLM", "imports facet: that is upwards"),
            ("engine/loop.py", "from facet.cli import main", "imports facet.cli: that is upwards"),
            ("errors.py", "from facet.model import gemma", "facet.model.gemma: that is upwards"),
            ("errors.py", "from facet.nowhere import x", "facet.nowhere: there is no such module"),
            ("errors.py", "import torch", "the vocabulary has no tensors"),
            ("scheduler/plan.py", "from torch.nn import Module", "scheduler has no tensors"),
            ("chat/template.py", "import torch", "chat has no tensors"),
            ("model/gemma.py", "def f():\n    from transformers import AutoModel", "the oracle of our tests"),
            (
                "engine/loop.py",
                "import facet.engine.llm",
                "facet.engine.llm -> facet.engine.loop -> facet.engine.llm",
            ),
            (
                "engine/llm.py",
                "def f():\n    import facet.engine.llm",
                "facet.engine.llm -> facet.engine.llm",
            ),
            (
                "scheduler/plan.py",
                "from facet.scheduler import plan_step",
                "facet.scheduler.plan -> facet.scheduler ->",
            ),
        ],
    )
    def test_what_may_not_be_is_caught(self, tmp_path: Path, file: str, source: str, words: str) -> None:
        violations = self.violations_with(tmp_path, **{file: source})
        # An import upwards often closes a circle as well.
        complaints = [violation for violation in violations if not violation.startswith("a circle") or "->" in words]
        assert len(complaints) == 1
        assert words in complaints[0]

    def test_a_folder_that_is_no_room_is_caught(self, tmp_path: Path) -> None:
        with pytest.raises(AssertionError, match="src/facet/utils/ is a folder but not a room"):
            self.violations_with(tmp_path, **{"utils/__init__.py": ""})

    def test_a_folder_without_an_init_is_no_room_either(self, tmp_path: Path) -> None:
        with pytest.raises(AssertionError, match="src/facet/utils/ is a folder but not a room"):
            self.violations_with(tmp_path, **{"utils/misc.py": ""})
