"""The real download code against a server on this machine."""

import contextlib
import hashlib
import http.server
import io
import tarfile
import threading

import pytest
from tests.lab.data.image_files import pixels, python2_batch

from stochens.errors import InputError
from stochens_lab.data.download import SOURCES, Remote, download, fetch
from stochens_lab.data.images import load_images

X = pixels(2).reshape(2, 3072)
MEMBERS = {"test_batch": 20_000, "batches.meta": 1000}


@contextlib.contextmanager
def serving(answers: dict[str, bytes], cut: int = 0):
    """Serves the bytes by path; with `cut`, that many fewer than it promises."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path not in answers:
                self.send_error(404)
                return
            body = answers[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) - cut])

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def tar(files: dict[str, bytes | tarfile.TarInfo]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as opened:
        for name, content in files.items():
            if isinstance(content, tarfile.TarInfo):
                opened.addfile(content)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(content)
            opened.addfile(info, io.BytesIO(content))
    return out.getvalue()


def remote(url: str, body: bytes, to: str = "it", members=None) -> Remote:
    return Remote(url, len(body), hashlib.sha256(body).hexdigest(), to, members)


BATCH = python2_batch(X, [1, 2])
GOOD = tar({"cifar-10-batches-py/test_batch": BATCH, "cifar-10-batches-py/batches.meta": b"m"})


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_a_file_arrives_whole(tmp_path):
    body = bytes(range(256)) * 10_000
    seen = []
    with serving({"/a": body}) as url:
        place = tmp_path / "new" / "a"
        fetch(remote(f"{url}/a", body), place, progress=lambda *now: seen.append(now))
    assert place.read_bytes() == body
    assert seen[-1] == (len(body), len(body))
    assert [file.name for file in place.parent.iterdir()] == ["a"]


def test_a_tar_is_unpacked_and_can_be_read(tmp_path, monkeypatch):
    with serving({"/c.tar.gz": GOOD}) as url:
        source = remote(f"{url}/c.tar.gz", GOOD, "cifar-10-batches-py", MEMBERS)
        monkeypatch.setitem(SOURCES, "cifar10", [source])
        new = download("cifar10", tmp_path)
        assert new == [tmp_path / "cifar-10-batches-py"]
        assert download("cifar10", tmp_path) == []  # it is there already
    (new[0] / "batches.meta").unlink()
    assert load_images(tmp_path, "cifar10", "test").y.tolist() == [1, 2]


def refused(source: Remote, tmp_path, match: str) -> None:
    """One error, and not a trace on the disk."""
    with pytest.raises(InputError, match=match):
        fetch(source, tmp_path / "data" / source.to)
    assert list(tmp_path.iterdir()) == []


def test_wrong_checksum_and_size(tmp_path):
    with serving({"/a": b"12345"}) as url:
        refused(remote(f"{url}/a", b"12346"), tmp_path, "its SHA-256 differs")
        refused(remote(f"{url}/a", b"1234"), tmp_path, "gave more, not the published 4")
        refused(remote(f"{url}/a", b"123456"), tmp_path, "gave 5 bytes, not the published 6")


def test_a_connection_that_breaks(tmp_path):
    body = b"x" * 1000
    with serving({"/a": body}, cut=10) as url:
        refused(remote(f"{url}/a", body), tmp_path, r"broke off|gave 990 bytes")


def test_no_such_file_on_the_server(tmp_path):
    with serving({}) as url:
        refused(remote(f"{url}/a", b""), tmp_path, "cannot reach .*/a: Not Found")


def test_without_a_network_it_says_what_to_put_where(tmp_path, monkeypatch):
    with serving({}) as url:
        pass  # the port is free again
    monkeypatch.setitem(SOURCES, "cifar10", [remote(f"{url}/a", b"", "cifar-10-batches-py")])
    with pytest.raises(InputError) as error:
        download("cifar10", tmp_path)
    said = str(error.value)
    assert said.startswith(f"cannot reach {url}/a: ")
    assert "without a network put train-*.parquet and test-*.parquet (uoft-cs/cifar10)" in said
    assert f"into {tmp_path}/cifar10 or" in said
    assert f"data_batch_1 ... 5 and test_batch into {tmp_path}/cifar-10-batches-py" in said
    assert list(tmp_path.iterdir()) == []


def link(name: str, to: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


PLACE = "cifar-10-batches-py"


@pytest.mark.parametrize(
    "files",
    [
        {"../test_batch": b"harm"},
        {"/tmp/test_batch": b"harm"},
        {f"{PLACE}/../test_batch": b"harm"},
        {f"{PLACE}/sub/test_batch": b"harm"},
        {f"{PLACE}/test_batch": link(f"{PLACE}/test_batch", "/etc/passwd", tarfile.SYMTYPE)},
        {f"{PLACE}/test_batch": link(f"{PLACE}/test_batch", "/etc/passwd", tarfile.LNKTYPE)},
        {f"{PLACE}/test_batch": link(f"{PLACE}/test_batch", "", tarfile.FIFOTYPE)},
        {f"{PLACE}/other": b"harm"},
        {},
    ],
)
def test_only_expected_plain_files_are_unpacked(tmp_path, files):
    body = tar(files)
    with serving({"/a": body}) as url:
        source = remote(f"{url}/a", body, PLACE, {"test_batch": 100})
        refused(source, tmp_path, "has no test_batch")


def test_a_member_that_is_too_large(tmp_path):
    body = tar({f"{PLACE}/test_batch": bytes(1_000_000)})
    with serving({"/a": body}) as url:
        source = remote(f"{url}/a", body, PLACE, {"test_batch": 100})
        refused(source, tmp_path, "test_batch has 1000000 bytes, too many")


def test_a_member_that_comes_twice(tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as opened:
        for content in (b"first", b"second"):
            info = tarfile.TarInfo(f"{PLACE}/test_batch")
            info.size = len(content)
            opened.addfile(info, io.BytesIO(content))
    with serving({"/a": out.getvalue()}) as url:
        fetch(remote(f"{url}/a", out.getvalue(), PLACE, {"test_batch": 9}), tmp_path / PLACE)
    assert (tmp_path / PLACE / "test_batch").read_bytes() == b"first"


@pytest.mark.parametrize(
    "body",
    [b"", b"no tar", GOOD[:-50], GOOD[:100], GOOD[:60] + b"?" * 400],
    ids=["empty", "text", "cut", "cut short", "overwritten"],
)
def test_damaged_tar(tmp_path, body):
    with serving({"/a": body}) as url:
        refused(remote(f"{url}/a", body, PLACE, MEMBERS), tmp_path, "no readable tar|has no ")


def test_stopping_leaves_nothing(tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    with serving({"/a": b"123"}) as url, pytest.raises(KeyboardInterrupt):
        fetch(remote(f"{url}/a", b"123"), tmp_path / "a", progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with serving({"/a": b"123"}) as url, pytest.raises(InputError, match="cannot write"):
        fetch(remote(f"{url}/a", b"123"), tmp_path / "file" / "a")


def test_unknown_name(tmp_path):
    with pytest.raises(InputError, match="to be had are cifar10, cifar100, svhn, hmc, got 'hcm'"):
        download("hcm", tmp_path)


def test_published_constants_have_the_right_form():
    for sources in SOURCES.values():
        for source in sources:
            assert len(bytes.fromhex(source.sha256)) == 32
            assert source.size > 1_000_000
