"""Run folders that are damaged, cut short, half written, or made to deceive."""

import contextlib
import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.lab.report.sample import sample_run
from typer.testing import CliRunner

from stochens import InputError
from stochens.files import sums
from stochens.files.storage import CHECKSUMS, sync
from stochens_lab.cli import app
from stochens_lab.experiments.toy_config import reconfigure
from stochens_lab.npz import npz_bytes, read_npz
from stochens_lab.report import finish, run_folder
from stochens_lab.report.run_folder import METRICS, PREDICTIONS, RUN, RunFolder, SavedRun

FILES = (RUN, METRICS, "training.json", "sampler.json", PREDICTIONS, CHECKSUMS)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return sample_run(tmp_path_factory.mktemp("runs") / "run", sets=("a",)).path


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(file=st.sampled_from(FILES), place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 7))
def test_damage_in_any_byte_is_one_error_that_names_the_file(path, file, place, flip):
    whole = (path / file).read_bytes()
    content = bytearray(whole)
    content[int(place * len(content))] ^= 1 << flip
    (path / file).write_bytes(content)
    try:
        for read in (SavedRun, reconfigure, lambda p: finish.write_page([p], None)):
            with pytest.raises(InputError) as said:
                read(path)
            assert file in str(said.value)
    finally:
        (path / file).write_bytes(whole)


def test_a_file_that_is_missing_is_named(path):
    for file in FILES[:-1]:
        whole = (path / file).read_bytes()
        (path / file).unlink()
        with pytest.raises(InputError, match=rf"{file} is missing"):
            SavedRun(path)
        (path / file).write_bytes(whole)
    lines = (path / CHECKSUMS).read_text()
    for cut in range(1, 6):  # whole lines, too
        (path / CHECKSUMS).write_text("".join(lines.splitlines(True)[:-cut]))
        with pytest.raises(InputError, match=CHECKSUMS):
            SavedRun(path)
    (path / CHECKSUMS).write_text(lines)
    SavedRun(path)


def test_a_line_too_many_is_noticed(path):
    whole = (path / CHECKSUMS).read_text()
    first, second, *_ = whole.splitlines(True)
    for extra in (first, second[:9] + first[9:], "f" * 64 + first[64:], first[:64] + "  other\n"):
        for text in (extra + whole, first + extra + whole.removeprefix(first), whole + extra):
            (path / CHECKSUMS).write_text(text)
            with pytest.raises(InputError, match=CHECKSUMS):
                SavedRun(path)
    (path / CHECKSUMS).write_text(whole)


def test_sha256sum_agrees(path):
    subprocess.run(["sha256sum", "--check", "--strict", CHECKSUMS], cwd=path, check=True)


def test_runs_from_before_there_were_checksums_are_read():
    for folder in ("results/toy", "results/toy/table"):
        assert not (ROOT / folder / CHECKSUMS).exists()
        assert SavedRun(ROOT / folder).metrics


class Killed(BaseException):
    pass


@contextlib.contextmanager
def killed_after(changes: int):
    """Inside, so many calls change the disk, and no more. Yields those that came too late."""
    left, more = changes, []

    def or_killed(call):
        def counted(*args, **options):
            nonlocal left
            left -= 1
            if left < 0:
                more.append(call)
                raise Killed
            return call(*args, **options)

        return counted

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(Path, "write_bytes", or_killed(Path.write_bytes))
        patch.setattr(Path, "replace", or_killed(Path.replace))
        patch.setattr(sums, "sync", or_killed(sync))
        yield more


def test_wherever_writing_is_cut_short_the_folder_can_be_read(tmp_path):
    """Again and again: a write is cut short, and then the one that goes on with it."""
    for first in range(100):
        path = tmp_path / str(first)
        with RunFolder(path, experiment="toy", config={}, device="cpu") as folder:
            folder.put(METRICS, ("a",), 1)
            folder.arrays["x"] = np.arange(3)  # a file that was not there before
            with killed_after(first) as more:
                folder.write()
        assert SavedRun(path).metrics in ({}, {"a": 1})
        for then in range(first % 4, 40, 4):
            with killed_after(then), RunFolder.reopen(path, config={}, device="cpu") as folder:
                folder.put(METRICS, ("a",), then)
                folder.write()
            SavedRun(path)
        with RunFolder.reopen(path, config={}, device="cpu") as folder:
            folder.put(METRICS, ("a",), 2)
            folder.write(complete=True)
        assert SavedRun(path).metrics == {"a": 2}
        assert not (path / sums.NEXT).exists()
        if not more:
            break
    assert first > 15  # 5 files and their checksums were written, synced and moved


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run", experiment="toy", config={}, device="cpu")
    folder.put(METRICS, ("a",), 1)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for where, what in ((Path, "write_bytes"), (sums, "sync"), (Path, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(where, what, full)
            with pytest.raises(InputError, match=r"cannot write .*run: No space left"):
                folder.write()
        assert SavedRun(tmp_path / "run").metrics == {}
    folder.write()
    assert SavedRun(tmp_path / "run").metrics == {"a": 1}


WRITER = """
import sys, numpy as np
from stochens_lab.report.run_folder import METRICS, RunFolder
folder = RunFolder(sys.argv[1], experiment="toy", config={}, device="cpu")
print("begun", flush=True)
for k in range(10**9):
    folder.put(METRICS, ("a",), k)
    folder.arrays["x"] = np.full(1000, k)
    folder.write()
"""


def test_a_run_is_read_while_it_is_written_and_after_a_kill(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path / "run")]
    for _ in range(2):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            try:
                assert writer.stdout.readline() == b"begun\n"
                end = time.monotonic() + 1
                reads = 0
                while time.monotonic() < end:
                    SavedRun(tmp_path / "run")
                    reads += 1
            finally:  # or a failure would wait for the writer, which never ends
                os.kill(writer.pid, signal.SIGKILL)
        assert reads > 10
        found = SavedRun(tmp_path / "run")
        assert abs(int(found.arrays["x"][0]) - found.metrics["a"]) <= 1
        with RunFolder.reopen(tmp_path / "run", config={}, device="cpu"):  # the lock is free
            pass
        for left in (tmp_path / "run").iterdir():
            left.unlink()


# Arrays -------------------------------------------------------------------------------------------

header_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.tuples(inner) | st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


def packed(header: bytes, data: bytes = bytes(8), *, stated: int | None = None) -> bytes:
    """An npz file with one array, whatever its header says; `stated`: its size in the list."""
    out, array = io.BytesIO(), b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", array + data)
    found = out.getvalue()
    if stated is not None:
        size = len(array + data).to_bytes(4, "little")
        found = found.replace(size, stated.to_bytes(4, "little"))
    return found


@settings(max_examples=300)
@given(descr=header_values, shape=header_values, order=header_values, rest=st.binary(max_size=9))
def test_an_array_whose_header_says_anything_is_read_or_refused(descr, shape, order, rest):
    text = repr({"descr": descr, "fortran_order": order, "shape": shape}).encode() + rest
    for header in (text, rest + text, rest):
        try:
            found = read_npz(packed(header[:60000]), "it")
        except InputError as error:
            assert str(error).startswith("it is damaged")  # noqa: PT017
        else:
            assert found["x"].nbytes == 8


@pytest.mark.parametrize(
    "shape", ["(10**14,)", "(100000000000000,)", "(-1, -8)", "(0, 10000000000000000000)", "(-1,)"]
)
def test_a_stated_shape_takes_no_memory(shape):
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': " + shape + ", }\n"
    with pytest.raises(InputError, match="it is damaged"):
        read_npz(packed(header.encode()), "it")


def test_a_file_that_unpacks_to_more_than_it_says_or_says_more_than_it_holds():
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (8,), }\n"
    assert read_npz(packed(header), "it")["x"].tolist() == [0] * 8
    for stated in (0, 5, 100, 2**31 - 1, 2**32 - 2):
        with pytest.raises((InputError, zipfile.BadZipFile)):
            read_npz(packed(header, stated=stated), "it")
    bomb = packed(header, bytes(30_000_000), stated=100)
    with pytest.raises((InputError, zipfile.BadZipFile)):
        read_npz(bomb, "it")


def test_objects_and_repeated_names_are_refused():
    out = io.BytesIO()
    np.savez(out, x=np.array([{"a": 1}], object))
    with pytest.raises(InputError, match=r"x.npy holds object"):
        read_npz(out.getvalue(), "it")
    with zipfile.ZipFile(out := io.BytesIO(npz_bytes({"x": np.zeros(2)})), "a") as file:
        file.filelist.extend(file.infolist()[:1])
        vars(file)["_didModify"] = (
            True  # the list of names is written again, with one of them twice
        )
    with pytest.raises(InputError, match="it is damaged"):
        read_npz(out.getvalue(), "it")


numbers = st.sampled_from(["f4", "f8", "i8", "u1", "?", ">f4"]).map(np.dtype)


@settings(max_examples=50)
@given(numbers, st.lists(st.integers(0, 4), max_size=3), st.sampled_from("CF"))
def test_arrays_come_back(dtype, shape, order):
    array = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape), dtype, order=order)
    found = read_npz(npz_bytes({"a/b": array}), "it")["a/b"]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, array)


def test_whatever_json_says_it_is_read_or_refused(tmp_path):
    """Without checksums, as before there were any."""
    folder = sample_run(tmp_path / "run", sets=("a",)).path
    (folder / CHECKSUMS).unlink()
    for text in ("", "[1, 2]", "{", '"x"', "null", "[" * 100_000, "1" * 100_000, '{"a": \ud800}'):
        (folder / METRICS).write_bytes(text.encode(errors="surrogatepass"))
        with pytest.raises(InputError, match=rf"{METRICS} is damaged"):
            run_folder.SavedRun(folder)
    (folder / METRICS).write_text(json.dumps({"a": {}}))
    assert run_folder.SavedRun(folder).metrics == {"a": {}}


def test_what_a_run_without_checksums_lacks_is_laid_to_it(tmp_path):
    folder = sample_run(tmp_path / "run", sets=("a",)).path
    training = json.loads((folder / "training.json").read_text())
    del training["a"]["SE3"]["course"]["loss"]
    (folder / CHECKSUMS).unlink()
    (folder / "training.json").write_text(json.dumps(training))
    told = CliRunner().invoke(app, ["report", str(folder)])
    assert isinstance(told.exception, InputError)
    assert "run cannot be used: KeyError: 'loss'; it has no checksums" in str(told.exception)
    (folder / RUN).write_text(json.dumps({"experiment": "toy"}))
    with pytest.raises(InputError, match="run cannot be used: KeyError: 'config'"):
        reconfigure(folder)
