"""Compiles grammars in threads of its own and keeps the most recent ones.

Only this module, `json_grammar.py`, `compiled_grammar.py`, `bounded_matcher.py` and `grammar_library.py` know the
grammar library. It brings large libraries along, so it is loaded with the first grammar, or, where a server asks for
it, once that server is up.
"""

import contextlib
import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from facet.errors import FacetError, RequestError
from facet.grammar_spec import GrammarKind, GrammarSpec
from facet.sampling.bounded_matcher import Bounds, without_bounds
from facet.sampling.compiled_grammar import CompiledGrammar
from facet.sampling.dead_rules import find_dead_rule
from facet.sampling.grammar_library import import_xgrammar
from facet.sampling.grammar_walker import GrammarWalker
from facet.sampling.json_grammar import ANY_OBJECT, json_grammar
from facet.sampling.structural_tag import structural_tag_source
from facet.sampling.token_bytes import read_token_bytes
from facet.sampling.token_lengths import TokenLengths

if TYPE_CHECKING:
    import xgrammar

# Two, so that one monstrous schema does not keep all others waiting.
NUM_COMPILING_THREADS = 2
MAX_CACHED_BYTES = 256 << 20
MAX_CACHED_GRAMMARS = 1024

# Where texts of bounded length begin and end, and what may not stand in them as it is. In calls, strings begin and end
# with a token of their own; keys do not.
_DELIMITERS: Mapping[GrammarKind, bytes] = MappingProxyType(
    {"json_schema": b'"\\', "structural_tag": b'"\\', "tool_calls": b":{,", "tool_calls_or_json": b'":{,\\'}
)

Key = tuple[GrammarKind, tuple[str, ...], bool]


class GrammarCompiler:
    """Compiles each grammar once. Safe to call from one thread; compiles in others."""

    def __init__(self, tokenizer_folder: Path | None, *, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._folder = tokenizer_folder
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._threads = ThreadPoolExecutor(NUM_COMPILING_THREADS, thread_name_prefix="facet-grammar-compiler")
        self._cache: OrderedDict[Key, _Entry] = OrderedDict()
        self._loading = threading.Lock()
        self._backend: xgrammar.GrammarCompiler | None = None
        self._lengths: dict[bytes, TokenLengths] = {}

    def start(self, spec: GrammarSpec) -> "Future[CompiledGrammar]":
        """The compiled grammar, at once if it is in the cache. Fails with `RequestError`; see `as_request_error`."""
        if self._folder is None:
            raise RequestError(
                "This engine was started without a tokenizer, and grammars need one.",
                field=spec.field,
            )
        found = self._cache.get(spec.key)
        if found is None:
            found = self._cache[spec.key] = _Entry(self._threads.submit(self._compile, spec))
            self._evict()
        self._cache.move_to_end(spec.key)
        return found.compiling

    def load(self) -> None:
        """Load the library now, so that the first grammar need not wait for it."""
        if self._folder is not None:
            with contextlib.suppress(Exception):  # said to those who send a grammar
                self._load()

    def load_in_background(self) -> None:
        """Like `load`, without hurry."""
        if self._folder is not None:
            threading.Thread(target=self._load_without_hurry, name="facet-grammar-loader", daemon=True).start()

    def _load_without_hurry(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # only Linux gives a thread a priority of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        self.load()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        compiled = self._compile_bounded(spec)
        if (dead := find_dead_rule(str(compiled.whole.grammar))) is not None:
            rule = f", such as its rule {dead}" if spec.kind == "ebnf" else ""
            raise RequestError(f"part of it{rule} can never be completed, because it always needs itself.")
        walker = GrammarWalker(
            replace(spec, thought=None, trigger_token_id=None),
            compiled,
            vocab_size=self._vocab_size,
            stop_token_ids=self._eos_token_ids,
        )
        mask = walker.mask()
        assert mask is not None, "a grammar without a trigger binds from the start"
        if not mask.any():
            raise RequestError("no token of the model can begin what it describes.")
        return compiled

    def _compile_bounded(self, spec: GrammarSpec) -> CompiledGrammar:
        bounds: list[int] = []
        whole = self._compile_source(spec, partial(without_bounds, found=bounds))
        if not bounds:
            return CompiledGrammar(whole)
        lengths = self._lengths_of_tokens(_DELIMITERS[spec.kind])
        return CompiledGrammar(whole, self._compile_source(spec, str), Bounds(lengths, min(bounds)))

    def _compile_source(self, spec: GrammarSpec, change: Callable[[str], str]) -> "xgrammar.CompiledGrammar":
        """`change` is applied to what has been written here of the grammar."""
        backend, any_whitespace = self._load(), spec.any_whitespace
        if spec.kind in ("json_object", "json_schema"):
            schema = spec.sources[0] if spec.sources else ANY_OBJECT
            return backend.compile_grammar(change(json_grammar(schema, any_whitespace=any_whitespace)))
        if spec.kind == "tool_calls_or_json":
            return backend.compile_grammar(_calls_or_json(change, *spec.sources, any_whitespace=any_whitespace))
        if spec.kind == "structural_tag":
            tag = structural_tag_source(spec.sources[0], change, any_whitespace=any_whitespace)
            return backend.compile_structural_tag(tag)
        if spec.kind == "tool_calls":
            return backend.compile_lark(change(spec.sources[0]))
        if spec.kind == "regex":
            return backend.compile_regex(spec.sources[0])
        if spec.kind == "choice":
            return backend.compile_grammar("root ::= " + " | ".join(map(_literal, spec.sources)) + "\n")
        if "::=" not in spec.sources[0]:
            return backend.compile_lark(spec.sources[0])
        return backend.compile_grammar(spec.sources[0])

    def _lengths_of_tokens(self, delimiters: bytes) -> TokenLengths:
        with self._loading:
            if delimiters not in self._lengths:
                assert self._folder is not None
                self._lengths[delimiters] = TokenLengths(read_token_bytes(self._folder, self._vocab_size), delimiters)
            return self._lengths[delimiters]

    def _load(self) -> "xgrammar.GrammarCompiler":
        with self._loading:
            if self._backend is None:
                import_xgrammar()
                import xgrammar

                assert self._folder is not None
                vocabulary = xgrammar.TokenizerInfo(
                    read_token_bytes(self._folder, self._vocab_size),
                    xgrammar.VocabType.RAW,
                    vocab_size=self._vocab_size,
                    stop_token_ids=self._eos_token_ids or [0],
                )
                num_threads = max(1, min(4, (os.cpu_count() or 1) // 2))
                # Its own cache is off: grammars are kept here, where their number and size are bounded.
                self._backend = xgrammar.GrammarCompiler(vocabulary, max_threads=num_threads, cache_enabled=False)
            return self._backend

    def _evict(self) -> None:
        """Drops the least recently used until the rest fits. A grammar in use stays alive after it was dropped."""
        num_bytes = sum(entry.num_bytes for entry in self._cache.values())
        while len(self._cache) > 1 and (num_bytes > MAX_CACHED_BYTES or len(self._cache) > MAX_CACHED_GRAMMARS):
            _, dropped = self._cache.popitem(last=False)
            num_bytes -= dropped.num_bytes


class _Entry:
    def __init__(self, compiling: "Future[CompiledGrammar]") -> None:
        self.compiling = compiling
        self._num_bytes: int | None = None

    @property
    def num_bytes(self) -> int:
        """The bytes of the compiled grammar; nothing yet, or nothing ever, where there is none."""
        if self._num_bytes is None and self.compiling.done():
            failed = self.compiling.cancelled() or self.compiling.exception() is not None
            self._num_bytes = 0 if failed else self.compiling.result().num_bytes
        return self._num_bytes or 0


def as_request_error(error: BaseException, spec: GrammarSpec) -> RequestError:
    """Why a grammar could not be compiled, in terms of the client's request."""
    reason = str(error) if isinstance(error, FacetError) else _first_sentence(error)
    return RequestError(f"{spec.field} cannot be used as a {spec.kind} grammar: {reason}", field=spec.field)


def _first_sentence(error: BaseException) -> str:
    """The first sentence of an error, without the library's clock and source positions, and without the grammar that it
    repeats."""
    text = re.sub(r"\[[\d:]+\] \S+:\d+: ", "", str(error))
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


def _calls_or_json(
    change: Callable[[str], str], calls: str, schema: str = ANY_OBJECT, *, any_whitespace: bool
) -> "xgrammar.Grammar":
    import xgrammar

    answer = xgrammar.Grammar.from_ebnf(change(json_grammar(schema, any_whitespace=any_whitespace)))
    return xgrammar.Grammar.union(xgrammar.Grammar.from_lark(change(calls)), answer)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
