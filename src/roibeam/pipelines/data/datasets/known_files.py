"""Kinds of common files, recognised by content, and the command or option that reads each.

A command that reads several kinds calls `kind_of`; given a file of another kind, it raises an error with the words of
`describe_file`: what the file is and what to do with it. Only the first lines or entries are read.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from roibeam.extraction.photos.image_ref import IMAGE_EXTENSIONS
from roibeam.features.shard.manifest import STORE_MANIFEST_NAME
from roibeam.messages import printable
from roibeam.pipelines.data.datasets import caption_lists, coco, image_list, karpathy
from roibeam.pipelines.data.datasets.rows import is_web_url, read_json_list, read_json_members

BY_EXTENSION = ("", "image-list", "url-list")  # their content does not decide the format
_MOST_ENTRIES = 20_000  # before one that decides: categories, licences
_HEAD_BYTES = 2**16
_HDF5, _SAFETENSORS = b"\x89HDF\r\n\x1a\n", re.compile(rb".{6}\x00\x00\{\"", re.DOTALL)
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"(lp0\n", b"(lp1\n", b"(dp0\n", b"(dp1\n")
_PHOTOS = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF87a", b"GIF89a", b"II*\x00", b"MM\x00*")
_TASK = "`roibeam finetune` reads the folder that it lies in, as --data"
_TABLE = "`roibeam finetune` reads its folder, as --data"
_NO_READER = "no command reads it"
_GENOME = f"{_NO_READER}; for Visual Genome, `roibeam extract image_data.json` takes the photos"
_FEATURES = "`roibeam store import` makes a store of it"
# Kind -> files of a folder.
_FOLDERS = {"store": {STORE_MANIFEST_NAME}, "lmdb": {"data.mdb"}, "model": {"config.json", "model.safetensors"}}
# Kind -> what it is, where it belongs.
_KNOWN = {
    "store": ("a feature store", "--store of other commands takes it, and `roibeam store show` prints it"),
    "model": ("the folder of a model or a detector", "a detector's goes to --detector, a model's to --from"),
    "lmdb": ("an LMDB", f"if it holds features, {_FEATURES}"),
    "features": ("a file of region features", _FEATURES),
    "other-h5": (
        "an HDF5 file of arrays with other names than those of features",
        "`roibeam store import` reads image_features with image_bb (bua-vqa), and features with image_ids (VisDial)",
    ),
    "oscar-features": ("a feature file of Oscar or VinVL", _FEATURES),
    "oscar-labels": (
        "a file of Oscar's or VinVL's labels",
        "`roibeam store import` reads it beside the file of features, as label.tsv or hw.tsv: name that one",
    ),
    "lineidx": ("a .lineidx, where the lines of a .tsv of Oscar or VinVL begin", "name the .tsv beside it"),
    "weights": ("a file of weights", "a detector's go to --weights; a model's to `roibeam convert` or --from"),
    "refcoco": ("a file of referring expressions, refs(...).p of RefCOCO", f"{_TASK}; --held-out refcoco=FILE, too"),
    "photo": ("a photo", "`roibeam extract` takes it as SOURCE"),
    "image-list": ("a list of images", "`roibeam extract` takes it as SOURCE"),
    "coco": (
        "a COCO file",
        "one of captions goes to --captions, one of instances to --boxes or `roibeam detector train --labels`; "
        "`roibeam extract` takes both as SOURCE",
    ),
    "coco-results": ("a file of detections as COCO scores them", f"{_NO_READER}; --boxes takes COCO instances"),
    "karpathy": (
        "a Karpathy split of images and captions",
        "it goes to --captions or to --held-out karpathy=FILE, or is the SOURCE itself",
    ),
    "url-list": (
        "a list of URLs",
        "`roibeam download FILE OUT` fetches its photos, and `roibeam extract OUT/local.tsv` takes them",
    ),
    "sbu": ("SBU's list of URLs and captions", "`roibeam download` fetches its photos"),
    "flickr30k": ("a list of photos and captions of Flickr8k or Flickr30k", "it goes to --captions, or is the SOURCE"),
    "caption-list": ("a list of images and captions", "it goes to --captions, or is the SOURCE"),
    "visual-genome": ("Visual Genome's image_data.json", "`roibeam extract` takes it as SOURCE"),
    "visual-genome-split": ("a list of photos and xml files of Visual Genome", "`roibeam extract` takes it as SOURCE"),
    "genome-objects": ("Visual Genome's objects.json", _GENOME),
    "genome-attributes": ("Visual Genome's attributes.json", _GENOME),
    "genome-relationships": ("Visual Genome's relationships.json", _GENOME),
    "genome-graphs": ("Visual Genome's scene_graphs.json", _GENOME),
    "genome-regions": (
        "Visual Genome's region_descriptions.json",
        "its phrases are of regions, not of photos: to train on them, write a list of image and caption",
    ),
    "genome-questions": ("Visual Genome's question_answers.json", f"{_TASK}, with VQA's files"),
    "mattnet": ("MAttNet's detections for RefCOCO", "it goes to --boxes"),
    "box-lines": ("a list of boxes", "it goes to --boxes"),
    "vqa": ("a file of questions (VQA)", _TASK),
    "vqa-annotations": ("a file of answers (VQA)", f"{_TASK}, with the questions"),
    "question-list": (
        "a list of questions",
        f"write it as a table with the columns image, question and answers; {_TABLE}",
    ),
    "gqa": (
        "a file of GQA",
        "`roibeam finetune --task` reads its questions with a few lines of Python, which docs/finetuning.md shows",
    ),
    "visdial": ("a file of VisDial's dialogues", _NO_READER),
    "textcaps": ("a file of TextCaps", "write it as a list of image and caption"),
    "conversations": ("a list of conversations, as LLaVA has it", "write it as a list of image and caption"),
    "nlvr2": ("a file of NLVR2's statements", f"{_TASK}; --held-out nlvr2=FILE, too"),
    "snli-ve": ("a file of SNLI-VE's sentences", f"write a table with the columns image, text and label; {_TABLE}"),
    "vcr": ("a file of VCR's questions", f"{_TASK}; `roibeam extract` takes its photos, with it as SOURCE"),
}


def describe_file(path: str, *, but: Collection[str] = ()) -> str:
    """Description of a file or folder and of its reader; "" where it is unknown, or of the kinds `but`."""
    try:
        kind = kind_of(path)
    except OSError:
        return ""  # its reader raises the error
    if kind in but or not kind:
        return ""
    what, advice = _KNOWN[kind]
    return f"this is {what}; {advice}"


def refuse_others(path: str, kinds: Collection[str]) -> None:
    """Raises ValueError where a file or folder is known to be of another kind than these."""
    if words := describe_file(path, but=kinds):
        raise ValueError(f"{path!r}: {words}")


def kind_of(path: str) -> str:
    """A key of what is known, or ""; also for a pipe, which can be read only once."""
    if os.path.isdir(path):
        return next((kind for kind, names in _FOLDERS.items() if names <= set(os.listdir(path))), "")
    if not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    if kind := _binary_kind(path, head):
        return kind
    text = head.decode("utf-8-sig", "replace")
    first = text.lstrip()[:1]
    if first == "{":
        line = json_object(text.lstrip().partition("\n")[0])
        return (line and _line_kind(line)) or _members_kind(path, text)
    if first == "[":
        return _list_kind(path)
    return "" if "\0" in text else _text_kind(path, text)


def json_kind(path: str) -> str:
    """Kind of a .json; one that may be COCO's is, whose reader raises the error. Raises ValueError, with the known
    formats and what the file holds, for any other."""
    kind = kind_of(path)
    if kind not in BY_EXTENSION:
        return kind
    others = f"a Karpathy split, an SBU file, Visual Genome's image_data.json, or {caption_lists.EXPECTED}"
    expected = f"{coco.EXPECTED}, {others}"
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        is_list = file.read(_HEAD_BYTES).lstrip().startswith("[")
    if is_list:
        first = next(read_json_list(path, expected=expected), None)
        got = f"a list whose first entry has {_named(first)}" if isinstance(first, dict) else "a list of no objects"
    else:
        members = itertools.islice(read_json_members(path, expected=expected), _MOST_ENTRIES)
        names = dict.fromkeys(name for name, _, _ in members)
        if not names or not names.keys().isdisjoint(_OF_COCO):
            return "coco"
        got = f"an object with {_named(names)}"
    raise ValueError(f"{path!r}: got {got}; expected {expected}")


_OF_COCO = ("images", "annotations", "categories", "info", "licenses")


def _named(names: Collection[str]) -> str:
    return printable(", ".join(itertools.islice(names, 5)) + (", ..." if len(names) > 5 else ""), 200)


def _binary_kind(path: str, head: bytes) -> str:
    if head.startswith(_HDF5):
        from roibeam.features.exchange.h5_files import OTHER_H5, h5_kind  # takes a tenth of a second

        return OTHER_H5 if h5_kind(Path(path)) == OTHER_H5 else "features"
    if head.startswith(_PICKLES):
        return "refcoco" if b"ref_id" in head else "weights"
    if _SAFETENSORS.match(head) or (head.startswith(b"PK\x03\x04") and b"/data.pkl" in head):  # torch's first member
        return "weights"
    return "photo" if head.startswith(_PHOTOS) else ""


def json_object(line: str) -> dict[str, Any] | None:
    """The object of a line of json; None for any other text."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _line_kind(entry: dict[str, Any]) -> str:
    """Kind of json lines, by the first of them."""
    if "img_fn" in entry:
        return "vcr"
    if "sentence" in entry and "identifier" in entry:
        return "nlvr2"
    if "gold_label" in entry and "sentence2" in entry:
        return "snli-ve"
    if "boxes" in entry and "image_id" in entry:
        return "box-lines"
    return "image-list" if image_list.has_image_column(entry) else ""


# Lists at the top of a json file whose first entry decides the kind.
_MEMBERS: tuple[tuple[str, Callable[[dict[str, Any]], bool], str], ...] = (
    ("images", lambda entry: "sentences" in entry, "karpathy"),
    ("images", lambda _: True, "coco"),
    ("questions", lambda entry: "question" in entry, "vqa"),
    ("annotations", lambda entry: "question_id" in entry, "vqa-annotations"),
    ("annotations", lambda _: True, "coco"),
    ("data", lambda entry: "caption_str" in entry or "reference_strs" in entry, "textcaps"),
    ("data", lambda entry: "question" in entry, "vqa"),
)


def _members_kind(path: str, head: str) -> str:
    if '"dialogs"' in head:  # all of them are one entry, longer than is read
        return "visdial"
    try:
        for name, _, entry in itertools.islice(read_json_members(path, expected="a json object"), _MOST_ENTRIES):
            if name in ("image_urls", "captions", "user_ids"):
                return "sbu"
            if not isinstance(entry, dict):
                continue
            for member, decides, kind in _MEMBERS:
                if name == member and decides(entry):
                    return kind
            if "imageId" in entry or ("objects" in entry and "width" in entry):
                return "gqa"
    except (ValueError, RecursionError):
        pass  # the reader of the expected kind raises the error
    return ""


# A kind, and the names in the first entry of a list, in the order in which they are compared.
_ENTRIES: tuple[tuple[str, frozenset[str]], ...] = (
    ("conversations", frozenset(("conversations",))),
    ("genome-questions", frozenset(("qas",))),
    ("genome-regions", frozenset(("regions",))),
    ("genome-graphs", frozenset(("relationships", "objects"))),
    ("genome-relationships", frozenset(("relationships",))),
    ("genome-objects", frozenset(("image_id", "objects"))),
    ("genome-attributes", frozenset(("image_id", "attributes"))),
    ("question-list", frozenset(("question",))),
    ("caption-list", frozenset(("caption",))),
    ("visual-genome", frozenset(("url",))),
    ("mattnet", frozenset(("image_id", "box"))),
    ("coco-results", frozenset(("image_id", "bbox"))),
)


def _list_kind(path: str) -> str:
    try:
        first = next(read_json_list(path, expected="a json list"), None)
    except (ValueError, RecursionError):
        return ""
    names = first.keys() if isinstance(first, dict) else frozenset()
    return next((kind for kind, keys in _ENTRIES if keys <= names), "")


def _is_of_url(line: str) -> bool:
    """Whether it is a caption and the URL of its image, in any order. Beside a local path, a URL is the caption."""
    cells = [cell.strip() for cell in line.split("\t")]
    urls = [cell for cell in cells if is_web_url(cell) and " " not in cell]
    others = [os.path.splitext(cell)[1].lower() for cell in cells if cell not in urls]
    return len(cells) == 2 and bool(urls) and IMAGE_EXTENSIONS.isdisjoint(others)


_BASE64 = re.compile(r"[A-Za-z0-9+/]{40,}={0,2}$")
_NUMBERS = re.compile(r"[0-9]+")


def _text_kind(path: str, text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    if caption_lists.caption_layout(path) is not None:
        return "flickr30k"
    cells = [cell.strip() for cell in lines[0].split("\t")]
    numbers = [int(line) for line in lines[:20] if _NUMBERS.fullmatch(line.strip())]
    if len(cells) == 1 and len(numbers) == min(len(lines), 20) > 1 and numbers[0] == 0:
        # An image list of numbers counts on; a line of theirs has more than a few bytes.
        return "lineidx" if all(b - a > 20 for a, b in itertools.pairwise(numbers)) else ""
    if len(cells) in (2, 3) and cells[1].startswith(("[{", "[]")) and '"' in cells[-1]:
        return "oscar-labels"
    if len(cells) == 2 and (_BASE64.match(cells[1]) or cells[1].startswith("{")):
        return "oscar-features"
    if len(cells) == 3 and _NUMBERS.fullmatch(cells[1]) and _BASE64.match(cells[2]):
        return "oscar-features"
    if len(cells) > 3 and all(map(_NUMBERS.fullmatch, cells[1:3])):
        return "features"
    if karpathy.has_columns(path):
        return "karpathy"
    if len(cells) > 1:
        return "url-list" if all(map(_is_of_url, lines[:20])) else ""
    if lines[0].strip().lower().endswith(".xml"):
        return "visual-genome-split"
    return "image-list" if os.path.splitext(lines[0].strip())[1].lower() in IMAGE_EXTENSIONS else ""
