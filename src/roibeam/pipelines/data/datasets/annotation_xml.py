"""An image's <annotation> in xml, as PASCAL VOC began it and data sets from outside bring it: read without entities and
with a bound on its size."""

from __future__ import annotations

import math
from xml.etree import ElementTree

MAX_XML_BYTES = 4 * 2**20  # the busiest images have some 100 kB


class _PlainTree(ElementTree.TreeBuilder):
    """Builds a tree, but of no file with a document type: that is where entities are declared."""

    def doctype(self, name: str, public_id: str | None, system_id: str | None) -> None:
        raise ValueError("declares a document type, as no annotation of an image does; refused")


def read_annotation_xml(path: str, data_set: str) -> ElementTree.Element:
    """
    Args:
        data_set: whose files these are, for errors.
    Raises:
        ValueError: as `parse_annotation_xml`.
        OSError: if the file cannot be read.
    """
    with open(path, "rb") as file:
        data = file.read(MAX_XML_BYTES + 1)
    return parse_annotation_xml(data, repr(path), data_set)


def parse_annotation_xml(data: bytes, where: str, data_set: str) -> ElementTree.Element:
    """The root of a file's bytes.

    Raises:
        ValueError: if it is no such xml, over 4 MiB, or declares a document type: entities could make it any size.
    """
    if len(data) > MAX_XML_BYTES:
        raise ValueError(f"{where}: over {MAX_XML_BYTES} bytes; annotations of an image are smaller")
    parser = ElementTree.XMLParser(target=_PlainTree())
    try:
        parser.feed(data)
        root = parser.close()
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an encoding nobody knows
        raise ValueError(f"{where}: not an xml annotation ({error})") from None
    if root.tag != "annotation":
        raise ValueError(f"{where}: expected <annotation> as in {data_set}'s xml files, got <{root.tag[:80]}>")
    return root


def xml_text(entry: ElementTree.Element, path: str) -> str:
    return (entry.findtext(path) or "").strip()


def xml_number(entry: ElementTree.Element, path: str) -> float | None:
    """A finite number below a billion, None where there is none."""
    try:
        number = float(xml_text(entry, path))
    except ValueError:
        return None
    return number if math.isfinite(number) and abs(number) < 1e9 else None
