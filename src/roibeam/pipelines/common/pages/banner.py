"""A box on top of a page: what its reader must know before anything else."""

from __future__ import annotations

from dataclasses import dataclass

from roibeam.features.printable import escaped


@dataclass(frozen=True)
class Banner:
    """Attributes:
    title: a few words with a full stop.
    text: one or two sentences.
    """

    title: str
    text: str

    @property
    def line(self) -> str:
        """For the terminal, without the full stop."""
        return f"{self.title} {self.text.rstrip('.')}"


def banner_html(banner: Banner | None) -> str:
    """The box, styled by `PAGE_STYLE`; nothing where there is no banner."""
    if banner is None:
        return ""
    return f'<p class="note"><b>{escaped(banner.title, 200)}</b> {escaped(banner.text, 1000)}</p>\n'
