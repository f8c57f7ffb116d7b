"""Characters for tests that draw texts."""

from hypothesis import strategies as st

# Any but surrogates, often one of a keyboard. `st.text` first looks up all 1.1 million: seconds in a fresh clone.
CHARACTERS = (st.integers(32, 126) | st.integers(0, 0xD7FF) | st.integers(0xE000, 0x10FFFF)).map(chr)


def texts(max_size: int, min_size: int = 0, characters: st.SearchStrategy[str] = CHARACTERS) -> st.SearchStrategy[str]:
    """Texts of so many characters."""
    return st.lists(characters, min_size=min_size, max_size=max_size).map("".join)
