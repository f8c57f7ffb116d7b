"""The elements of a page and its text, as a browser would see them."""

from html.parser import HTMLParser


class HtmlPage(HTMLParser):
    """Fails where an element is left open, or closed that is not.

    Attributes:
        elements: each with its attributes, in their order.
    """

    VOID = ("meta", "link", "img", "br", "hr", "input", "image", "rect")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.text = html, ""
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, self._open
        self.text = " ".join(self.text.split())

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
