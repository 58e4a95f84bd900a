"""xgrammar without `transformers`: it compiles, and a version that asks for more gets it."""

import os
import subprocess
import sys
from pathlib import Path

# What else the room imports takes seconds, and is nothing to these tests.
IMPORT = """
import sys, types, facet
room = sys.modules["facet.sampling"] = types.ModuleType("facet.sampling")
room.__path__ = [facet.__path__[0] + "/sampling"]
from facet.sampling.grammar_library import do_without_transformers, import_xgrammar
do_without_transformers()
import_xgrammar()
import xgrammar
"""
COMPILE = """
info = xgrammar.TokenizerInfo([b"a", b"b"], xgrammar.VocabType.RAW, vocab_size=2, stop_token_ids=[0])
matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_grammar('root ::= "b"'))
assert matcher.accept_token(1)
assert not any(name.startswith("transformers.") for name in sys.modules)
"""


def run(program: str, folder: Path) -> None:
    """With `folder` in front of all others."""
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_it_compiles_without_transformers(tmp_path: Path) -> None:
    run(IMPORT + COMPILE, tmp_path)


def test_a_version_that_asks_for_more_gets_it(tmp_path: Path) -> None:
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").touch()
    (tmp_path / "transformers" / "tokens.py").write_text("SIZE = 3\n")
    (tmp_path / "xgrammar.py").write_text("from transformers.tokens import SIZE\n")
    run(IMPORT + "assert xgrammar.SIZE == 3", tmp_path)
