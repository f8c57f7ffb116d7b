"""Sources and formats of weight files: any weights spec as a path of this machine, and the container of a file.

    /models/vg.pth                        a local file, used in place; file:///models/vg.pth is the same
    hf:unc-nlp/frcnn-vg-finetuned@main    a Hugging Face repository, through huggingface_hub and its own cache
    https://host/vg.pth#sha256=<hex>      downloaded to the cache, checked; without the sum a warning is logged
    gs://, s3://, hdfs://, ...            copied to the cache through Apache Beam's filesystems, a slow import

Cached files are named by their source and by its ETag, size and time, so a changed file is fetched again; they are
written aside and renamed. Containers are known by their first bytes: safetensors by a length and `{`, torch by a zip or
its older signature, pickle by its first opcodes; `.caffemodel` has no signature and is known by its suffix. No torch
until a file is written: a wrong name or file is reported before seconds are spent on importing it.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import importlib
import importlib.util
import json
import logging
import os
import pickle
import re
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from roibeam.features.folders.durable_files import cache_folder
from roibeam.messages import first_line

if TYPE_CHECKING:
    from torch import Tensor


def beam_filesystems() -> Any:
    """Beam's class `FileSystems`. It has options, if only empty ones, without which that of S3 opens nothing."""
    filesystems = importlib.import_module("apache_beam.io.filesystems").FileSystems
    if filesystems._pipeline_options is None:  # neither a command nor a worker process has set them
        filesystems.set_options(importlib.import_module("apache_beam.options.pipeline_options").PipelineOptions([]))
    return filesystems


def require_credentials(url: str) -> None:
    """Raises ValueError for a URL of S3 without credentials: Beam would look for them again and again, for minutes."""
    if not url.lower().startswith("s3://"):
        return
    options = importlib.import_module("apache_beam.options.pipeline_options").S3Options
    if beam_filesystems()._pipeline_options.view_as(options).s3_access_key_id is None and not _has_own():
        raise ValueError(
            "no credentials for S3 are found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write "
            "~/.aws/credentials"
        )


@functools.cache
def _has_own() -> bool:
    """Whether boto3 finds credentials in the environment, in its files, or on a machine of Amazon's; without boto3 Beam
    reports that it is missing."""
    if importlib.util.find_spec("boto3") is None:
        return True
    return importlib.import_module("boto3").Session().get_credentials() is not None


# A name and a length in bytes (None if unknown) -> a context; call its value with each number of received bytes.
DownloadDisplay = Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]]


@contextmanager
def own_bar(name: str, length: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error if that is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=length)
        yield lambda count: bar.update(task, advance=count)


_display: DownloadDisplay = own_bar


def show_downloads(by: DownloadDisplay) -> None:
    """Sets the progress display of downloads in this process."""
    global _display
    _display = by


_log = logging.getLogger(__name__)
_TIMEOUT_S = 60
_MIN_BYTES_PER_SECOND = 4096  # on average, once `_TIMEOUT_S` is over: a server may drip for ever
_BLOCK = 2**20
_MOST_BYTES = 64 * 2**30  # of a file whose server states no size
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HUB_FILES = ("model.safetensors", "pytorch_model.bin")


def default_cache_dir() -> Path:
    """The folder `weights` of `cache_folder`."""
    return cache_folder() / "weights"


def fetch_weights(spec: str, *, cache_dir: Path | None = None) -> Path:
    """The file that `spec` names (see the top of this file for the forms), fetched if it is not here.

    Args:
        spec: anything but `random:<seed>`, which is no file.
        cache_dir: for https and remote filesystems; None means `default_cache_dir()`.
    Raises:
        ValueError: if there is no such file, the checksum differs or the form is unknown.
        OSError: if the network or the filesystem fails.
    """
    if spec.startswith("hf:"):
        return fetch_from_hub(spec)
    url, _, checksum = spec.partition("#sha256=")
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if not scheme:
        return _local(Path(spec).expanduser(), spec)
    if checksum and not re.fullmatch("[0-9a-fA-F]{64}", checksum):
        raise ValueError(f"weights {spec}: #sha256= takes 64 hexadecimal digits, got {len(checksum)} characters")
    if scheme == "file":
        if checksum:
            raise ValueError(f"weights {spec}: a checksum is for files that are fetched; this one is here already")
        return _local(Path(urllib.request.url2pathname(urllib.parse.urlsplit(url).path)), spec)
    cache_dir = cache_dir or default_cache_dir()
    if checksum and (pinned := _cached_with_checksum(url, checksum.lower(), cache_dir)):
        return pinned
    if scheme in ("https", "http"):
        return _from_web(url, checksum.lower(), cache_dir)
    return _from_beam(url, checksum.lower(), cache_dir)


def _local(path: Path, spec: str) -> Path:
    if not path.exists():
        raise ValueError(f"weights {spec}: no such file; give a path, hf:<repo>, https://... or random:<seed>")
    if not path.is_file():
        raise ValueError(f"weights {spec}: not a file; name the .safetensors or .pth file itself")
    return path


def fetch_from_hub(spec: str, names: Sequence[str] = _HUB_FILES) -> Path:
    """The first of the files `names` that a Hugging Face repository has, from the hub or its cache.

    Args:
        spec: hf:<owner>/<name> or hf:<owner>/<name>@<revision>.
    Raises:
        ValueError: if the repository, the revision or all of the files do not exist.
        OSError: if the hub cannot be reached and its cache has none of them.
    """
    from huggingface_hub import errors as hub
    from huggingface_hub import hf_hub_download

    repo, _, revision = spec.removeprefix("hf:").partition("@")
    for name in names:
        try:
            with hub_errors(spec):
                return Path(hf_hub_download(repo, name, revision=revision or None))
        except hub.LocalEntryNotFoundError as error:  # neither reached nor in the hub's cache; the other may be there
            unreached: Exception | None = error
        except hub.EntryNotFoundError:
            unreached = None
    if unreached is not None:
        raise OSError(
            f"weights {spec}: the hub cannot be reached and its cache holds no {' or '.join(names)}; "
            f"fetch it on a machine with network, or hand over a local file"
        ) from None
    raise ValueError(f"weights {spec}: the repository has no {' or '.join(names)}; name a file by its URL")


@contextmanager
def hub_errors(spec: str) -> Iterator[None]:
    """Context that gives huggingface_hub's errors one line; those of files that are not there pass unchanged."""
    from huggingface_hub import errors as hub

    try:
        yield
    except (hub.LocalEntryNotFoundError, hub.EntryNotFoundError):
        raise
    except hub.HFValidationError as error:
        raise ValueError(f"weights {spec}: {first_line(error)}; write hf:<owner>/<name> or with @<revision>") from None
    except hub.RevisionNotFoundError:
        raise ValueError(f"weights {spec}: the repository has no revision {spec.partition('@')[2]!r}") from None
    except hub.RepositoryNotFoundError as error:
        raise ValueError(f"weights {spec}: no such repository, or no right to read it: {first_line(error)}") from None
    except OSError as error:
        raise OSError(f"weights {spec}: {first_line(error)}") from None


def _from_web(url: str, checksum: str, cache_dir: Path) -> Path:
    # torch.hub.download_url_to_file takes a broken connection for the end of the file; this does not.
    _check_url(url)
    request = urllib.request.Request(url, headers={"User-Agent": "roibeam"})
    try:
        with urllib.request.build_opener(_CheckedRedirects).open(request, timeout=_TIMEOUT_S) as response:
            headers = response.headers
            length = int(headers["Content-Length"]) if headers.get("Content-Length", "").isdecimal() else None
            version = headers.get("ETag") or headers.get("Last-Modified")
            target = _cache_path(cache_dir, url, f"{version} {length}" if version else "", checksum)
            if not checksum and version and target.exists():
                return target
            return _store(response, target, url, length=length, checksum=checksum, warn=not checksum)
    except urllib.error.HTTPError as error:
        raise ValueError(f"weights {url}: the server answers {error.code} {error.reason}") from None
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        if not checksum and (older := _newest(cache_dir, url)):
            _log.warning(
                "weights %s cannot be reached (%s); using the copy from before: %s", url, first_line(error), older
            )
            return older
        raise OSError(f"weights {url}: cannot be fetched: {first_line(error)}") from None


class _CheckedRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to URLs that a user may give: it must not leave https."""

    def redirect_request(self, *arguments: Any) -> urllib.request.Request | None:
        _check_url(arguments[-1])
        return super().redirect_request(*arguments)


def _check_url(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    # Weights decide every feature, so they must not be changed on the way; loopback has no way.
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ValueError(f"weights {url}: use https (plain http is for this machine only)")


def _from_beam(url: str, checksum: str, cache_dir: Path) -> Path:
    try:
        filesystems = beam_filesystems()
        compression = importlib.import_module("apache_beam.io.filesystem").CompressionTypes.UNCOMPRESSED
    except ImportError:
        raise ValueError(
            f"weights {url}: remote filesystems need apache-beam, which is not installed; "
            f"copy the file here and give its path"
        ) from None
    try:
        require_credentials(url)
        matches = filesystems.match([url])[0].metadata_list
        if len(matches) != 1:
            raise ValueError(f"weights {url}: {'no such file' if not matches else 'names more than one file'}")
        metadata = matches[0]
        version = f"{metadata.size_in_bytes} {metadata.last_updated_in_seconds} {_beam_checksum(filesystems, url)}"
        target = _cache_path(cache_dir, url, version, checksum)
        if not checksum and target.exists():
            return target
        with filesystems.open(url, compression_type=compression) as stream:
            return _store(stream, target, url, length=metadata.size_in_bytes, checksum=checksum)
    except ValueError as error:
        # Beam's own message, "Unable to get filesystem from specified path": an unknown scheme, or a missing extra.
        message = str(error)
        raise ValueError(message if message.startswith("weights ") else f"weights {url}: {first_line(error)}") from None
    except OSError as error:  # BeamIOError is one
        raise OSError(f"weights {url}: {first_line(error)}") from None


def _beam_checksum(filesystems: type, url: str) -> str:
    try:
        return str(filesystems.checksum(url))  # type: ignore[attr-defined]
    except (OSError, NotImplementedError):
        return ""  # not every filesystem has one; size and time still distinguish versions


def _cache_path(cache_dir: Path, url: str, version: str, checksum: str) -> Path:
    tag = checksum[:16] if checksum else hashlib.sha256(version.encode()).hexdigest()[:16]
    return cache_dir / f"{_url_tag(url)}-{tag}-{_base_name(url)}"


def _cached_with_checksum(url: str, checksum: str, cache_dir: Path) -> Path | None:
    """The cached file, if its bytes still have the checksum; a damaged one is as good as none."""
    path = _cache_path(cache_dir, url, "", checksum)
    if not path.exists():
        return None
    with path.open("rb") as file:
        return path if hashlib.file_digest(file, "sha256").hexdigest() == checksum else None


def _newest(cache_dir: Path, url: str) -> Path | None:
    found = cache_dir.glob(f"{_url_tag(url)}-*") if cache_dir.is_dir() else ()
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _url_tag(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def _base_name(url: str) -> str:
    # Kept for its suffix, which names the format, and for people who look into the cache.
    name = PurePosixPath(urllib.parse.unquote(urllib.parse.urlsplit(url).path)).name
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[-100:] or "weights"


def _store(stream: BinaryIO, target: Path, url: str, *, length: int | None, checksum: str, warn: bool = False) -> Path:
    """Copies a stream to `target`, which appears when it is complete and checked, or not at all; warns, on request,
    that no checksum was given, and how to give one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _log.info("fetching %s to %s", url, target)
    digest, received = hashlib.sha256(), 0
    start, read = time.monotonic(), getattr(stream, "read1", stream.read)  # a server's: what is there
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".part-", delete=False) as part:
        try:
            with _display(_base_name(url), length) as advance:
                while block := read(_BLOCK):
                    part.write(block)
                    digest.update(block)
                    received += len(block)
                    if received > (_MOST_BYTES if length is None else length):
                        raise OSError(f"weights {url}: more than {received - len(block)} bytes came; nothing was kept")
                    if received < (time.monotonic() - start - _TIMEOUT_S) * _MIN_BYTES_PER_SECOND:
                        raise OSError(f"weights {url}: only {received} bytes came so far; the server is too slow")
                    advance(len(block))
            if length is not None and received != length:
                raise OSError(f"weights {url}: broke off after {received} of {length} bytes; try again")
            if checksum and digest.hexdigest() != checksum:
                raise ValueError(
                    f"weights {url}: SHA-256 is {digest.hexdigest()}, wanted {checksum}; "
                    f"the file changed or was damaged on the way, nothing was kept"
                )
            part.flush()
            os.fsync(part.fileno())
            os.replace(part.name, target)
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise
    if warn:
        _log.warning(
            "weights %s: taken as the server sent them; to take no others from now on, write %s#sha256=%s",
            url, url, digest.hexdigest(),
        )  # fmt: skip
    return target


SUFFIXES = (".safetensors", ".pth", ".pt", ".th", ".bin", ".model", ".pkl", ".caffemodel")
# torch/serialization.py MAGIC_NUMBER as pickle writes it: the files of torch before 1.6.
_OLD_TORCH = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
_MOST_HEADER = 100_000_000  # bytes, as safetensors itself allows
_SHORTEST = 8  # bytes of a safetensors file: the length of its header


def container_of(path: Path) -> str:
    """The container of a file: safetensors, torch, pickle or caffe.

    Raises:
        ValueError: one line, if the file is of no known kind, or is cut off.
        OSError: if it cannot be read.
    """
    suffix = path.suffix.lower()
    if path.is_dir():
        raise ValueError(f"weights {path}: is a folder; name the .safetensors or .pth file itself")
    if suffix not in SUFFIXES:
        raise ValueError(f"weights {path}: unknown suffix {path.suffix!r}; readable are {', '.join(SUFFIXES)}")
    if suffix == ".caffemodel":
        return "caffe"
    with path.open("rb") as file:
        head = file.read(16)
    if suffix == ".safetensors" or head[8:9] == b"{":
        _check_safetensors(path)
        return "safetensors"
    if head.startswith(b"PK\x03\x04") or head.startswith(_OLD_TORCH):
        if head.startswith(b"PK") and not zipfile.is_zipfile(path):
            raise ValueError(f"weights {path}: not a complete torch file: its end is missing; fetch it again")
        return "torch"
    if suffix == ".pkl" or (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05" and len(head) > 1):
        return "pickle"
    raise ValueError(
        f"weights {path}: not a complete torch file, safetensors file or pickle; it starts with {head[:12]!r}"
    )


def check_weight_file(spec: str | os.PathLike[str] | None) -> None:
    """Raises ValueError or OSError for a local file that cannot be weights; other weights are not checked."""
    path = Path(spec or "").expanduser()
    if spec is not None and path.exists():
        container_of(path)


def _check_safetensors(path: Path) -> None:
    """Raises ValueError if the header is invalid, or promises other bytes than the file has."""
    there = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(_SHORTEST)
        length = int.from_bytes(first, "little")
        if there < _SHORTEST or length > min(_MOST_HEADER, there):
            what = "it is text" if first.isascii() and first.strip(b"\0") and b"\0" not in first else "it is cut off"
            raise ValueError(f"weights {path}: not a complete safetensors file: {what}; fetch or write it again")
        text = file.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        promised = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if any(not isinstance(size, int) or size < 0 for entry in header.values() for size in entry["shape"]):
            raise ValueError
        is_whole = _SHORTEST + length + promised == there
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise ValueError(
            f"weights {path}: not a complete safetensors file: its header is damaged; fetch or write it again"
        ) from None
    if not is_whole:
        raise ValueError(
            f"weights {path}: not a complete safetensors file: {there:,} bytes, its header promises "
            f"{_SHORTEST + length + promised:,}; fetch or write it again"
        )


@dataclass(frozen=True)
class WeightFormat:
    """A kind of file for writing.

    Attributes:
        suffix: of such files; None if another one decides.
        family: of its names and layout (`FAMILIES`).
        conventions: preset of the order and side rule of its anchors.
        needs_anchors: whether its readers always need `cell_anchors.0`: Hugging Face's loader is strict, and
            MILVLG's network computes others than it was trained with.
        counted: prefixes of the norms that have `num_batches_tracked` in such files.
        write: tensors, file -> None.
    """

    suffix: str
    family: str
    conventions: str
    needs_anchors: bool
    counted: tuple[str, ...]
    write: Callable[[dict[str, Tensor], Path], None]


def format_named(to: str | None, out: Path) -> str:
    """The requested key of `FORMATS`, else that of the suffix of the file to write."""
    name = to or next((name for name, kind in FORMATS.items() if kind.suffix == out.suffix), "")
    if name not in FORMATS:
        requested = f"--to {name!r}" if name else f"{out}: suffix {out.suffix!r}"
        known = ", ".join(f"{name} ({kind.suffix})" for name, kind in FORMATS.items())
        raise ValueError(f"{requested} is no format that is written; there are {known}")
    return name


def check_written_file(out: Path, to: str) -> None:
    """Raises ValueError if a file of the format `to` cannot be written: it exists, has no folder, or another suffix."""
    suffix = FORMATS[to].suffix
    if out.suffix != suffix:
        raise ValueError(f"{out}: {to} files end in {suffix}; rename it, or choose another --to")
    if out.exists():
        raise ValueError(f"{out}: is there already; name another file, or remove it")
    if not out.parent.is_dir():
        raise ValueError(f"{out}: there is no folder {out.parent}; make it, or name a file in another one")


def _write_safetensors(tensors: dict[str, Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: value.clone() for name, value in tensors.items()}, path)  # it refuses shared memory


def _write_torch(tensors: Mapping[str, Any], path: Path) -> None:
    import torch

    torch.save(tensors, path)


def _write_torch_model(tensors: dict[str, Tensor], path: Path) -> None:
    _write_torch({"model": tensors}, path)


def _write_pickle(tensors: Mapping[str, Tensor], path: Path) -> None:
    content = {"model": {name: value.numpy() for name, value in tensors.items()}, "__author__": "roibeam"}
    data = pickle.dumps(content, protocol=3)
    # numpy 2 writes a module name that numpy 1, which detectron2 of that time runs on, lacks; both know the older one.
    # In protocol 3 it stands once, as a line of its own, before the first array.
    path.write_bytes(data.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n", 1))


_RESNET = ("backbone.", "roi_heads.res5.")
FORMATS = {
    "safetensors": WeightFormat(".safetensors", "detectron2", "hf", False, (), _write_safetensors),
    "detectron2": WeightFormat(".pkl", "detectron2", "hf", False, (), _write_pickle),
    "hf": WeightFormat(".bin", "hf", "hf", True, _RESNET, _write_torch),
    "milvlg": WeightFormat(".pth", "milvlg", "milvlg", True, ("backbone.res4.", "roi_heads.res5."), _write_torch_model),
    "vlbert": WeightFormat(".model", "vlbert", "hf", False, _RESNET, _write_torch),
}
