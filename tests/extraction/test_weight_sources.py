"""Where weights come from: the cache, checksums, a fake hub, Beam's filesystems. All on this machine."""

import hashlib
import http.server
import io
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from roibeam.extraction.weights import sources
from roibeam.extraction.weights.sources import default_cache_dir, fetch_weights

DATA = b"weights " * 5000
CHECKSUM = hashlib.sha256(DATA).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET and HEAD from `server.files`: path -> (status, headers, body)."""

    def do_GET(self):
        self.server.requests.append(self.path)
        status, headers, body = self.server.files.get(self.path, (404, {}, b""))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)) if isinstance(body, bytes) else "", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            for piece in [body] if isinstance(body, bytes) else body:
                self.wfile.write(piece)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.requests = {}, []
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def files_in(cache: Path) -> list[Path]:
    return sorted(cache.iterdir()) if cache.exists() else []


def test_download_is_kept_and_not_repeated(server, cache):
    server.files["/vg.pth"] = (200, {"ETag": '"1"'}, DATA)
    first = fetch_weights(f"{server.url}/vg.pth", cache_dir=cache)
    assert first.read_bytes() == DATA and first.suffix == ".pth"
    os.utime(first, (1, 1))
    assert fetch_weights(f"{server.url}/vg.pth", cache_dir=cache) == first
    assert first.stat().st_mtime == 1 and files_in(cache) == [first]


@pytest.mark.parametrize("versions", [({"ETag": '"1"'}, {"ETag": '"2"'}), ({}, {})])
def test_a_file_that_changed_or_has_no_version_is_fetched_again(server, cache, versions):
    for headers, data in zip(versions, (DATA, DATA[::-1]), strict=True):
        server.files["/vg.pth"] = (200, headers, data)
        assert fetch_weights(f"{server.url}/vg.pth", cache_dir=cache).read_bytes() == data


def test_a_file_without_a_sum_is_warned_of_with_the_words_that_pin_it(server, cache, caplog):
    server.files["/vg.pth"] = (200, {"ETag": '"1"'}, DATA)
    fetch_weights(f"{server.url}/vg.pth", cache_dir=cache)
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    pinned = record.getMessage().rpartition("write ")[2]
    assert pinned == f"{server.url}/vg.pth#sha256={CHECKSUM}"
    caplog.clear()
    assert fetch_weights(pinned, cache_dir=cache).read_bytes() == DATA
    assert "WARNING" not in [record.levelname for record in caplog.records]


def test_a_pinned_file_needs_no_network_the_second_time(server, cache):
    server.files["/vg.pth"] = (200, {}, DATA)
    spec = f"{server.url}/vg.pth#sha256={CHECKSUM.upper()}"
    path = fetch_weights(spec, cache_dir=cache)
    server.files.clear()
    assert fetch_weights(spec, cache_dir=cache) == path and len(server.requests) == 1
    path.write_bytes(b"damaged")  # a damaged copy is as good as none
    server.files["/vg.pth"] = (200, {}, DATA)
    assert fetch_weights(spec, cache_dir=cache).read_bytes() == DATA


def drops():
    for _ in range(20):
        time.sleep(0.05)
        yield b"w"


@pytest.mark.parametrize(
    "body, length, pin, words",
    [
        (
            DATA + b"!",
            None,
            f"#sha256={CHECKSUM}",
            f"SHA-256 is [0-9a-f]{{64}}, wanted {CHECKSUM}; .* nothing was kept",
        ),
        (DATA, len(DATA) + 1, "", f"broke off after {len(DATA)} of {len(DATA) + 1} bytes"),
        (drops(), 20, "", r"vg\.pth: .*only \d+ bytes came so far; the server is too slow"),  # is not waited for
    ],
)
def test_a_download_that_fails_leaves_nothing(server, cache, monkeypatch, body, length, pin, words):
    monkeypatch.setattr(sources, "_TIMEOUT_S", 0.3)
    server.files["/vg.pth"] = (200, {"ETag": '"1"'} | ({"Content-Length": str(length)} if length else {}), body)
    with pytest.raises((ValueError, OSError), match=words):
        fetch_weights(f"{server.url}/vg.pth{pin}", cache_dir=cache)
    assert files_in(cache) == []


def test_an_unreachable_server_falls_back_to_the_copy_from_before(server, cache, caplog):
    server.files["/vg.pth"] = (200, {"ETag": '"1"'}, DATA)
    path = fetch_weights(f"{server.url}/vg.pth", cache_dir=cache)
    server.shutdown()
    server.server_close()
    assert fetch_weights(f"{server.url}/vg.pth", cache_dir=cache) == path
    assert "cannot be reached" in caplog.text
    with pytest.raises(OSError, match="cannot be fetched"):
        fetch_weights(f"{server.url}/other.pth", cache_dir=cache)


@pytest.mark.parametrize(
    "spec, words",
    [
        ("{url}/none.pth", "the server answers 404"),
        ("http://example.com/vg.pth", "use https"),
        ("{url}/vg.pth#sha256=abc", "takes 64 hexadecimal digits, got 3"),
        ("{url}/away.pth", "use https"),
        ("nosuch://bucket/vg.pth", "weights nosuch://bucket/vg.pth: Unable to get filesystem"),
        ("file:///nowhere/vg.pth", "no such file"),
    ],
)
def test_refused_urls(server, cache, spec, words):
    server.files["/away.pth"] = (302, {"Location": "http://127.0.0.2:1/vg.pth"}, b"")
    server.files["/vg.pth"] = (200, {}, DATA)
    with pytest.raises((ValueError, OSError), match=words):
        fetch_weights(spec.replace("{url}", server.url), cache_dir=cache)
    assert files_in(cache) == []


def test_file_urls_are_used_in_place(tmp_path, cache):
    path = tmp_path / "my weights.pth"
    path.write_bytes(DATA)
    assert fetch_weights(path.as_uri(), cache_dir=cache) == path
    assert fetch_weights(str(path), cache_dir=cache) == path
    assert files_in(cache) == []


def test_cache_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "roibeam" / "weights"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache_dir() == Path("/home/someone/.cache/roibeam/weights")


# --- Apache Beam's filesystems ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def memory_files():
    """path -> (bytes, time), served by a Beam filesystem with the scheme memory://."""
    filesystem = pytest.importorskip("apache_beam.io.filesystem")
    files: dict[str, tuple[bytes, float]] = {}

    class MemoryFileSystem(filesystem.FileSystem):
        scheme = classmethod(lambda cls: "memory")
        join = split = mkdirs = create = copy = rename = delete = size = last_updated = has_dirs = _list = None

        def open(self, path, mime_type="", compression_type="auto"):
            return io.BytesIO(files[path][0])

        def exists(self, path):
            return path in files

        def checksum(self, path):
            raise NotImplementedError

        def metadata(self, path):
            return filesystem.FileMetadata(path, len(files[path][0]), files[path][1])

    yield files
    files.clear()


def test_remote_filesystems_are_copied_once_and_again_when_the_file_changes(memory_files, cache):
    memory_files["memory://bucket/vg.pth"] = (DATA, 10.0)
    first = fetch_weights("memory://bucket/vg.pth", cache_dir=cache)
    assert first.read_bytes() == DATA and first.suffix == ".pth"
    os.utime(first, (1, 1))
    assert fetch_weights("memory://bucket/vg.pth", cache_dir=cache).stat().st_mtime == 1
    memory_files["memory://bucket/vg.pth"] = (DATA[::-1], 11.0)  # same size, later
    assert fetch_weights("memory://bucket/vg.pth", cache_dir=cache).read_bytes() == DATA[::-1]


def test_remote_files_are_checked_and_missing_ones_named(memory_files, cache):
    memory_files["memory://bucket/bad.pth"] = (DATA + b"!", 10.0)
    with pytest.raises(ValueError, match=f"wanted {CHECKSUM}"):
        fetch_weights(f"memory://bucket/bad.pth#sha256={CHECKSUM}", cache_dir=cache)
    with pytest.raises(ValueError, match=r"weights memory://bucket/none\.pth: no such file"):
        fetch_weights("memory://bucket/none.pth", cache_dir=cache)
    assert files_in(cache) == []


def test_without_beam_the_error_says_so(monkeypatch, cache):
    monkeypatch.setitem(sys.modules, "apache_beam.io.filesystems", None)
    with pytest.raises(ValueError, match="need apache-beam, which is not installed"):
        fetch_weights("gs://bucket/vg.pth", cache_dir=cache)


# --- Hugging Face hub ------------------------------------------------------------------------------------

# The module by its path: `import extraction` would load torch in every one of these processes.
_FETCH = """
import runpy, sys
fetch_weights = runpy.run_path(sys.argv[1])["fetch_weights"]
for spec in sys.argv[2:]:
    try:
        print(fetch_weights(spec))
    except (ValueError, OSError) as error:
        print(type(error).__name__, error)
"""


def fetch_in_new_process(*specs, home, **environment):
    """One line for each spec: a path or an error. huggingface_hub reads its environment once, at import."""
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
    command = [sys.executable, "-c", _FETCH, sources.__file__, *specs]
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout.splitlines()


HUB_FILES = ("model.safetensors", "pytorch_model.bin")


def serve_hub(server, repo, *, holds=None, revision="main", error="EntryNotFound"):
    """Answers for the two files the loader asks for: `holds` is there, anything else gives `error`."""
    for name in HUB_FILES:
        headers = {"X-Repo-Commit": "c" * 40}
        found = (200, {**headers, "ETag": f'"{CHECKSUM}"'}, DATA), (404, {**headers, "X-Error-Code": error}, b"")
        server.files[f"/{repo}/resolve/{revision}/{name}"] = found[name != holds]


def test_hub_gives_the_file_there_is_and_offline_again(server, tmp_path):
    serve_hub(server, "owner/new", holds="model.safetensors")
    serve_hub(server, "owner/old", holds="pytorch_model.bin")
    serve_hub(server, "owner/net", holds="model.safetensors", revision="v2")
    specs = ["hf:owner/new", "hf:owner/old", "hf:owner/net@v2"]
    paths = fetch_in_new_process(*specs, home=tmp_path, HF_ENDPOINT=server.url)
    assert [Path(path).name for path in paths] == ["model.safetensors", "pytorch_model.bin", "model.safetensors"]
    assert all(Path(path).read_bytes() == DATA for path in paths)
    *again, never = fetch_in_new_process(*specs, "hf:owner/never", home=tmp_path, HF_HUB_OFFLINE="1")
    assert again == paths
    assert never.startswith("OSError weights hf:owner/never: the hub cannot be reached")
    assert never.endswith("hand over a local file")


def test_hub_errors_are_one_line(server, tmp_path):
    serve_hub(server, "owner/none", error="RepoNotFound")
    serve_hub(server, "owner/net", error="RevisionNotFound", revision="v9")
    serve_hub(server, "owner/empty")
    wanted = {
        "hf:owner/none": "no such repository, or no right to read it",
        "hf:owner/net@v9": "the repository has no revision 'v9'",
        "hf:owner/empty": "the repository has no model.safetensors or pytorch_model.bin",
        "hf:a/b/c": "write hf:<owner>/<name>",
    }
    errors = fetch_in_new_process(*wanted, home=tmp_path, HF_ENDPOINT=server.url)
    for (spec, words), error in zip(wanted.items(), errors, strict=True):
        assert error.startswith(f"ValueError weights {spec}: ") and words in error


def test_without_credentials_s3_is_not_asked_for_minutes(monkeypatch, cache, tmp_path):
    """Without options Beam opened no file of S3, and without credentials it tries again for minutes."""
    filesystems = pytest.importorskip("apache_beam.io.filesystems").FileSystems
    monkeypatch.setattr(filesystems, "_pipeline_options", None)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    sources._has_own.cache_clear()
    with pytest.raises(ValueError, match=r"weights s3://bucket/vg\.pth: no credentials for S3 are found; set AWS_"):
        fetch_weights("s3://bucket/vg.pth", cache_dir=cache)
    sources._has_own.cache_clear()
