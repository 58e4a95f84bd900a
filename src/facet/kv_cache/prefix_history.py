"""Remembers when a prefix was last used, even after its blocks are gone.

It gives two hints: where a prompt diverges from earlier ones, and how long ago a sequence was last used. Old entries
are dropped by generations, because deleting a dictionary's oldest entry again and again gets slower and slower.
"""

from facet.kv_cache.prefix_chain import PrefixChain

# Digests per generation, each of one link and about 150 bytes.
GENERATION_SIZE = 1 << 17


class PrefixHistory:
    def __init__(self) -> None:
        self._young: dict[bytes, int] = {}
        self._old: dict[bytes, int] = {}

    def last_passage(self, chain: PrefixChain) -> tuple[int, int] | None:
        """How many links of `chain` an earlier request shared, and the tick of the last one that did."""
        for num_links in range(len(chain.digests), 0, -1):
            digest = chain.digests[num_links - 1]
            tick = self._young.get(digest) or self._old.get(digest)
            if tick is not None:
                return num_links, tick
        return None

    def remember(self, chain: PrefixChain, tick: int) -> None:
        """Records that a request had all of `chain`. Ticks count from 1."""
        self._young.update(dict.fromkeys(chain.digests, tick))
        if len(self._young) > GENERATION_SIZE:
            self._old, self._young = self._young, {}
