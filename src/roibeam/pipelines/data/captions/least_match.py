"""How many images of a caption file must be there; alone in a file, so that a request costs no import of the join."""

from __future__ import annotations

# Share, 0..1. A wrong folder gives next to nothing. Of Conceptual Captions a third of the links were dead years ago,
# and more die.
MIN_MATCH = 0.25
