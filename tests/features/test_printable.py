"""Names that came in a file, as they are shown."""

import pytest

from roibeam.messages import on_a_line, printable


@pytest.mark.parametrize(
    "text, limit, shown",
    [
        ("short", 10, "short"),
        ("abcdefghij", 7, "abcd…ij"),
        ("a\tb", 10, r"a\tb"),
        ("图 é", 10, "图 é"),
        ("x" * 1000 + "end", 7, "xxxx…nd"),
        ("\x1b[31m" * 9, 12, "\\x1b[31…[31m"),
        ("ab\u202ecd\ud800", 100, r"ab\u202ecd\ud800"),
    ],
)
def test_printable(text: str, limit: int, shown: str) -> None:
    assert printable(text, limit) == shown


def test_a_line_shows_format_characters_and_keeps_other_scripts() -> None:
    hostile = "a\n\t\x1b\x7f\x9b\u2028\x85\u202e\u200b\ufeff\ud800"
    assert on_a_line(hostile) == r"a\n\t\x1b\x7f\x9b\u2028\x85\u202e\u200b\ufeff\ud800"
    assert on_a_line("图\u3000é 👍") == "图\u3000é 👍"
