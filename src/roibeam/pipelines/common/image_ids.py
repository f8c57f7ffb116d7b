"""Image ids: how a path becomes one, and names that cannot be one.

No path of a row leaves its folder. An image with an unusable name becomes a dead letter, so that one name ends no
crawl. It is planned like others, with a location that begins with one of these words; reading it gives the reason:

name-not-utf8:/photos/a\\xff.jpg     a file name that is not UTF-8: bytes that are none as \\xHH, a backslash as two
id-too-long:/photos/...             an id of over 511 bytes, which is cut and has the start of its SHA-256 behind it
"""

import hashlib
import os
import unicodedata
from dataclasses import replace

from roibeam.extraction.photos.image_ref import ImageRef, PhotoReadError, without_image_extension
from roibeam.features.record.region_record import MAX_IMAGE_ID_BYTES

MAX_PATH_LETTERS = 4096  # no path that the system takes is longer
ID_RULES = ("no-extension", "with-extension")


def image_id_of(relative_path: str, *, id_rule: str = "no-extension") -> str:
    """Path below the image root, without "." and ".." parts -> image id.

    "no-extension" drops an image extension ("train2014/COCO_1.jpg" -> "train2014/COCO_1"; ".jpg", "a." and "scene.1"
    have none), so that captions that name the image join whatever format it was saved in; "with-extension" keeps the
    path as it is.
    """
    if id_rule not in ID_RULES:
        raise ValueError(f"id rule {id_rule!r}: choose one of {', '.join(ID_RULES)}")
    if id_rule == "with-extension":
        return relative_path
    return without_image_extension(relative_path)


def check_id_prefix(prefix: str) -> None:
    """Raises ValueError unless a prefix of ids is none, or the path of a folder with a slash at its end.

    Names that files have for images are found below any folders; before a name without a slash they would not be.
    """
    try:
        is_folder = not prefix or f"{path_below(prefix)}/" == prefix
    except ValueError:
        is_folder = False
    if not is_folder:
        raise ValueError(
            f"--id-prefix {prefix!r}: expected the path of a folder with a slash at its end, such as cc3m/; captions, "
            f"boxes and held-out lists then find the images without it too"
        )


def path_below(name: str) -> str:
    """A file name taken from an annotation file -> the path below the image root, without "." and ".." parts. Raises
    ValueError if the name is absolute, climbs out of the root or names no file: annotation files come from strangers.
    The message is a short reason without the name, so that rows can be counted by it."""
    if len(name) > MAX_PATH_LETTERS:
        raise ValueError(f"path longer than {MAX_PATH_LETTERS} characters")
    relative = os.path.normpath(name)
    if os.path.isabs(name) or relative == ".." or relative.startswith(".." + os.sep):
        raise ValueError("path leaves the image folder")
    if relative == "." or "\0" in name:
        raise ValueError("path names no file")
    if not is_utf8(name):
        raise ValueError("path is not valid UTF-8; rename the file")
    return relative


def short_name(image_id: str) -> str:
    """Last path component without its image extension ("train/00.07.083@0.JPG" -> "00.07.083@0", ".jpg" as it is)."""
    return without_image_extension(image_id.replace("\\", "/").rsplit("/", 1)[-1])


def backwards(name: str) -> str:
    """ "a/b/x.jpg" -> "x/b/a/", so that sorted paths of one ending stand together; "" for no component."""
    folders = name.replace("\\", "/").split("/")[:-1]
    parts = [*folders, short_name(name)]
    return "".join(part + "/" for part in reversed(parts) if part not in ("", "."))


def in_nfc(name: str) -> str:
    """Returns the form in which names are compared: a Mac writes "é" as "e" and an accent, others as one letter."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def forms_of(name: str) -> tuple[str, ...]:
    """Returns a name as it is, then in NFC and as a Mac writes it, as far as these differ."""
    if name.isascii():
        return (name,)
    return tuple(dict.fromkeys((name, *(unicodedata.normalize(form, name) for form in ("NFC", "NFD")))))


def is_utf8(name: str) -> bool:
    """Whether a path can be encoded: not if its bytes are no UTF-8, nor with half a surrogate pair from a json."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


_NOT_UTF8, _TOO_LONG = "name-not-utf8:", "id-too-long:"
_ELLIPSIS, _DIGEST_LETTERS = "...", 16


def with_usable_name(image: ImageRef) -> ImageRef:
    """The image as it is, or one with an id that can be planned, which gives a dead letter when it is read."""
    location = image.location
    if image.image_id.isascii() and location.isascii() and len(image.image_id) <= MAX_IMAGE_ID_BYTES:
        return image
    if not (is_utf8(image.image_id) and is_utf8(location)):
        location = _NOT_UTF8 + escaped_name(location)
        image = replace(image, image_id=escaped_name(image.image_id))
    data = image.image_id.encode("utf-8")
    if len(data) > MAX_IMAGE_ID_BYTES:
        location = location if location.startswith(_NOT_UTF8) else _TOO_LONG + location
        end = _ELLIPSIS + hashlib.sha256(data).hexdigest()[:_DIGEST_LETTERS]
        start = data[: MAX_IMAGE_ID_BYTES - len(end)].decode("utf-8", "ignore")
        image = replace(image, image_id=start + end)
    return image if location == image.location else replace(image, location=location)


def check_usable(location: str) -> None:
    """Raises PhotoReadError, with the reason of the dead letter, for the location of an image with no usable name."""
    if location.startswith(_NOT_UTF8):
        raise PhotoReadError("name not UTF-8", "the file's name is not UTF-8; rename it and run the same command")
    if location.startswith(_TOO_LONG):
        raise PhotoReadError(
            "id too long",
            f"an id has at most {MAX_IMAGE_ID_BYTES} bytes; give the file a shorter path and run the same command",
        )


def escaped_name(name: str) -> str:
    r"""Returns a name as text: where it is not UTF-8, "a\b" with the byte FF behind it -> "a\\b\xff", so that bytes
    and text differ; a UTF-8 name as it is."""
    if is_utf8(name):
        return name
    return "".join(map(_escaped, name))


def _escaped(letter: str) -> str:
    if letter == "\\":
        return "\\\\"
    code = ord(letter)
    if 0xDC80 <= code <= 0xDCFF:  # how Python writes a byte that is no UTF-8 (PEP 383)
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if 0xD800 <= code <= 0xDFFF else letter
