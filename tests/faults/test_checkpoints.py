"""Checkpoints that are damaged, stopped, locked, or have no room."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.running import gather

import stochens
from stochens import InputError
from stochens.files import storage
from stochens.run.checkpoints import TERMINATED, Checkpoints, Content, alone_in, stoppable

FORMAT = "test 1"


def numbers(k: int) -> dict[str, torch.Tensor]:
    return {"t": torch.full((5,), float(k)), "random": torch.arange(k + 1)}


def written(folder, *steps: int) -> Checkpoints:
    kept = Checkpoints(folder, FORMAT)
    for k in steps:
        kept.save(k, numbers(k), {"step": k})
    return kept


def latest(kept: Checkpoints) -> Content:
    """The last one, where there is one."""
    found = kept.latest()
    assert found is not None
    return found


def test_the_last_one_comes_back_and_two_are_kept(tmp_path):
    kept = written(tmp_path, 1, 5, 30)
    tensors, about = latest(kept)
    assert about["step"] == 30
    assert torch.equal(tensors["t"], numbers(30)["t"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000000005", "000000030"]
    assert Checkpoints(tmp_path / "none", FORMAT).latest() is None


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), file=st.integers(0, 2))
def test_one_damaged_in_any_byte_gives_way_to_the_one_before(tmp_path_factory, place, flip, file):
    folder = tmp_path_factory.mktemp("kept")
    kept = written(folder, 1, 2)
    name = (storage.TENSORS, storage.DESCRIPTION, storage.CHECKSUMS)[file]
    path = folder / "000000002" / name
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= flip
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="the checkpoint before it is used"):
        _, about = latest(kept)
    assert about["step"] == 1


@pytest.mark.parametrize("name", [storage.TENSORS, storage.DESCRIPTION, storage.CHECKSUMS])
def test_one_that_is_cut_short_or_lacks_a_file_gives_way_too(tmp_path, name):
    kept = written(tmp_path, 1, 2)
    path = tmp_path / "000000002" / name
    for damage in (lambda: path.write_bytes(path.read_bytes()[:-3]), path.unlink):
        damage()
        with pytest.warns(UserWarning, match="before it"):
            assert latest(kept)[1]["step"] == 1
        kept.save(2, numbers(2), {"step": 2})


def test_where_all_are_damaged_work_begins_anew_and_is_kept(tmp_path):
    kept = written(tmp_path, 880, 900)
    for path in tmp_path.glob("0*/" + storage.TENSORS):
        path.write_bytes(b"")
    with pytest.warns(UserWarning, match="work begins anew"):
        assert kept.latest() is None
    kept.save(100, numbers(100), {"step": 100})
    assert latest(kept)[1]["step"] == 100
    kept.save(900, numbers(3), {"step": 900})  # the number of one that was damaged
    assert torch.equal(latest(kept)[0]["t"], numbers(3)["t"])


def raises(error: BaseException):
    def failing(*_args: object, **_kwargs: object) -> None:
        raise error

    return failing


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("hash_file", OSError(errno.EIO, "Input/output error")),
        ("hash_file", PermissionError(errno.EACCES, "Permission denied")),
        ("hash_file", OSError(errno.EMFILE, "Too many open files")),
        ("hash_file", MemoryError()),
        ("load_file", MemoryError()),
        # what safetensors and torch say where there are too many open files
        ("load_file", FileNotFoundError("No such file or directory: tensors.safetensors")),
        ("load_file", RuntimeError("unable to open file: Too many open files (24)")),
    ],
)
def test_one_that_cannot_be_read_now_is_an_error_and_stays(tmp_path, monkeypatch, what, error):
    kept = written(tmp_path, 1, 2)
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(storage, what, raises(error))
        with pytest.raises(InputError, match=r"cannot read .*000000002"):
            kept.latest()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000000001", "000000002"]
    assert latest(kept)[1]["step"] == 2


def test_a_file_in_the_place_of_one_gives_way_too(tmp_path):
    kept = written(tmp_path, 1)
    (tmp_path / "000000002").write_text("no folder")
    with pytest.warns(UserWarning, match="before it"):
        assert latest(kept)[1]["step"] == 1


def test_what_a_killed_process_left_half_written_is_swept_away(tmp_path):
    left = tmp_path / f".000000007.{os.getpid()}.part"
    left.mkdir()
    (left / storage.TENSORS).write_bytes(b"half")
    kept = Checkpoints(tmp_path, FORMAT)
    assert not left.exists()
    left.mkdir()
    kept.save(7, numbers(7), {"step": 7})  # the same number of a process
    assert latest(kept)[1]["step"] == 7


def test_a_full_disk_is_one_error_and_the_last_good_one_stays(tmp_path, monkeypatch):
    kept = written(tmp_path, 1)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for what in ("save_file", "sync", "_move"):
        with monkeypatch.context() as patch:
            patch.setattr(storage, what, full)
            with pytest.raises(InputError, match=r"cannot write .*No space left"):
                kept.save(2, numbers(2), {"step": 2})
        assert latest(kept)[1]["step"] == 1
        assert [p.name for p in tmp_path.iterdir()] == ["000000001"]  # nothing half


FULL = """
import resource, sys, torch
from stochens import InputError
from stochens.run.checkpoints import Checkpoints
from stochens_lab.report.run_folder import METRICS, SavedRun, RunFolder
kept = Checkpoints(sys.argv[1] + "/kept", "test 1")
kept.save(1, {"t": torch.arange(50.0)}, {"step": 1})
folder = RunFolder(sys.argv[1] + "/run", experiment="toy", config={}, device="cpu")
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))  # the system refuses to write more
folder.put(METRICS, ("a",), "long" * 10_000)
for write in (lambda: kept.save(2, {"t": torch.zeros(9_000)}, {"step": 2}), folder.write):
    try:
        write()
    except InputError as error:
        print(error)
print(kept.latest()[1]["step"], SavedRun(sys.argv[1] + "/run").metrics)
"""


def test_a_disk_that_takes_no_more_by_the_system_itself(tmp_path):
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    first, second, after = run.stdout.splitlines()
    assert first.startswith(f"cannot write {tmp_path}/kept/000000002: "), run.stderr
    assert second == f"cannot write {tmp_path}/run: File too large"
    assert after == "1 {}"
    left = [path.name for path in (tmp_path / "kept").iterdir()]
    assert left == ["000000001"]  # nothing half


def test_a_folder_belongs_to_one_process_until_that_ends(tmp_path):
    code = (
        "import sys, time; from stochens.run.checkpoints import alone_in\n"
        "with alone_in(sys.argv[1]): print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        said = rf"another process \({other.pid}\) works in"
        with pytest.raises(InputError, match=said), alone_in(tmp_path):
            pass
        other.kill()
        other.wait()
    with alone_in(tmp_path):  # though nobody could tidy up
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
    (tmp_path / ".lock").unlink()
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="not empty"), alone_in(tmp_path):
        pass


def test_what_a_killed_process_still_holds_is_waited_for(tmp_path):
    with subprocess.Popen(["true"]) as ended:  # as threads that die after their process
        pass
    held = os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    os.write(held, f"{ended.pid}\n".encode())
    let_go = threading.Timer(0.3, os.close, [held])
    let_go.start()
    begun = time.monotonic()
    with alone_in(tmp_path):
        assert time.monotonic() - begun > 0.2


@pytest.mark.parametrize("owner", [b"", b"0", b"-1", b"9" * 32, "²".encode(), b"\xff\x00", b"1 1"])
def test_a_lock_whose_owner_is_no_number_is_refused_at_once(tmp_path, owner, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it was waited for"))
    with open(tmp_path / ".lock", "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(owner)
        held.flush()
        with pytest.raises(InputError, match="another process"), alone_in(tmp_path):
            pass


# Signals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (15, SystemExit)])
def test_signals_wait_to_be_asked_for(number, kind):
    def asked() -> None:
        with stoppable() as stop:
            assert stop() is None
            os.kill(os.getpid(), number)
            time.sleep(0.01)
            assert isinstance(stop(), kind)  # and yet we are here

    def twice() -> None:
        with stoppable():
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
            pytest.fail("the second one does not wait")

    before = signal.getsignal(number)
    with pytest.raises(kind) as raised:
        asked()
    if kind is SystemExit:
        assert raised.value.code == TERMINATED
    with pytest.raises(kind):
        twice()
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_ignored_signal_stays_ignored(number):
    """A job in the background of a script: Ctrl-C is for what stands in front."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with stoppable() as stop:
            os.kill(os.getpid(), number)
            time.sleep(0.01)
            assert stop() is None
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_training_that_is_stopped_goes_on_where_it_was(number, likelihood, tmp_path):
    x, y = stochens.toy_set("a", n=60)
    data = x, y if likelihood == "categorical" else x  # the learned noise has a rate of its own
    options = {"members": 3, "epochs": 12, "batch_size": 20, "method": "np-dropout"}
    options["likelihood"] = likelihood
    whole = stochens.fit(stochens.MLP(2, 5, 2), data, **gather(**options))
    seen = []

    def log(epoch, values):
        seen.append(epoch)
        if epoch == 4:
            os.kill(os.getpid(), number)

    options["checkpoint"] = tmp_path / "kept"
    with pytest.raises((KeyboardInterrupt, SystemExit)) as raised:
        stochens.fit(stochens.MLP(2, 5, 2), data, **gather(log=log, **options))
    if number == signal.SIGINT:
        said = f"stopped; kept in {options['checkpoint']}: the same call goes on"
        assert str(raised.value) == said
    assert seen == [0, 1, 2, 3, 4]
    again = stochens.fit(
        stochens.MLP(2, 5, 2), data, **gather(log=lambda e, v: seen.append(e), **options)
    )
    assert seen == list(range(12))
    for name, p in whole.params.items():
        assert torch.equal(again.params[name], p)
    assert torch.equal(again.history.loss, whole.history.loss)


def test_checkpoints_of_another_training_are_refused_by_name(tmp_path):
    data = stochens.toy_set("a", n=40)
    options = {"members": 2, "epochs": 1, "checkpoint": tmp_path / "kept"}
    stochens.fit(stochens.MLP(2, 3, 2), data, **gather(**options))
    stochens.fit(
        stochens.MLP(2, 3, 2), data, **gather(**options)
    )  # the same: there is nothing to do
    for change, said in (
        ({"lr": 0.5}, "lr was 0.001 there and is 0.5 now"),
        ({"method": "regular"}, "network was|methods was"),
        ({"seed": 3}, "seed was 0"),
    ):
        with pytest.raises(InputError, match=said):
            stochens.fit(stochens.MLP(2, 3, 2), data, **gather(**{**options, **change}))
    with pytest.raises(InputError, match="the data differ"):
        stochens.fit(stochens.MLP(2, 3, 2), stochens.toy_set("b", n=40), **gather(**options))
    with pytest.raises(InputError, match="start was"):
        stochens.fit(stochens.MLP(2, 3, 2), data, **gather(**options), start="prior")


def test_a_checkpoint_knows_whose_it_is(tmp_path):
    data = stochens.toy_set("a", n=40)
    common = {"epochs": 1, "method": "regular"}
    first, net = tmp_path / "members", stochens.MLP(2, 3, 2)
    stochens.fit(net, data, members=[0, 1, 3], **gather(checkpoint=first, **common))
    with pytest.raises(InputError, match=r"members was \[0, 1, 3\] there and is \[0, 2, 3\] now"):
        stochens.fit(net, data, members=[0, 2, 3], **gather(checkpoint=first, **common))
    swa = tmp_path / "swa"
    stochens.multiswa(net, data, members=2, epochs=4, run=stochens.Run(checkpoint=swa))
    with pytest.raises(InputError, match="averages was"):
        stochens.multiswa(
            net, data, members=2, epochs=4, average_from=0.9, run=stochens.Run(checkpoint=swa)
        )
    noise, target = tmp_path / "noise", data[0][:, :1]
    one = stochens.MLP(2, 3, 1)
    for sd, said in ((0.1, None), (2.0, "likelihood was")):
        options = {"likelihood": stochens.Homoscedastic(noise=sd), "checkpoint": noise, **common}
        if said is None:
            stochens.fit(one, (data[0], target), members=2, **gather(**options))
            continue
        with pytest.raises(InputError, match=said):
            stochens.fit(one, (data[0], target), members=2, **gather(**options))
    chains = tmp_path / "chains"
    stochens.nuts(net, data, chains=1, samples=2, warmup=2, run=stochens.Run(checkpoint=chains))
    with pytest.raises(InputError, match="start was"):
        stochens.nuts(
            net,
            data,
            chains=1,
            samples=2,
            warmup=2,
            run=stochens.Run(checkpoint=chains),
            start="reset",
        )


def test_coupled_members_and_a_chunk_of_ones_own_are_not_overruled(tmp_path):
    data, net = stochens.toy_set("a", n=40), stochens.MLP(2, 3, 2)
    options = {"epochs": 1, "method": "regular", "checkpoint": tmp_path / "kept"}
    stochens.fit(net, data, members=2, **gather(repulsion=0.1, **options))
    with pytest.raises(InputError, match="repulsion couples all 4"):
        stochens.fit(net, data, members=4, **gather(repulsion=0.1, **options))
    options["checkpoint"] = tmp_path / "other"
    stochens.fit(net, data, members=4, **gather(chunk=2, **options))
    with pytest.raises(InputError, match="blocks of 2 members, which cannot go on in blocks of"):
        stochens.fit(net, data, members=4, **gather(chunk=3, **options))


def test_one_block_of_all_members_is_not_begun_anew_in_smaller_ones(tmp_path):
    data, net = stochens.toy_set("a", n=40), stochens.MLP(2, 3, 2)
    options = {"members": 4, "epochs": 6, "method": "regular", "checkpoint": tmp_path / "kept"}
    seen: list[int] = []

    def log(epoch, values):
        seen.append(epoch)
        if epoch == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        stochens.fit(net, data, **gather(log=log, chunk=50, **options))
    with pytest.raises(InputError, match="blocks of 4 members, which cannot go on in blocks of"):
        stochens.fit(net, data, **gather(chunk=2, **options))
    assert [p.name for p in (tmp_path / "kept").glob("members-*")] == ["members-00000-00003"]
    stochens.fit(net, data, **gather(log=log, chunk=60, **options))  # all of them, as before
    assert seen == list(range(6))


def test_numbers_of_numpy_are_numbers(tmp_path):
    data, net = stochens.toy_set("a", n=40), stochens.MLP(2, 3, 2)
    options = {"members": 2, "method": "regular", "checkpoint": tmp_path / "kept"}
    one = stochens.fit(
        net, data, lr=np.float32(0.5), epochs=np.int64(2), seed=np.int64(1), **gather(**options)
    )
    two = stochens.fit(net, data, lr=0.5, epochs=2, seed=1, **gather(**options))
    assert torch.equal(one.params["0.weight"], two.params["0.weight"])


def test_a_damaged_last_checkpoint_costs_only_the_time_since_the_one_before(tmp_path):
    data = stochens.toy_set("a", n=60)
    options = {"members": 2, "epochs": 5, "batch_size": 20, "every": 0.0}
    folder = tmp_path / "kept"
    whole = stochens.fit(stochens.MLP(2, 4, 2), data, **gather(checkpoint=folder, **options))
    last = sorted(folder.glob("members-*/0*"))[-1] / storage.TENSORS
    *rest, end = last.read_bytes()
    last.write_bytes(bytes([*rest, end ^ 1]))
    with pytest.warns(UserWarning, match="the checkpoint before it is used"):
        again = stochens.fit(stochens.MLP(2, 4, 2), data, **gather(checkpoint=folder, **options))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, p in whole.params.items():
            assert torch.equal(again.params[name], p)


def test_blocks_are_those_of_before_though_memory_is_another_now(tmp_path):
    """Noise by torch's own numbers is drawn block by block, so that their size is part of it."""
    data = stochens.toy_set("a", n=60)
    options = {"members": 5, "epochs": 4, "batch_size": 20, "engine": "vmap"}
    whole = stochens.fit(stochens.MLP(2, 4, 2), data, **gather(chunk=2, **options))

    def stop(epoch, values):
        raise KeyboardInterrupt

    options["checkpoint"], options["every"] = tmp_path / "kept", 0.0
    with pytest.raises(KeyboardInterrupt):
        stochens.fit(stochens.MLP(2, 4, 2), data, **gather(chunk=2, log=stop, **options))
    again = stochens.fit(stochens.MLP(2, 4, 2), data, **gather(**options))
    for name, p in whole.params.items():
        assert torch.equal(again.params[name], p)
