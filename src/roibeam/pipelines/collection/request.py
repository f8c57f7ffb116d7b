"""Request of a collection, which is `roibeam collect run`: checked before anything heavy is imported, or written."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from roibeam.messages import check_lists
from roibeam.pipelines.collection.pairs import NOWHERE
from roibeam.pipelines.collection.thresholds import Thresholds
from roibeam.pipelines.common.console.command_files import FOLDER, NamedFiles
from roibeam.pipelines.common.console.overrides import apply_overrides
from roibeam.pipelines.common.console.request_options import (
    DETECTOR,
    FAILURES,
    INPUT,
    KEPT,
    MODEL,
    NETWORK,
    AllowPrivate,
    Device,
    Json,
    MaxBytes,
    MaxPixels,
    UserAgent,
    argument,
    option,
    renamed,
)
from roibeam.pipelines.data.compatibility import HeldOutRules

if TYPE_CHECKING:
    from roibeam.pipelines.collection.judging.judges import JudgeFiles
    from roibeam.pipelines.collection.page_units import PageUnit
    from roibeam.pipelines.data.download.download_run import DownloadOptions

# Packages of the extra `collect`: the imported module, and its use.
_READING = {"selectolax": "pages", "fastwarc": "WARC files", "py3langid": "languages", "wordfreq": "known words"}
_NSFW = {"nudenet": "porn and racy pictures", "onnxruntime": "porn and racy pictures"}


@renamed(
    settings="set", is_nsfw_checked="nsfw", reads_robots_txt="robots_txt", as_json="json",
    limits="fields of its own: connections, per_host, max_bytes and max_pixels",
    judges="picture_judge, pair_judge, detector and match_model",
)  # fmt: skip
@dataclass(frozen=True)
class CollectRequest:
    """A collection of image-text pairs from web pages, see `run_collection`."""

    pages: Annotated[str, argument(
        "PAGES", "A .warc or .warc.gz, here or at a URL; a folder of them or of HTML; a list (.paths).",
    )]  # fmt: skip
    out: Annotated[Path, argument("OUT", "Folder to write, on this machine or shared by all workers.")]
    base_url: Annotated[str, option(
        "Web address of a folder of HTML, which completes relative addresses of images.", "URL", INPUT,
        default="none; images must have whole addresses",
    )] = NOWHERE  # fmt: skip
    held_out: HeldOutRules = ()
    held_out_images: Annotated[tuple[str, ...], option(
        "Folder of images to leave out, recognised by their pixels; may be given several times.", "FOLDER", INPUT,
    )] = ()  # fmt: skip
    images_from: Annotated[Path | None, option(
        "Earlier collection whose images are reused, not fetched again.", "FOLDER", INPUT,
    )] = None  # fmt: skip
    picture_judge: Annotated[Path | None, option(
        "Judge of pictures: a file of `roibeam collect train-images`.", "FILE", MODEL, default="none: the step is off",
    )] = None  # fmt: skip
    pair_judge: Annotated[Path | None, option(
        "Judge of pairs: a file of `roibeam collect train-pairs`.", "FILE", MODEL, default="none: the step is off",
    )] = None  # fmt: skip
    detector: Annotated[str | None, option(
        "Detector of the judges: toy, or a run of `roibeam detector train`.", "NAME", DETECTOR, default="none",
    )] = None  # fmt: skip
    match_model: Annotated[str | None, option(
        "Pre-trained model that scores how well text and image match.", "MODEL", MODEL, default="none",
    )] = None  # fmt: skip
    device: Device = "auto"
    nsfw: Annotated[bool, option("Find pornographic and racy pictures, and drop them.", "", KEPT)] = True
    set: Annotated[tuple[str, ...], option(
        "Change one setting, as section.field=value; may be given several times. Sections: page, language, image, "
        "text, picture, aggregation.", "FIELD=VALUE", KEPT,
    )] = ()  # fmt: skip
    connections: Annotated[int, option("Connections that are open at once.", "N", NETWORK, min=1)] = 64
    per_host: Annotated[int, option("Connections to one host that are open at once.", "N", NETWORK, min=1)] = 8
    allow_private: AllowPrivate = ()
    user_agent: UserAgent = None
    robots_txt: Annotated[bool, option(
        "Read each host's robots.txt, and skip what it forbids.", "", NETWORK,
    )] = True  # fmt: skip
    retry_dead_letters: Annotated[bool, option("Try again what failed before.", "", FAILURES, advanced=True)] = False
    max_bytes: MaxBytes = 20_000_000
    max_pixels: MaxPixels = 120_000_000
    json: Json = False

    def __post_init__(self) -> None:
        check_lists(self, "held_out", "held_out_images", "set", "allow_private")

    def judge_files(self) -> JudgeFiles:
        """Returns the files of the judges, and what they look with."""
        from roibeam.pipelines.collection.judging.judges import JudgeFiles

        return JudgeFiles(self.picture_judge, self.pair_judge, self.detector, self.match_model, self.device)

    def judges_state(self) -> str:
        """Digest of the judges' files; "" for none."""
        if self.picture_judge is None and self.pair_judge is None:
            return ""
        return files_state([self.picture_judge, self.pair_judge], [self.detector, self.match_model])

    def thresholds(self) -> Thresholds:
        """Returns the default thresholds, with `set` applied. Raises ValueError for a wrong setting."""
        plain = Thresholds()
        sections = {each.name: getattr(plain, each.name) for each in fields(plain)}
        return replace(plain, **apply_overrides(sections, self.set))

    @property
    def looks_for_porn(self) -> bool:
        """Whether porn and racy pictures are looked for: it is wanted, and the packages are installed."""
        return self.nsfw and not missing_packages(_NSFW)

    def download_options(self) -> DownloadOptions:
        """Returns the options of the download; ValueError for an invalid address or name."""
        from roibeam.pipelines.data.download.download_run import DownloadOptions
        from roibeam.pipelines.data.download.limits import DownloadLimits

        limits = DownloadLimits(
            connections=self.connections, per_host=self.per_host, max_bytes=self.max_bytes, max_pixels=self.max_pixels
        )
        return DownloadOptions(
            limits, self.allow_private, self.retry_dead_letters, 0, self.user_agent, self.json, self.robots_txt
        )

    def check(self) -> Thresholds:
        """Checks the request; ValueError has one line with all that is wrong: files, settings, missing packages."""
        from roibeam.pipelines.collection.fetch import check_earlier

        need_packages(_READING)
        named = NamedFiles()
        if "://" not in self.pages:
            named.need("PAGES", self.pages)
        for folder in self.held_out_images:
            named.need("--held-out-images", folder, FOLDER)
        earlier = self.images_from
        if earlier is not None and named.need("--images-from", earlier, FOLDER):
            named.look(partial(check_earlier, earlier, self.out))
        named.need_output_folder(self.out)
        named.look(self._check_base_url)
        named.look(self.download_options)
        thresholds = named.look(self.thresholds)
        named.look(self._check_porn_settings)
        named.check()
        assert thresholds is not None
        return thresholds

    def units(self) -> list[PageUnit]:
        """Cuts the pages into units. Raises ValueError as of `plan_units`."""
        from roibeam.pipelines.collection.page_units import plan_units

        return plan_units(self.pages, base_url=self.base_url, allow_private=self.allow_private)

    def _check_base_url(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not self.base_url.endswith("/"):
            raise ValueError(f"--base-url {self.base_url!r}: expected http:// or https:// and a path that ends in /")

    def _check_porn_settings(self) -> None:
        """Raises ValueError for a setting of a step that is off."""
        given = [each for each in self.set if each.strip().startswith(("picture.max_nsfw", "picture.max_racy"))]
        if given and not self.nsfw:
            raise ValueError(f"--set {given[0]} is of a step that --no-nsfw leaves out; take one of them away")
        if given:
            need_packages(_NSFW)


def missing_packages(modules: dict[str, str]) -> list[str]:
    """Returns the modules that are not installed, each with its use; `modules` as of `need_packages`."""
    return [f"{name} ({use})" for name, use in modules.items() if importlib.util.find_spec(name) is None]


def need_packages(modules: dict[str, str]) -> None:
    """Raises ValueError if a module (name -> its use) is not installed, with the command to install it."""
    missing = missing_packages(modules)
    if missing:
        raise ValueError(f"collect needs {', '.join(missing)}, not installed here: pip install 'roibeam[collect]'")


def work_state(thresholds: Thresholds, base_url: str, units: Iterable[str]) -> str:
    """Digest of all that decides which images are fetched: with another, a folder holds another collection."""
    settings = {
        name: each for name, each in asdict(thresholds).items() if name in ("page", "language", "image", "text")
    }
    side = thresholds.picture.larger_than_px
    return hashlib.sha256(json.dumps([settings, side, base_url, list(units)], sort_keys=True).encode()).hexdigest()[:32]


def files_state(paths: Iterable[Path | str | None], words: Iterable[str | None] = ()) -> str:
    """Digest of the content of files and of some words; None stands for nothing given."""
    digest = hashlib.sha256(json.dumps(list(words)).encode())
    for path in paths:
        digest.update(b"-" if path is None else hashlib.sha256(Path(path).read_bytes()).digest())
    return digest.hexdigest()[:32]
