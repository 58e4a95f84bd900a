"""Rooms import downwards only, nothing imports in a circle, rooms without torch cannot reach it, and the maps in the
documents are true.

Read from the source by `ast`. For directions and circles an import deferred into a function or kept for the type
checker counts like any other: those are how a knot is hidden. Whether a room reaches torch is followed through all
modules, and what counts there are imports that run: those for the type checker do not; those inside a function do,
except the few in `DOORS`.
"""

import ast
import re
import subprocess
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
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
    "cluster": "serves replicas on a Ray cluster",
    "replicas": "serves several replicas behind one address",
    "router": "chooses the replica that answers a request",
    "server": "the HTTP API: JSON to requests, answers to JSON",
    "http": "reads HTTP responses and event streams",
    "offline": "the Python API: facet.LLM",
    "prompts": "makes requests of prompts and conversations, for both APIs",
    "chat": "renders messages as text and parses replies",
    "tokens": "text to token ids and back",
    "engine": "runs requests in steps",
    "drafts": "guesses tokens for steps to verify",
    "scheduler": "decides which requests run in a step",
    "kv_cache": "tracks where keys and values are stored",
    "runner": "executes a step's plan on the device",
    "sampling": "logits to token ids",
    "media": "pictures, sound and video to arrays",
    "model": "token ids to logits",
    "layers": "the torch modules of a model",
    "kernels": "tensor operations, each with a plain reference",
}
# What serves HTTP, text and the command line, and what plans, needs no tensors: it starts quickly, stays small and is
# tested without them. So do the modules of the engine by which a front process talks to it.
WITHOUT_TORCH = {
    *("cli", "bench", "cluster", "replicas", "router", "server", "http", "prompts", "chat", "tokens"),
    *("drafts", "scheduler", "kv_cache", "media"),
    *("engine.client", "engine.messages", "engine.addresses", "engine.rank_processes"),
    *("engine.ray_cluster", "engine.ray_ranks"),
}
VOCABULARY_WITH_TORCH = {"forward_batch", "transfer"}
TENSOR_LIBRARIES = {"torch", "triton", "xgrammar"}  # the other two import torch themselves

# Imports inside functions that lead to torch all the same: what such a function is for needs tensors.
DOORS = {
    "facet": {"facet.offline"},  # facet.LLM, once it is asked for
    "facet.cli.bench": {"facet.offline.timed"},  # throughput and latency run an engine
    "facet.cli.cached_models": {"facet.engine.fitting"},
    "facet.cli.doctor": {"facet.doctor.examine"},
    "facet.cli.inspect": {
        *("facet.model.batch_invariance", "facet.model.inspection", "facet.model.loader", "facet.model.resolving"),
        *("facet.model.adapters", "facet.model.weight_formats"),
        *("facet.layers.kv_arena", "facet.runner.batch", "torch"),  # --load
    },
    "facet.cli.plan": {"facet.engine.memory_plan", "facet.engine.plan_advice"},
    # Run in the engine's process.
    "facet.engine.rank_processes": {"facet.engine.process", "facet.runner.compile_process"},
    "facet.engine.ray_ranks": {"facet.engine.process", "facet.layers.meeting"},  # likewise
}

RANKS = {room: rank for rank, room in enumerate(ROOMS)}
RANK_OF_ROOT = -1  # facet/__init__.py and __main__.py stand above every room
RANK_OF_VOCABULARY = len(ROOMS)


class Moment(Enum):
    """When an import runs."""

    LOADING = "when its module is imported"
    CALL = "when a function is called"
    NEVER = "only the type checker reads it"


@dataclass(frozen=True, slots=True)
class Import:
    importer: str
    target: str  # a module of the tree where there is one of that name, else what was written
    line: int
    moment: Moment


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
    for node, moment in walk(ast.parse(path.read_text(encoding="utf-8")), Moment.LOADING):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name, alias.name, node.lineno, moment)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                yield Import(name, submodule if submodule in modules else source, node.lineno, moment)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            target = node.args[0].value
            if function in {"import_module", "__import__"} and isinstance(target, str):
                yield Import(name, target, node.lineno, moment)


def walk(node: ast.AST, moment: Moment) -> Iterator[tuple[ast.AST, Moment]]:
    """Every node below this one, and when it runs."""
    yield node, moment
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and moment is Moment.LOADING:
        moment = Moment.CALL
    is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from walk(child, Moment.NEVER if is_for_types and field == "body" else moment)


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


def find_violations(root: Path, doors: Mapping[str, Collection[str]]) -> list[str]:
    """One line for each import that may not be."""
    modules = find_modules(root)
    ranks = {name: rank_of(name, modules) for name in modules}
    imports = {name: list(find_imports(name, modules)) for name in modules}
    violations = []
    edges: dict[str, list[str]] = {}
    for name, found_in_it in imports.items():
        edges[name] = []
        for found in found_in_it:
            where = f"{name}, line {found.line}, imports {found.target}"
            if found.target in modules:
                edges[name].append(found.target)
                if ranks[found.target] < ranks[name]:
                    violations.append(f"{where}: that is upwards")
            elif found.target.split(".")[0] == root.name:
                violations.append(f"{where}: there is no such module")
            elif found.target.split(".")[0] == "transformers":
                violations.append(f"{where}: it is the oracle of our tests and no part of Facet")
    cycle = find_cycle(edges)
    if cycle:
        violations.append(f"a circle: {' -> '.join(cycle)}")
    return violations + find_ways_to_torch(imports, ranks, doors)


def find_ways_to_torch(
    imports: Mapping[str, list[Import]], ranks: Mapping[str, int], doors: Mapping[str, Collection[str]]
) -> list[str]:
    """One line for each import by which a module that does without tensors gets at them, and for each idle door."""
    is_free = {name: does_without_torch(name, ranks[name]) for name in imports}
    running = {
        name: [
            found
            for found in found_in_it
            if found.moment is Moment.LOADING or (found.moment is Moment.CALL and not is_door(found, doors))
        ]
        for name, found_in_it in imports.items()
    }
    violations = []
    for name in imports:
        for found in running[name] if is_free[name] else ():
            if not is_free.get(found.target, False) and (way := way_to_torch(found.target, running)):
                violations.append(f"{name}, line {found.line}, does without torch but imports {' -> '.join(way)}")
    used = {(found.importer, found.target) for found_in_it in imports.values() for found in found_in_it}
    for importer, targets in doors.items():
        idle = [t for t in targets if (importer, t) not in used or not way_to_torch(t, running)]
        violations += [f"the door from {importer} to {target} leads nowhere: take it off the list" for target in idle]
    return violations


def does_without_torch(module: str, rank: int) -> bool:
    parts = module.split(".")[1:]
    if rank == RANK_OF_VOCABULARY:
        return parts[0] not in VOCABULARY_WITH_TORCH
    return rank == RANK_OF_ROOT or any(".".join(parts[:count]) in WITHOUT_TORCH for count in (1, 2))


def is_door(found: Import, doors: Mapping[str, Collection[str]]) -> bool:
    return found.target in doors.get(found.importer, ())


def way_to_torch(target: str, running: Mapping[str, list[Import]]) -> list[str] | None:
    """The shortest chain of imports from `target` to a tensor library; None: there is none.

    Importing a module also runs every package around it.
    """
    came_from: dict[str, str | None] = {target: None}
    queue = deque([target])
    while queue:
        name = queue.popleft()
        if name.split(".")[0] in TENSOR_LIBRARIES:
            way = [name]
            while (before := came_from[way[0]]) is not None:
                way.insert(0, before)
            return way
        around = name.rpartition(".")[0]
        for following in (*([around] if around in running else []), *(found.target for found in running.get(name, ()))):
            if following not in came_from:
                came_from[following] = name
                queue.append(following)
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
    violations = find_violations(SOURCE, DOORS)
    assert not violations, "\n".join(violations)


def test_what_does_without_torch_is_imported_without_it() -> None:
    """The same for real, libraries of others included. The server does without numpy, too."""
    modules = find_modules(SOURCE)
    names = [name for name in modules if does_without_torch(name, rank_of(name, modules)) and "__main__" not in name]
    names.sort(key=lambda name: not name.startswith("facet.server"))
    code = f"""
import importlib, sys
for name in {names}:
    importlib.import_module(name)
    loaded = {TENSOR_LIBRARIES | {"transformers"}} & set(sys.modules)
    assert not loaded, (name, loaded)
    assert not name.startswith("facet.server") or "numpy" not in sys.modules, name
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr


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
        "cli.py": "from facet.server import app\ndef main(): import facet.layers.attention",
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
        "model/config.py": "import json",
        "layers/__init__.py": "",
        "layers/attention.py": "import torch",
    }

    @staticmethod
    def violations_with(folder: Path, **changes: str) -> list[str]:
        root = folder / "facet"
        for name, source in {**TestTheCheckItself.IN_ORDER, **changes}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        return find_violations(root, {"facet.cli": {"facet.layers.attention"}})

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
            ("errors.py", "import torch", "facet.errors, line 1, does without torch but imports torch"),
            ("scheduler/plan.py", "from torch.nn import Module", "does without torch but imports torch.nn"),
            ("scheduler/plan.py", "class A:\n    import torch", "line 2, does without torch"),
            ("scheduler/plan.py", "def f():\n    import xgrammar", "line 2, does without torch but imports xgrammar"),
            ("scheduler/plan.py", "if not TYPE_CHECKING:\n    import torch", "plan, line 2, does without torch"),
            ("scheduler/plan.py", "if TYPE_CHECKING:\n    pass\nelse:\n    import torch", "line 4, does without"),
            ("chat/template.py", "from facet.model import gemma", "imports facet.model.gemma -> torch"),
            ("chat/template.py", "def f():\n    from facet.model import gemma", "imports facet.model.gemma -> torch"),
            (
                "engine/loop.py",
                "import facet.model.gemma",
                "facet, line 1, does without torch but imports facet.engine.llm -> facet.engine.loop -> facet.model",
            ),
            ("engine/client.py", "import facet.model.gemma", "facet.engine.client, line 1, does without torch"),
            ("server/app.py", "import facet.layers.attention", "imports facet.layers.attention -> torch"),
            ("cli.py", "import facet.layers.attention", "facet.cli, line 1, does without torch"),
            ("cli.py", "", "the door from facet.cli to facet.layers.attention leads nowhere"),
            ("layers/attention.py", "", "the door from facet.cli to facet.layers.attention leads nowhere"),
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
        # An import upwards often closes a circle as well, or leads to torch.
        assert len([violation for violation in violations if words in violation]) == 1, violations

    def test_the_packages_around_a_module_are_imported_too(self, tmp_path: Path) -> None:
        changes = {"chat/template.py": "import facet.model.config", "model/__init__.py": "import torch"}
        (violation,) = self.violations_with(tmp_path, **changes)
        assert violation.endswith("does without torch but imports facet.model.config -> facet.model -> torch")

    def test_a_folder_that_is_no_room_is_caught(self, tmp_path: Path) -> None:
        with pytest.raises(AssertionError, match="src/facet/utils/ is a folder but not a room"):
            self.violations_with(tmp_path, **{"utils/__init__.py": ""})

    def test_a_folder_without_an_init_is_no_room_either(self, tmp_path: Path) -> None:
        with pytest.raises(AssertionError, match="src/facet/utils/ is a folder but not a room"):
            self.violations_with(tmp_path, **{"utils/misc.py": ""})
