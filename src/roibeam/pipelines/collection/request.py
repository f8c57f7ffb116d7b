"""Request of a collection: checked before anything heavy is imported, or written."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from roibeam.pipelines.collection.fetch import check_earlier
from roibeam.pipelines.collection.judging.judges import JudgeFiles
from roibeam.pipelines.collection.page_units import PageUnit, plan_units
from roibeam.pipelines.collection.pairs import NOWHERE
from roibeam.pipelines.collection.thresholds import Thresholds
from roibeam.pipelines.common.console.command_files import FOLDER, NamedFiles
from roibeam.pipelines.common.console.overrides import apply_overrides
from roibeam.pipelines.data.download.download_run import DownloadOptions
from roibeam.pipelines.data.download.limits import DownloadLimits

# Packages of the extra `collect`: the imported module, and its use.
_READING = {"selectolax": "pages", "fastwarc": "WARC files", "py3langid": "languages", "wordfreq": "known words"}
_NSFW = {"nudenet": "porn and racy pictures", "onnxruntime": "porn and racy pictures"}


@dataclass(frozen=True)
class CollectRequest:
    """
    Attributes:
        pages: as of `plan_units`.
        out: folder of this machine, or one that all workers see.
        base_url: prefix of the path of an HTML file.
        settings: "section.field=value" each, of `Thresholds`.
        held_out: RULE=FILE each, see `HeldOut`.
        held_out_images: folders of evaluation images.
        judges: of pictures and pairs; None for none.
        judges_state: digest of the judges' files, see `files_state`.
        images_from: folder of an earlier collection whose fetched images are taken along.
        is_nsfw_checked: whether porn and racy pictures are looked for where that is possible, see `looks_for_porn`.
        limits: of the download; `min_side` is set by the thresholds.
        allow_private, user_agent, retry_dead_letters, `reads_robots_txt`: of the download.
        as_json: progress as JSON lines on standard output.
    """

    pages: str
    out: Path
    base_url: str = NOWHERE
    settings: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    held_out_images: tuple[str, ...] = ()
    judges: JudgeFiles | None = None
    judges_state: str = ""
    images_from: Path | None = None
    is_nsfw_checked: bool = True
    limits: DownloadLimits = field(default_factory=DownloadLimits)
    allow_private: tuple[str, ...] = ()
    user_agent: str | None = None
    retry_dead_letters: bool = False
    reads_robots_txt: bool = True
    as_json: bool = False

    def with_judges(self, judges: JudgeFiles, state: str) -> CollectRequest:
        """Returns this request with judges; `state` is the digest of their files."""
        return replace(self, judges=judges, judges_state=state)

    def thresholds(self) -> Thresholds:
        """Returns the default thresholds, with `settings` applied. Raises ValueError for a setting that does not exist,
        or of another kind."""
        plain = Thresholds()
        sections = {each.name: getattr(plain, each.name) for each in fields(plain)}
        return replace(plain, **apply_overrides(sections, self.settings))

    @property
    def looks_for_porn(self) -> bool:
        """Whether porn and racy pictures are looked for: it is wanted, and the packages are installed."""
        return self.is_nsfw_checked and not missing_packages(_NSFW)

    def download_options(self) -> DownloadOptions:
        """Returns the options of the download; ValueError for an invalid address or name."""
        return DownloadOptions(
            self.limits, self.allow_private, self.retry_dead_letters, 0, self.user_agent, self.as_json,
            self.reads_robots_txt,
        )  # fmt: skip

    def check(self) -> Thresholds:
        """Checks the request; ValueError has one line with all that is wrong: files, settings, missing packages."""
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
        return plan_units(self.pages, base_url=self.base_url, allow_private=self.allow_private)

    def _check_base_url(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not self.base_url.endswith("/"):
            raise ValueError(f"--base-url {self.base_url!r}: expected http:// or https:// and a path that ends in /")

    def _check_porn_settings(self) -> None:
        """Raises ValueError for a setting of a step that is off."""
        given = [each for each in self.settings if each.strip().startswith(("picture.max_nsfw", "picture.max_racy"))]
        if given and not self.is_nsfw_checked:
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
