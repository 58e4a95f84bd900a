"""Numbers as people write them."""

import pytest

from facet.quantity import parse_quantity, shown_bytes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("8192", 8192), ("-1", -1), (" 7 ", 7)),
        *(("32k", 32_000), ("32K", 32_768), ("25.6k", 25_600), ("4G", 4 << 30), ("1t", 10**12)),
        *(("24GB", 24 * 10**9), ("24gib", 24 << 30), ("1.5 MiB", 3 << 19)),
    ],
)
def test_numbers(text: str, value: int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0.0 MiB"), (5 << 19, "2.5 MiB"), (1 << 27, "0.12 GiB"), (41 << 30, "41.00 GiB")]
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert shown_bytes(num_bytes) == text


@pytest.mark.parametrize("text", ["", "k", "1.5", "1e3", "4Gi", "4KBs", "4x", "0x10", "١"])
def test_no_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number such as"):
        parse_quantity(text)
