"""A picture of the KV cache: how many pages of each kind every cell of neighbouring pages holds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesOfAKind:
    """A page is of one kind at most; pages of none are free."""

    kind: str  # "sliding" or "global": in tables of running requests; "cached": held by the prefix cache alone
    num_pages: int
    cells: tuple[int, ...]  # how many of each cell's pages are of this kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaPicture:
    num_pages: int  # that requests can use: all but the scratch page
    page_bytes: int
    pages_per_cell: int  # the last cell may have fewer
    kinds: tuple[PagesOfAKind, ...]
