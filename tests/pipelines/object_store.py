"""An object store on this machine's disk, for tests: a put appears whole or not at all, for every process.

A test may break it: `before_put` and `after_put` are called with the name of each file, and may raise, or end the
process.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from forks import KILLED, in_a_fork
from fsspec.implementations.local import LocalFileSystem

URL = "objects://"


class ObjectStore(LocalFileSystem):
    """Paths are those of the disk: `objects:///tmp/bucket/store`."""

    protocol = "objects"
    before_put: ClassVar[Callable[[str], None] | None] = None
    after_put: ClassVar[Callable[[str], None] | None] = None
    kept_share: ClassVar[float] = 1.0  # of a data file; below 1 the store keeps less than it was given and says nothing

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix(URL))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self._put(path, value, create=mode == "create")

    def put_file(self, lpath: str, rpath: str, *arguments: Any, **options: Any) -> None:
        with open(lpath, "rb") as file:
            data = file.read()
        self._put(rpath, data[: int(len(data) * type(self).kept_share)], create=False)

    def _put(self, path: str, data: bytes, *, create: bool) -> None:
        path = self._strip_protocol(path)
        if type(self).before_put is not None:
            type(self).before_put(os.path.basename(path))
        # Outside of the bucket: what is on its way when the process is killed is no object.
        arriving = os.path.join(tempfile.gettempdir(), f"arriving-{os.getpid()}-{id(data)}")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(arriving, "wb") as file:
            file.write(data)
        try:
            if create:
                os.link(arriving, path)
            else:
                shutil.copyfile(arriving, f"{arriving}.copy")
                os.replace(f"{arriving}.copy", path)
        finally:
            os.unlink(arriving)
        if type(self).after_put is not None:
            type(self).after_put(os.path.basename(path))

    @classmethod
    def mend(cls) -> None:
        """Takes all faults away."""
        cls.before_put = cls.after_put = None
        cls.kept_share = 1.0


def register() -> None:
    """Makes `objects://` known to fsspec in this process and its forks."""
    fsspec.register_implementation("objects", ObjectStore, clobber=True)


def kill_at(at: str, when: str, work: Callable[[], object], folder: Path) -> None:
    """Does `work` in a fork that ends, as kill -9 would, "before" or "after" it puts a file whose name is like `at`."""

    def doomed() -> None:
        def die(name: str) -> None:
            if fnmatch(name, at):
                os._exit(KILLED)

        setattr(ObjectStore, f"{when}_put", staticmethod(die))
        work()

    assert in_a_fork(doomed, folder)[0] == KILLED
