"""Imports what an engine process imports in its life, as it does."""

import facet.engine.process  # noqa: F401
from facet.sampling.grammar_library import do_without_transformers, import_xgrammar

do_without_transformers()
import_xgrammar()
