"""The real download code against a server on this machine."""

import contextlib
import hashlib
import http.server
import io
import shutil
import tarfile
import threading

import pytest
from tests.lab.data.image_files import pixels, write_batch

from stochens.errors import InputError
from stochens_lab.data.download import SOURCES, Remote, download, fetch
from stochens_lab.data.images import load_images

X = pixels(2)


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


def remote(url: str, body: bytes, to: str = "it") -> Remote:
    return Remote(url, len(body), hashlib.sha256(body).hexdigest(), to)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_a_file_arrives_whole(tmp_path):
    body = bytes(range(256)) * 10_000
    with serving({"/a": body}) as url:
        place = tmp_path / "new" / "a"
        fetch(remote(f"{url}/a", body), place)
    assert place.read_bytes() == body
    assert [file.name for file in place.parent.iterdir()] == ["a"]


def test_a_tar_is_unpacked_and_can_be_read(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-bin"
    write_batch(folder / "test_batch.bin", X, [1, 2])
    with tarfile.open(fileobj=(out := io.BytesIO()), mode="w:gz") as opened:
        opened.add(folder, folder.name)
    shutil.rmtree(folder)
    with serving({"/c.tar.gz": out.getvalue()}) as url:
        source = remote(f"{url}/c.tar.gz", out.getvalue(), folder.name)
        monkeypatch.setitem(SOURCES, "cifar10", [source])
        assert download("cifar10", tmp_path) == [folder]
        assert download("cifar10", tmp_path) == []  # it is there already
    assert [file.name for file in tmp_path.iterdir()] == [folder.name]
    assert load_images(tmp_path, "cifar10", "test").y.tolist() == [1, 2]


def refused(source: Remote, tmp_path, match: str) -> None:
    """One error, and not a trace on the disk."""
    with pytest.raises(InputError, match=match):
        fetch(source, tmp_path / "data" / source.to)
    assert list(tmp_path.iterdir()) == []


def test_wrong_checksum_and_size(tmp_path):
    with serving({"/a": b"12345"}) as url:
        for other in (b"12346", b"1234", b"123456"):
            match = f"gave 5 bytes, and not the {len(other)} .*SHA-256 differs"
            refused(remote(f"{url}/a", other), tmp_path, match)


def test_a_server_that_never_ends_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr("stochens_lab.data.download.BLOCK", 10)
    with serving({"/a": bytes(1000)}) as url:
        refused(remote(f"{url}/a", b"12345"), tmp_path, "gave 10 bytes, and not the 5 ")


def test_a_connection_that_breaks(tmp_path):
    body = b"x" * 1000
    with serving({"/a": body}, cut=10) as url:
        refused(remote(f"{url}/a", body), tmp_path, "IncompleteRead|gave 990 bytes")


def test_no_such_file_on_the_server(tmp_path):
    with serving({}) as url:
        refused(remote(f"{url}/a", b""), tmp_path, "cannot reach .*/a: Not Found")


def test_without_a_network_it_says_what_to_put_where(tmp_path, monkeypatch):
    with serving({}) as url:
        pass  # the port is free again
    monkeypatch.setitem(SOURCES, "cifar10", [remote(f"{url}/a", b"", "cifar-10-batches-bin")])
    with pytest.raises(InputError) as error:
        download("cifar10", tmp_path)
    said = str(error.value)
    assert said.startswith(f"cannot reach {url}/a: ")
    assert "without a network put train-*.parquet and test-*.parquet (uoft-cs/cifar10)" in said
    assert f"into {tmp_path}/cifar10 or" in said
    assert f"data_batch_1.bin ... 5 and test_batch.bin into {tmp_path}/cifar-10-batches-bin" in said
    assert list(tmp_path.iterdir()) == []


def test_stopping_leaves_nothing(tmp_path, monkeypatch):
    def stop(file):
        raise KeyboardInterrupt

    monkeypatch.setattr("stochens_lab.data.download.hash_file", stop)
    with serving({"/a": b"123"}) as url, pytest.raises(KeyboardInterrupt):
        fetch(remote(f"{url}/a", b"123"), tmp_path / "a")
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
