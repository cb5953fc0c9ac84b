"""What `predict` is asked for, and what comes of it, piece by piece."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from stochens.checks import whole, whole_or_none, whole_seed
from stochens.errors import InputError
from stochens.files.tables import check_new, new_table
from stochens.inputs import inputs, open_inputs
from stochens.likelihoods import Draws, Predicted, draws_of
from stochens.members import plain_attention
from stochens.posterior import predictive as budget
from stochens.posterior.fields import PosteriorFields
from stochens.posterior.machines import predict_on_machines, refuse_unfit
from stochens.posterior.reading import Ahead, Planned, predict_pieces, refuse_other_shape
from stochens.posterior.streaming import Ask, bytes_of_one, plan, predictive
from stochens.randomness.seeds import seeded
from stochens.run.options import Run, matmul_precision
from stochens.run.progress import progress_bar
from stochens.trees import Input

PIECE = 16 << 20  # bytes of inputs, and of outputs, that are held at once


class Wanted(NamedTuple):
    """The options of `predict` that say what is predicted."""

    draws: int
    batch_size: int | None
    keep_draws: bool | None
    noise: str
    seed: int


class Pieces(NamedTuple):
    """Predictions at some of the rows after the other, in order."""

    each: Iterator[Predicted]
    rows: int  # in all, where that is known, else 0


def pieces_of(
    posterior: PosteriorFields,
    x: Any,
    wanted: Wanted,
    run: Run,
    *,
    piece: int | None = None,
    summed_up: bool = False,
) -> Pieces:
    """The prediction at x as pieces, and all that is wrong with the request at once.

    piece: bytes of inputs and of outputs of a piece, but a batch at least. None: all of x at once,
    if it is here already. summed_up: draws are kept where `Predicted.summaries` needs them, and
    nowhere else.
    """
    if wanted.noise not in ("fresh", "shared"):
        raise InputError(f"noise must be 'fresh' or 'shared', got {wanted.noise!r}")
    whole(draws=wanted.draws)
    whole_or_none(batch_size=wanted.batch_size)
    refuse_unfit(posterior, run)
    like, target = trained_on(posterior)
    bounded, count = piece is not None, wanted.draws * len(posterior)
    chains = posterior.chains
    groups = chains.count if chains is not None and wanted.draws == 1 else 1
    keep, seed, shared_noise = wanted.keep_draws, whole_seed(wanted.seed), wanted.noise == "shared"
    shape = None if posterior.inputs is None else posterior.inputs.shape
    machines = run.cluster
    if machines is not None:
        if bounded:
            raise InputError("engine='ray' gives all predictions at once; leave it out here")
        given = inputs(x, like, target=target)
        blocks, rows_in_all, streamed = iter([given]), len(given), False
    else:
        blocks, rows_in_all, streamed = open_inputs(x, like, target=target)

    def planned(ahead: Ahead) -> Planned:
        nonlocal keep
        rows, chunk = plan(
            posterior.net,
            posterior.params,
            ahead.first,
            wanted.batch_size,
            shape,
            available=ahead.available,
        )
        if not bounded:
            return Planned(rows, chunk)
        said = _said_of_one(posterior, ahead.first)
        of_draw = sum(p[0, 0].numel() * p.element_size() for p in said.parameters)
        if keep is None:  # once: all pieces have the same
            fits = rows * count * of_draw <= budget.DRAWS_BUDGET
            keep = fits and not (said.summed_up if summed_up else said.large)
        # of averages some numbers in float64 for each of a draw's
        return Planned(rows, chunk, of_draw * (count if keep else 4 * groups))

    def predicted(x: Input, planned: Planned, first_row: int) -> Predicted:
        ask = Ask(
            all_rows=max(rows_in_all, first_row + len(x)),
            rows=planned.rows,
            chunk=planned.chunk,
            draws=wanted.draws,
            groups=groups,
            keep_draws=keep,
            bf16=run.bf16,
            seed=seed,
            shared_noise=shared_noise,
        )
        with matmul_precision(run):
            if machines is not None:
                return predict_on_machines(posterior, x, ask, machines, run)
            if first_row:  # the first rows were tried for the plan
                bytes_of_one(posterior.net, x, shape)
            return predictive(posterior, x, ask, first_row=first_row)

    if not bounded and not streamed:  # all of x is here: one piece
        (given,) = blocks
        rows, chunk = plan(posterior.net, posterior.params, given, wanted.batch_size, shape)
        return Pieces(iter([predicted(given, Planned(rows, chunk), 0)]), rows_in_all)
    each = predict_pieces(blocks, planned, predicted, piece=PIECE if piece is None else piece)
    return Pieces(each, rows_in_all)


def _said_of_one(posterior: PosteriorFields, x: Input) -> Draws:
    """What one draw says of one row: of this the kind and the size count."""
    home = next(posterior.net.parameters()).device
    with torch.no_grad(), plain_attention(), seeded(0, home):
        outputs = posterior.net(x[:1].clone().to(home))
    return draws_of(posterior.likelihood, outputs.unsqueeze(0))


def trained_on(posterior: PosteriorFields) -> tuple[Input | None, str | None]:
    """An example of inputs of several tensors, and what y was called beside them."""
    calling = posterior.recipe.calling
    if posterior.inputs is None or calling is None:
        return None, None
    return posterior.inputs.example(), calling.target


def batches_of(posterior: PosteriorFields, x: Any, wanted: Wanted, run: Run) -> Iterator[Predicted]:
    """A batch of the size that is asked for after the other, or pieces of a few."""
    piece = PIECE if wanted.batch_size is None else 1
    return pieces_of(posterior, x, wanted, run, piece=piece).each


def write_predictions(
    posterior: PosteriorFields, x: Any, wanted: Wanted, run: Run, out: str | Path
) -> Path:
    """What the likelihood says of each row, and each of its draws if they are kept, as a table."""
    path, draws = check_new(out), wanted.keep_draws is True
    about = {"posterior": repr(posterior), **wanted._asdict()}
    each, rows = pieces_of(posterior, x, wanted, run, piece=PIECE, summed_up=True)
    shape: torch.Size | None = None
    with (
        progress_bar("prediction", total=rows, show=run.progress) as bar,
        new_table(path, about) as table,
    ):
        for part in each:
            shape = part.mean.shape if shape is None else shape
            refuse_other_shape(part, shape)
            columns = {**part.summaries(), **(part.by_draw() if draws else {})}
            table.add({name: t.detach().cpu().numpy() for name, t in columns.items()})
            bar.advance(len(part.mean))
    return path
