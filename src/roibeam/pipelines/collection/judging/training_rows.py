"""Training rows of the judges: labelled by people in CSV files, or wrong pairs made of right ones, in four kinds.

CSV has a header and is read strictly, each fault with its line. Wrong pairs are roibeam's: the paper mentions none.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.messages import printable
from roibeam.pipelines.collection.judging.pair_features import WORD, NameReader
from roibeam.pipelines.common.image_ids import is_utf8
from roibeam.pipelines.data.datasets.rows import NOT_UTF8, OTHER_ENCODING, OTHER_FIELDS, BadRow
from roibeam.pipelines.data.datasets.tables import read_csv_table

IMAGE_LABELS = {"natural": True, "not": False}
PAIR_LABELS = {"1": True, "0": False}
LABELLED = "labelled"


@dataclass(frozen=True)
class TrainedPair:
    """
    Attributes:
        text: beside it; others: the other texts beside it on the page.
        label: whether the text describes the image.
        kind: "curated", `LABELLED` or one of `KINDS`.
        page: of the text; "" for a curated caption.
    """

    image: str
    text: str
    others: tuple[str, ...]
    label: bool
    kind: str
    page: str = ""


def read_labelled_images(path: Path) -> list[tuple[Path, bool]]:
    """Reads the columns image and label ("natural" or "not"). Raises ValueError for any other file, with the line.

    Paths are absolute, or below the folder of the CSV.
    """
    rows = _rows(path, ("image", "label"), IMAGE_LABELS)
    return [(path.parent / row["image"], IMAGE_LABELS[row["label"]]) for row in rows]


def read_labelled_texts(path: Path) -> list[TrainedPair]:
    """Reads the columns image, text and label (1 if the text describes the image, else 0), and page if there; the texts
    beside each other are not looked for."""
    rows = _rows(path, ("image", "text", "label"), PAIR_LABELS)
    return [
        TrainedPair(row["image"], row["text"], (), PAIR_LABELS[row["label"]], LABELLED, row.get("page", ""))
        for row in rows
    ]


def _rows(path: Path, columns: Sequence[str], labels: Mapping[str, bool]) -> Iterator[dict[str, str]]:
    num_rows = 0
    try:
        names, rows = read_csv_table(str(path))
        missing = [column for column in columns if column not in names]
        if missing:
            raise ValueError(f"no column {missing[0]!r}; expected a first line with {', '.join(columns)}")
        for found in rows:
            num_rows += 1
            if isinstance(found, BadRow):
                reason = f"expected {len(names)} fields" if found.reason == OTHER_FIELDS else found.reason
                raise ValueError(f"line {found.line}: {reason}")
            line, fields = found
            row = dict(zip(names, fields, strict=True))
            if not is_utf8("".join(fields)):
                raise ValueError(f"line {line}: {NOT_UTF8}; {OTHER_ENCODING}")
            if row["label"] not in labels:
                got = printable(row["label"], 40)
                raise ValueError(f"line {line}: label {got!r}, expected {' or '.join(labels)}")
            if not row["image"] or "\0" in row["image"]:
                raise ValueError(f"line {line}: no image")
            yield row
        if not num_rows:
            raise ValueError("no rows in it")
    except ValueError as error:
        raise ValueError(f"{path}: {printable(str(error).removeprefix(f'{str(path)!r}: '), 300)}") from None


RANDOM, SAME_PAGE, SAME_CLASS, SWAPPED = "random", "same page", "same class", "swapped noun"
KINDS = (RANDOM, SAME_PAGE, SAME_CLASS, SWAPPED)
_TRIES = 8


def negatives(
    right: Sequence[TrainedPair], top_class: dict[str, int], records: dict[str, RegionRecord], reader: NameReader,
    generator: np.random.Generator,
) -> Iterator[TrainedPair]:  # fmt: skip
    """Yields for each right pair at most one wrong one of each kind."""
    by_image: dict[str, list[TrainedPair]] = defaultdict(list)
    by_class: dict[int, list[str]] = defaultdict(list)
    by_site: dict[str, list[str]] = defaultdict(list)
    for pair in right:
        if pair.image not in by_image and pair.image in top_class:
            by_class[top_class[pair.image]].append(pair.image)
        by_image[pair.image].append(pair)
        for place in places_of(pair.page):
            by_site[place].append(pair.image)
    images = list(by_image)
    for pair in right:
        pools = {
            RANDOM: images,
            SAME_PAGE: next((by_site[place] for place in places_of(pair.page) if len(set(by_site[place])) > 1), []),
            SAME_CLASS: by_class.get(top_class.get(pair.image, -1), []),
        }
        for kind, pool in pools.items():
            other = _another(pool, pair.image, generator)
            if other is not None:
                wrong = by_image[other][int(generator.integers(len(by_image[other])))]
                # Texts beside a wrong one are as wrong in half of the cases: a page about another picture.
                others = wrong.others if generator.random() < 0.5 else pair.others
                yield TrainedPair(pair.image, wrong.text, others, False, kind, pair.page)
        swapped = swapped_noun(pair.text, records.get(pair.image), reader, generator)
        if swapped is not None:
            yield TrainedPair(pair.image, swapped, pair.others, False, SWAPPED, pair.page)


def places_of(page: str) -> tuple[str, ...]:
    """Returns the page, then the folder of its address: images of one page are rare, so those of one site come next."""
    return (page, page.rpartition("/")[0]) if "/" in page else (page,) if page else ()


def swapped_noun(
    text: str, record: RegionRecord | None, reader: NameReader, generator: np.random.Generator
) -> str | None:
    """Exchanges one thing of a text for another that the detector does not see there; None where it names none."""
    spans = list(WORD.finditer(text))
    things = reader.things([span.group().lower() for span in spans])
    if not things:
        return None
    thing = things[int(generator.integers(len(things)))]
    seen = set() if record is None else set(record.class_ids[record.class_scores >= 0.2].tolist())
    free = [number for number in range(len(reader.class_names)) if number not in seen and number != thing.class_id]
    if not free:
        return None
    name = reader.class_names[free[int(generator.integers(len(free)))]].split(",")[0]
    # In place: a text that lost its capitals and full stops would be known by that.
    first, last = spans[thing.place].start(), spans[thing.place + thing.length - 1].end()
    return text[:first] + name + text[last:]


def _another(images: Sequence[str], image: str, generator: np.random.Generator) -> str | None:
    for _ in range(_TRIES if len(images) > 1 else 0):
        found = images[int(generator.integers(len(images)))]
        if found != image:
            return found
    return None
