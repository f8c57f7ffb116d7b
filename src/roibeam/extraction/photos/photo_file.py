"""The name of one photo, its bytes, and why they cannot be had.

No torch: sources and stores read files without a detector.
"""

from __future__ import annotations

import os
import stat

# Of files that are taken for photos where they lie in a folder or an archive.
IMAGE_EXTENSIONS = frozenset(
    ".jpg .jpeg .jpe .jfif .png .gif .webp .avif .bmp .dib .tif .tiff .ppm .pgm .pbm .pnm .jp2".split()
)
# Photos all the same, of formats that nothing here reads.
UNREAD_EXTENSIONS = frozenset(".heic .heif .jxl .dng .cr2 .cr3 .nef .arw .orf .rw2 .raf".split())
# No folder is searched for these, but lists name such files, and some are read: .mpo is a JPEG.
_OTHER_EXTENSIONS = frozenset(
    ".apng .mpo .jif .jfi .j2k .j2c .jpf .jpx .pam .pfm .ras .hdr .exr .svg .ico .psd .tga".split()
)
# Only these are taken off a name: ids have dots of their own ("00.00.05.905-00.00.07.083@0" of VCR).
_CUT_OFF = IMAGE_EXTENSIONS | UNREAD_EXTENSIONS | _OTHER_EXTENSIONS

MAX_FILE_BYTES = 512 * 2**20


class PhotoReadError(OSError):
    """A photo that cannot be read, for a reason that is to be counted by its own word.

    Attributes:
        reason: as in `Failure`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def without_image_extension(path: str) -> str:
    """ "a/b.JPG" -> "a/b"; "scene.1", ".jpg" and "a." are whole names."""
    stem, dot, extension = path.rpartition(".")
    is_image = dot + extension.lower() in _CUT_OFF and stem.rpartition("/")[2].strip(".")
    return stem if is_image else path


def read_local_file(location: str) -> bytes:
    """Reads one local file, refusing what no image of the default pixel limit can be (over 512 MiB)."""
    # Without blocking: a pipe or device named .jpg would otherwise be waited for until somebody writes into it.
    with open(os.open(location, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise OSError(f"larger than {MAX_FILE_BYTES} bytes")
        return file.read(status.st_size)  # read() makes room for what it is asked for
