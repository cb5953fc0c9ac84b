"""Many machines: the same members as on one, whatever dies on the way.

One Ray cluster of two nodes, both on this machine, serves all tests (conftest.py); the last of this
file takes a node away.
"""

import errno
import functools
import http.server
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tests.long import long_but
from tests.running import fit_watched, gather
from tests.tolerance import trained
from torch import nn
from torch.utils.data import DataLoader

import stochens
from stochens import MLP, Failed, InputError, Ray
from stochens.errors import outside
from stochens.files import storage
from stochens.likelihoods import Likelihood, Numbers
from stochens.posterior import machines as prediction
from stochens.run.checkpoints import Checkpoints, alone_in
from stochens.run.cluster import connect as connecting
from stochens.run.cluster import folder as folders
from stochens.run.cluster import tasks
from stochens.run.cluster.view import LINES, Count, Seen, View, view
from stochens.run.progress import rich_progress
from stochens.samplers.diagnostics import SamplingWarning
from stochens.training.machines import _blocks, _for_ray
from stochens_lab.experiments import digits, runs, toy, toy_config
from stochens_lab.report.run_folder import RunFolder, SavedRun
from stochens_lab.workflow import config as own

pytestmark = pytest.mark.xdist_group("ray")  # one process, and so one cluster, for all of them
DATA = stochens.toy_set("a", n=60)
SMALL: dict[str, Any] = {"members": 8, "epochs": 6, "batch_size": 20, "seed": 3}
SMALL["precision"] = "float64"  # so that another order of sums hides nothing
STEPS = 60  # of SLOW, the longest training


@pytest.fixture(scope="module")
def cluster(ray_cluster):
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers have no tests
    return ray_cluster


def equal(one: stochens.Posterior, other: stochens.Posterior) -> None:
    assert one.members == other.members
    """But for other orders of sums, in blocks of other sizes."""
    for name, p in one.params.items():
        assert p.dtype == torch.float64
        within = trained(torch.float64, steps=STEPS, rows=20)
        torch.testing.assert_close(other.params[name], p, **within)


# Without a cluster --------------------------------------------------------------------------------


def test_a_warning_is_told_of_the_line_that_called_into_the_library():
    """In a script, whose functions are of no package."""
    script: dict[str, Any] = {"__name__": "__main__", "__package__": None}
    ours = {"__name__": "stochens.some.part", "outside": outside}
    exec("def told(): return outside()\ndef inner(): return told()", ours)
    script["inner"] = ours["inner"]
    exec("def main(): return inner()", script)
    assert script["main"]() == 3


def test_without_ray_it_is_said_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # an import of None is an ImportError
    with pytest.raises(InputError, match=r"pip install 'stochens\[ray\]'"):
        stochens.fit(MLP(2, 4, 2), DATA, **gather(engine="ray", **SMALL))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1: Connection refused"),
        ("ray://127.0.0.1:1", "no Ray cluster answers at ray://127.0.0.1:1"),
        ("nowhere.invalid:6379", "no Ray cluster answers at nowhere.invalid:6379"),
        ("head", "address must be HOST:PORT.*'head'"),
        ("http://head:80", "address must be HOST:PORT"),
        ("head:port", "address must be HOST:PORT"),
    ],
)
def test_an_address_that_leads_nowhere_fails_at_once(address, message):
    began = time.monotonic()
    with pytest.raises(InputError, match=message):
        connecting._refuse_unreachable(address)
    assert time.monotonic() - began < 10


def test_what_answers_but_is_no_ray_is_told_from_it(monkeypatch):
    monkeypatch.setattr(connecting, "PATIENCE", 0.3)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        place = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(InputError, match=f"no Ray cluster answers at {place}: timed out"):
            connecting._refuse_unreachable(place)
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.handle_request, daemon=True).start()
    place = f"127.0.0.1:{server.server_port}"
    with pytest.raises(InputError, match=f"what answers at {place} is no Ray cluster"):
        connecting._refuse_unreachable(place)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repulsion": 0.1}, "repulsion couples all members"),
        ({"log": print}, "log is for one machine"),
        ({"method": "dropuot"}, "did you mean 'dropout'"),
        ({"device": "cpu", "precision": "bf16"}, "precision='bf16' is for CUDA"),
        ({"engine": Ray(within="turbo")}, "engine must be one of"),
        ({"members": 0}, "members must be at least 1"),
        ({"start": {}}, "parameter '0.weight' must be"),
    ],
)
def test_bad_input_is_refused_before_ray_is_asked(monkeypatch, options, message):
    monkeypatch.setattr(connecting, "connect", None)
    with pytest.raises(InputError, match=message):
        stochens.fit(MLP(2, 4, 2), DATA, **gather(**{"engine": "ray", **SMALL, **options}))


class GPUs:
    """Stands for Ray: a cluster whose machines have so many GPUs each."""

    def __init__(self, count):
        self.count = count

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 2, "GPU": self.count}}]

    def get_runtime_context(self):
        return None


@pytest.fixture
def no_gpu_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_a_driver_without_a_gpu_may_ask_for_the_clusters(no_gpu_here, tmp_path, monkeypatch):
    asked = {"model": "nets:make", "data": Path("x.csv"), "out": tmp_path / "run"}
    assert own.configure(**asked, device="cuda", engine="ray").device == "cuda"
    with pytest.raises(InputError, match="--device cuda: this machine has no GPU"):
        own.configure(**asked, device="cuda")
    with pytest.raises(InputError, match="--device must be cpu or cuda, got 'tpu'"):
        own.configure(**asked, device="tpu", engine="ray")
    monkeypatch.setattr(runs, "connect", lambda engine: GPUs(1))
    assert runs.find_device("ray", None, "cuda") == runs.find_device("ray", None, None) == "cuda"
    assert runs.find_device("ray", None, "cpu") == runs.find_device("auto", None, None) == "cpu"
    by_ray = {"engine": "ray"}
    with RunFolder(tmp_path / "run", experiment="toy", config=by_ray, device="cuda") as folder:
        folder.write()
    assert SavedRun(tmp_path / "run").about["machine"]["gpu"] == "GPUs of a cluster"


@pytest.mark.parametrize(
    ("experiment", "config"), [(toy, toy_config), (digits, digits)], ids=["toy", "digits"]
)
def test_a_gpu_that_nobody_has_is_refused_before_a_run_is_begun(
    experiment, config, no_gpu_here, tmp_path, monkeypatch
):
    monkeypatch.setattr(runs, "connect", lambda engine: GPUs(0))
    for engine, message in (("ray", "cluster at .* has no GPU"), ("auto", "this machine has no")):
        asked = config.configure("quick", out=tmp_path / "run", device="cuda", engine=engine)
        with pytest.raises(InputError, match=message):
            experiment.run(asked)
        assert not (tmp_path / "run").exists()


def test_a_posterior_on_the_cpu_is_not_moved_to_gpus_unless_that_is_asked(monkeypatch):
    posterior = stochens.fit(MLP(2, 4, 2), DATA, device="cpu", members=2, epochs=1)
    used = []

    def run_pieces(ray, engine, where, *rest, **options):
        used.append(where.gpu)
        raise InputError("far enough")

    monkeypatch.setattr(prediction, "connect", lambda engine: GPUs(1))
    monkeypatch.setattr(prediction, "run_pieces", run_pieces)
    for options in ({}, {"device": "cpu"}, {"device": "cuda"}, {"precision": "bf16"}):
        with pytest.raises(InputError, match="far enough"):
            posterior.predict(DATA[0], **gather(engine="ray", **options))
    assert used == [False, False, True, True]
    with pytest.raises(InputError, match="device must be 'cpu' or 'cuda', got 'tpu'"):
        posterior.predict(DATA[0], run=stochens.Run(engine="ray"), device="tpu")
    with pytest.raises(InputError, match="device = 'cuda' is for engine='ray'"):
        posterior.predict(DATA[0], device="cuda")


def test_options_of_the_engine_are_checked():
    for options in ({"cpus": 0}, {"cpus": 1.5}, {"tries": 0}, {"within": "ray"}):
        with pytest.raises(InputError):
            Ray(**options)
    with pytest.raises(InputError, match="URL, which is for engine='ray'"):
        stochens.fit(MLP(2, 4, 2), DATA, **gather(checkpoint="s3://bucket/run", **SMALL))


def test_blocks_of_an_earlier_run_stay_and_the_rest_is_cut_around_them():
    known = [(2, 3, 4), (7, 8)]
    cut = _blocks(tuple(range(11)), known, lambda count: 2)
    assert cut == [(0, 1), (2, 3, 4), (5, 6), (7, 8), (9, 10)]
    assert _blocks((0, 1, 2), known, lambda count: 2) == [(0, 1), (2,)]
    overlapping = [(2, 3, 4), (2, 3), (0, 1)]
    assert _blocks(tuple(range(5)), overlapping, lambda count: 2) == [(0, 1), (2, 3, 4)]


def test_a_folder_that_is_another_one_elsewhere_is_refused(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    token = folders.keep_cut(here, [(0, 1)], None)
    for place in (there, tmp_path / "nowhere"):
        with (
            pytest.raises(InputError, match="not the same folder on node1 as where"),
            folders.folder_of(place, token, "members-0-to-1", "node1"),
        ):
            pass
    (here / folders.BLOCKS).write_text('{"token": 3}')
    with pytest.raises(InputError, match="cannot read"):
        folders.kept_cut(here)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        *((number, OSError) for number in (errno.EIO, errno.ESTALE, errno.ENOSPC)),
        *((number, InputError) for number in (errno.EACCES, errno.EROFS, errno.ENOTDIR)),
    ],
)
def test_a_disk_that_may_be_back_is_tried_again_and_a_bad_path_is_not(
    tmp_path, monkeypatch, number, kind
):
    def failing(*_args, **_kwargs):
        raise OSError(number, os.strerror(number))

    kept = Checkpoints(tmp_path / "block", "test 1")
    kept.save(1, {"t": torch.zeros(2)}, {})
    folders.keep_cut(tmp_path, [(0, 1)], None)
    for where, what, work in (
        (storage, "save_file", lambda: kept.save(2, {"t": torch.zeros(2)}, {})),
        (storage, "hash_file", kept.latest),
        (Path, "mkdir", lambda: alone_in(tmp_path).__enter__()),
        (Path, "read_bytes", lambda: folders.kept_cut(tmp_path)),
    ):
        if what == "hash_file" and number == errno.ENOTDIR:
            continue  # a checkpoint that is none, which is laid aside
        with monkeypatch.context() as patch:
            patch.setattr(where, what, failing)
            with pytest.raises(kind, match=os.strerror(number)), _for_ray():
                work()


def test_a_url_that_nobody_knows_is_one_error():
    with pytest.raises(InputError, match="cannot reach nosuch://bucket/run"):
        folders.kept_cut("nosuch://bucket/run")


def test_the_view_has_a_line_for_the_whole_and_for_each_block_at_work():
    console = Console(file=io.StringIO(), record=True, width=150, force_terminal=True)
    with rich_progress(console) as progress:
        view = View(progress, "members", 40)
        seen = {f"members {k}": Seen(1, "10.0.0.1", 30, 100, "loss 1.5") for k in range(30)}
        view.show(seen, {"members 0"}, {"members 1"})
        seen["members 2"] = seen["members 2"]._replace(attempt=2, node="10.0.0.9")
        view.show(seen, {"members 0"}, {"members 1"})
        assert len(progress.tasks) == 1 + LINES
    text = console.export_text()
    assert "1 of 40 blocks done, 28 at work, 10 wait for a place, 1 failed" in text
    assert "10.0.0.1: loss 1.5" in text
    assert "members 2: begun again on 10.0.0.9, attempt 2" in text


def test_a_log_file_gets_the_count_of_blocks(monkeypatch, capsys):
    monkeypatch.setattr("stochens.run.progress.BETWEEN", 0.0)
    with view("members", 4, show=None) as count:
        assert isinstance(count, Count)
        count.show({"members 0"}, {"members 1"})
    said = capsys.readouterr().err
    assert said.startswith("members: 50% after 0:00:00")
    assert said.endswith("; 1 of 4 blocks done, 1 failed\n")


# On a cluster -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", long_but({"dropout"}, ["dropout", "dropconnect", "np-dropout"]))
def test_members_are_the_same_in_2_and_4_blocks(cluster, method):
    net = nn.Sequential(nn.Linear(2, 6), nn.GELU(), nn.Linear(6, 2))  # no kernel: torch's noise
    alone = stochens.fit(net, DATA, method=method, **gather(**SMALL))
    for blocks in (2, 4):
        chunk = SMALL["members"] // blocks
        spread = stochens.fit(
            net, DATA, method=method, **gather(engine="ray", chunk=chunk, **SMALL)
        )
        equal(alone, spread)
        torch.testing.assert_close(spread.history.loss, alone.history.loss)


@pytest.mark.long
def test_another_name_of_the_cluster_is_known_again(cluster):
    """In a process of its own: the head's address by the name of this machine, twice."""
    code = f"""if True:
        import stochens
        from stochens.run.cluster.connect import Ray, connect, place
        name = "localhost:" + "{cluster.address}".split(":")[1]
        assert connect(Ray(name)) is connect(Ray(name))
        assert place(connect(Ray(name))) != name
    """
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_address_of_another_cluster_is_refused(cluster):
    with pytest.raises(InputError, match=r"address is 10\.0\.0\.1:6379, but this process is"):
        stochens.fit(MLP(2, 4, 2), DATA, **gather(engine=Ray("10.0.0.1:6379"), **SMALL))
    with pytest.raises(InputError, match="has no GPU"):
        stochens.fit(MLP(2, 4, 2), DATA, device="cuda", **gather(engine="ray", **SMALL))
    with pytest.raises(InputError, match=r"cpus = 64, but no machine .* more than 1 cores"):
        stochens.fit(MLP(2, 4, 2), DATA, **gather(engine=Ray(cpus=64), **SMALL))


def test_chains_and_other_members_are_the_same(cluster):
    net = MLP(2, 4, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few draws are troubled
        for sample, options in (
            (stochens.nuts, {"chains": 3, "samples": 20, "warmup": 20}),
            (stochens.sgmcmc, {"chains": 3, "samples": 10, "burn_in": 30, "batch_size": 20}),
        ):
            alone, spread = (
                sample(net, DATA, run=stochens.Run(engine=engine, precision="float64"), **options)
                for engine in ("auto", "ray")
            )
            equal(alone, spread)
            for name, values in alone.chains.stats.items():
                torch.testing.assert_close(spread.chains.stats[name], values)
            more: dict[str, Any] = {**options, "samples": options["samples"] + 5}
            more["run"] = stochens.Run(precision="float64")
            equal(sample(net, DATA, resume=alone, **more), sample(net, DATA, resume=spread, **more))
        for train, options in (
            (stochens.langevin, {"members": 5, "steps": 100}),
            (stochens.multiswag, {"members": 4, "epochs": 20, "rank": 3, "snapshots": 4}),
        ):
            alone, spread = (
                train(net, DATA, run=stochens.Run(engine=engine, precision="float64"), **options)
                for engine in ("auto", "ray")
            )
            equal(alone, spread)
    torch.testing.assert_close(
        spread.low_rank.variance["0.weight"], alone.low_rank.variance["0.weight"]
    )


def test_what_is_wrong_with_chains_is_said_once_of_all_of_them(cluster):
    net = torch.nn.Linear(2, 2)
    for sample, options in (
        (stochens.nuts, {"chains": 3, "samples": 20, "warmup": 50}),
        (stochens.sgmcmc, {"chains": 3, "samples": 10, "burn_in": 30, "batch_size": 20}),
    ):
        told = []
        for engine in ("auto", "ray"):
            with pytest.warns(SamplingWarning) as caught:
                sample(net, DATA, run=stochens.Run(engine=engine), **options)
            told.append([str(w.message) for w in caught if w.category is SamplingWarning])
            assert all(w.filename == __file__ for w in caught)
        assert told[0] == told[1]
        (one,) = [text for text in told[0] if "R-hat" in text]
        assert "300, which is 100 for each chain" in one


def test_a_start_for_each_member_goes_to_its_block(cluster):
    net, options = MLP(2, 4, 2), {**SMALL, "method": "regular", "members": 5}
    start = stochens.fit(net, DATA, **gather(**options)).params
    alone = stochens.fit(net, DATA, start=start, **gather(**options))
    equal(alone, stochens.fit(net, DATA, start=start, **gather(engine="ray", **options)))


def test_networks_priors_and_resamples_that_are_given_go_to_their_blocks(cluster):
    options = {**SMALL, "method": "regular", "members": 4, "bootstrap": True}
    options["prior"] = stochens.Prior(2.0, mean="start", scale="fan-in")
    nets = [MLP(2, 4, 2) for _ in range(4)]
    for place in (nets, nets[0], "module"):
        start = stochens.Start(place, jitter=0.1)
        alone = stochens.fit(nets[1], DATA, start=start, **gather(**options))
        there = stochens.fit(nets[1], DATA, start=start, **gather(engine="ray", chunk=2, **options))
        equal(alone, there)
        # as near as the members are: 18 steps, whose squares are twice as far apart
        rel = 2 * trained(torch.float64, steps=18, rows=20)["rtol"]
        assert there.kl() == pytest.approx(alone.kl(), rel=rel)
    stacked = {name: torch.zeros(4, *p.shape) for name, p in nets[0].named_parameters()}
    options["prior"] = stochens.Prior(mean=stacked | {"0.bias": torch.rand(4, 4)})
    with pytest.raises(InputError, match="mean for each member is for one machine"):
        stochens.fit(nets[1], DATA, **gather(engine="ray", **options))


def test_predictions_are_the_same_numbers(cluster):
    x = torch.randn(1003, 2, generator=torch.Generator().manual_seed(0))
    small = {**SMALL, "precision": "float32"}  # bit for bit
    swag = {"members": 4, "epochs": 20, "rank": 3, "snapshots": 4}
    for posterior in (
        stochens.fit(MLP(2, 4, 2), DATA, **gather(**small)),
        stochens.multiswag(MLP(2, 4, 2), DATA, **gather(**swag)),
        stochens.fit(
            MLP(2, 4, 1), (DATA[0], DATA[0][:, :1]), likelihood="gaussian", **gather(**small)
        ),
    ):
        options = {"draws": 2, "batch_size": 100, "seed": 5}
        here, there = (
            posterior.predict(x, run=stochens.Run(engine=e), **options) for e in ("auto", "ray")
        )
        assert torch.equal(here.mean, there.mean)
        assert torch.equal(here.aleatoric, there.aleatoric)
    assert torch.equal(here.draw_means, there.draw_means)
    with pytest.raises(InputError, match="engine must be 'auto', 'ray' or"):
        posterior.predict(x, run=stochens.Run(engine="vmap"))


def test_predictions_of_ones_own_likelihood_are_the_same_numbers(cluster):
    """Of a class that no worker can import."""

    class Poisson(Likelihood):
        name = "poisson"

        def distribution(self, outputs):
            return Numbers(torch.distributions.Poisson, rate=outputs.exp())

        def nll(self, outputs, y, weights=None):
            return (outputs.exp() - y * outputs).sum(-1).mean(-1)

        def check_targets(self, y):
            return y.float()

        def check_outputs(self, outputs, y):
            pass

    counts = DATA[0], DATA[1].unsqueeze(1)
    posterior, spread = (
        stochens.fit(MLP(2, 4, 1), counts, likelihood=Poisson(), **gather(engine=engine, **SMALL))
        for engine in ("auto", "ray")
    )
    equal(posterior, spread)
    x = torch.randn(203, 2, generator=torch.Generator().manual_seed(0)).double()
    for keep in (True, False):
        options = {"draws": 2, "batch_size": 20, "keep_draws": keep}
        here, there = (
            posterior.predict(x, run=stochens.Run(engine=e), **options) for e in ("auto", "ray")
        )
        assert torch.equal(here.mean, there.mean)
        assert torch.equal(here.epistemic, there.epistemic)
        assert here.keeps_draws == there.keeps_draws == keep
    observed = torch.arange(203.0)
    loader: DataLoader[Any] = DataLoader(x, batch_size=50)
    both = (
        posterior.predict(loader, run=stochens.Run(engine=e), batch_size=20)
        for e in ("auto", "ray")
    )
    likely, far = (p.log_prob(observed) for p in both)
    assert torch.equal(likely, far)


def test_a_prediction_that_fails_says_where_and_why(monkeypatch):
    failed = tasks.Outcome({}, {"rows 0 to 9": Failed("its worker or its node died")})
    monkeypatch.setattr(prediction, "connect", lambda engine: None)
    monkeypatch.setattr(prediction, "room", lambda *_: connecting.Room(1, gpu=False, memory=None))
    monkeypatch.setattr(prediction, "run_pieces", lambda *_, **__: failed)
    posterior = stochens.fit(MLP(2, 4, 2), DATA, members=1, epochs=1)
    with pytest.raises(Failed, match="prediction failed at rows 0 to 9: its worker or its node"):
        posterior.predict(DATA[0], run=stochens.Run(engine="ray"))


def test_a_run_that_is_done_is_found_again_at_a_path_and_at_a_url(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = MLP(2, 4, 2)
    alone = stochens.fit(net, DATA, **gather(**SMALL))
    for place in ("kept", f"file://{tmp_path}/url"):  # a path of the driver's own folder
        options = {"engine": "ray", "checkpoint": place, **SMALL}
        equal(alone, stochens.fit(net, DATA, **gather(chunk=3, **options)))
        steps = [p.name for p in Path(place.removeprefix("file://")).glob("*/*/0*")]
        assert steps == ["000000018"] * 3  # of three blocks, each at its end
        equal(alone, stochens.fit(net, DATA, **gather(**options)))  # the blocks of before
        more = stochens.fit(net, DATA, **gather(**{**options, "members": 10}))
        equal(stochens.fit(net, DATA, **gather(**{**SMALL, "members": 10})), more)
    with pytest.raises(InputError, match="is of another run: lr was"):
        stochens.fit(net, DATA, lr=0.5, **gather(**options))


@pytest.mark.long
def test_trials_are_found_again_at_a_path_and_at_a_url(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    auto = stochens.Auto(candidates=["regular", "dropout"], members=2)
    alone = stochens.fit(MLP(2, 4, 2), DATA, method=auto, **gather(**SMALL))
    for place in ("kept", f"file://{tmp_path}/url"):
        options = {"method": auto, "engine": "ray", "checkpoint": place, **SMALL}
        first = stochens.fit(MLP(2, 4, 2), DATA, **gather(**options))
        equal(alone, first)
        there = Path(place.removeprefix("file://"))
        assert sorted(p.name for p in there.glob("trials/0*")) == ["000000001", "000000002"]
        assert not list(there.glob("trial-*"))
        assert stochens.fit(MLP(2, 4, 2), DATA, **gather(**options)).trials == first.trials


def test_members_that_diverge_are_left_out_as_on_one_machine(cluster):
    net, options = MLP(2, 4, 2), {**SMALL, "method": "regular", "members": 4}
    start = stochens.fit(net, DATA, **gather(**options)).params
    start["0.weight"][2:] = float("nan")
    with pytest.warns(UserWarning, match="members 2 to 3: all 2 members diverged"):
        left = stochens.fit(net, DATA, start=start, **gather(engine="ray", chunk=2, **options))
    assert left.members == (0, 1)


class Hook:
    """Watches a block as it trains: slows it, tells where it is, and fails where a weight says."""

    def __init__(self, told: Path | None = None, seconds: float = 0.0):
        self.told, self.seconds, self.begun = told, seconds, False

    def update(self, params, *, step, steps):
        time.sleep(self.seconds)
        if self.told is not None and not self.begun:
            import ray

            node = ray.get_runtime_context().get_node_id()
            (self.told / f"{os.getpid()}-{node}-{step}").touch()
            self.begun = True
        largest = float(params["0.weight"].detach().max())
        if largest > 100:
            os._exit(1)
        if largest > 20:
            raise ZeroDivisionError("a weight is too large")

    def finish(self, params):
        return params, None

    def state(self):
        return {}

    def restore(self, state):
        pass

    def settings(self):
        return {}


def test_a_block_that_fails_for_good_is_named_and_the_rest_is_there(cluster):
    net, options = MLP(2, 4, 2), {**SMALL, "method": "regular", "members": 6}
    start = stochens.fit(net, DATA, **gather(**options)).params
    start["0.weight"][2] = 200.0  # member 2 ends its process
    hooked = {**options, "start": start, "collect": Hook, "chunk": 2}
    with pytest.warns(UserWarning, match="1 of 3 blocks failed for good") as said:
        rest = fit_watched(net, DATA, engine=Ray(tries=2), **hooked)
    text = str(next(w.message for w in said if "for good" in str(w.message)))
    assert "members 2 to 3: its worker or its node died, 2 times" in text
    assert rest.members == (0, 1, 4, 5)
    alone = stochens.fit(net, DATA, start=start, **gather(**options))
    for name, p in alone.params.items():
        torch.testing.assert_close(rest.params[name], p[[0, 1, 4, 5]])
    start["0.weight"][:] = 50.0
    with pytest.raises(Failed, match="all 3 blocks failed: ZeroDivisionError: a weight is"):
        fit_watched(net, DATA, engine="ray", **hooked)


class Hiccup(Hook):
    """The disk of the first checkpoint of all fails, once."""

    def state(self):
        assert self.told is not None
        if not (self.told / "failed").exists():
            (self.told / "failed").touch()
            raise InputError("cannot write it") from OSError(errno.EIO, "Input/output error")
        return {}


@pytest.mark.long  # what is tried again is tested above, without a cluster
def test_a_disk_that_fails_once_costs_no_block(cluster, tmp_path):
    options = {**SMALL, "method": "regular", "members": 4}
    alone = stochens.fit(MLP(2, 4, 2), DATA, **gather(**options))
    (tmp_path / "told").mkdir()
    hook = functools.partial(Hiccup, tmp_path / "told")
    kept = {"checkpoint": tmp_path / "kept", "every": 0.0}
    kept |= {"engine": Ray(tries=2), "chunk": 2}
    whole = fit_watched(MLP(2, 4, 2), DATA, hook, **kept, **options)
    assert (tmp_path / "told" / "failed").exists()
    equal(alone, whole)


def test_what_workers_cannot_import_is_said_in_one_line(cluster, monkeypatch):
    module: Any = types.ModuleType("only_here")
    module.Net = type("Net", (nn.Linear,), {"__module__": "only_here", "__qualname__": "Net"})
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(Failed, match="No module named 'only_here'") as said:
        stochens.fit(module.Net(2, 2), DATA, method="regular", **gather(engine="ray", **SMALL))
    assert "\n" not in str(said.value)


SLOW = {**SMALL, "members": 16, "epochs": STEPS // 3, "method": "np-dropout"}


def hook_in(told: Path):
    return lambda: Hook(told, seconds=0.03)


def until(true, seconds=300.0) -> None:  # a limit, not a check of speed
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


DRIVER = """
import sys, ray, stochens
from pathlib import Path
from tests.running import fit_watched
from tests.test_cluster import DATA, MLP, SLOW, hook_in
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
ray.cloudpickle.register_pickle_by_value(sys.modules["tests.test_cluster"])
folder = Path(sys.argv[2])
fit_watched(MLP(2, 4, 2), DATA, hook_in(folder), engine="ray", chunk=4,
            checkpoint=folder / "kept", every=0.2, **SLOW)
"""


@pytest.mark.long  # the next one kills too, and picks blocks up from their checkpoints
def test_a_driver_that_is_killed_is_begun_again_and_picks_the_run_up(cluster, tmp_path):
    root = Path(__file__).parents[1]
    paths = os.pathsep.join([str(root), *sys.path])
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, cluster.address, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        until(lambda: len(list(tmp_path.glob("kept/*/*/0*"))) >= 2 or driver.poll())
    finally:
        driver.kill()
        driver.wait()
    reached = [int(p.name) for p in tmp_path.glob("kept/*/*/0*")]
    assert reached
    assert max(reached) < 60  # in mid-run
    options = {"checkpoint": tmp_path / "kept", "collect": Hook, **SLOW}
    again = fit_watched(MLP(2, 4, 2), DATA, engine="ray", **options)
    assert len(list((tmp_path / "kept").glob("members-*"))) == 4  # blocks as the first had cut them
    equal(stochens.fit(MLP(2, 4, 2), DATA, **gather(**SLOW)), again)


def test_a_worker_is_killed_and_a_node_goes_away(cluster, tmp_path):
    """Two nodes, 4 blocks: the posterior is whole, and that of one process."""
    import ray

    (tmp_path / "told").mkdir()
    options = {"engine": "ray", "chunk": 4, "checkpoint": tmp_path / "kept", **SLOW}
    options |= {"every": 0.2, "collect": hook_in(tmp_path / "told")}
    found = []
    work = threading.Thread(target=lambda: found.append(fit_watched(MLP(2, 4, 2), DATA, **options)))
    work.start()
    other = next(n for n in cluster.list_all_nodes() if n is not cluster.head_node)

    def workers() -> dict[str, list[int]]:
        by_node: dict[str, list[int]] = {}
        for path in (tmp_path / "told").iterdir():
            pid, node, _ = path.name.split("-")
            by_node.setdefault(node, []).append(int(pid))
        return by_node

    until(lambda: set(workers()) == {other.node_id, cluster.head_node.node_id})
    until(lambda: len(list(tmp_path.glob("kept/*/*/0*"))) >= 2)
    os.kill(workers()[cluster.head_node.node_id][0], signal.SIGKILL)
    cluster.remove_node(other, allow_graceful=False)
    work.join(timeout=300)  # half a minute where nothing else runs
    assert found, "the run did not end"
    assert sum(node["Alive"] for node in ray.nodes()) == 1
    first_steps = [int(path.name.split("-")[2]) for path in (tmp_path / "told").iterdir()]
    assert max(first_steps) > 1  # a block went on from its checkpoint
    equal(stochens.fit(MLP(2, 4, 2), DATA, **gather(**SLOW)), found[0])
