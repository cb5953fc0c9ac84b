"""How much a step counts: by its rows, so that a short last batch is no whole step."""

from torch import Tensor
from torch.utils.data import BatchSampler

from stochens.data import Source
from stochens.training.step import Batch, Several


class Shares:
    """share = b / B of a step that has b rows where a whole one has B.

    Times its share, a step's mean NLL + KL / N has the sum over an epoch's steps

        sum_s (b_s / B) (1/b_s sum_{i in s} nll_i + KL / N) = (N / B) (1/N sum_i nll_i + KL / N),

    so that every example counts once and the prior once. Without it, the one row of the last step
    of 129 rows in batches of 128 would count as much as the other 128 together.

    >>> import torch
    >>> share = Shares(Source(torch.zeros(129, 2), torch.zeros(129), 129), 128)
    >>> share(torch.zeros(5, 128)), share(torch.zeros(5, 1)), share(None)
    (1.0, 0.0078125, 1.0)
    """

    def __init__(self, data: Source, batch_size: int, accumulate: int = 1) -> None:
        """A whole step has `accumulate` whole batches, but no more rows than there are."""
        of_batch = float(batch_size) if data.loader is None else _of_loader(data)
        self._whole = of_batch if accumulate == 1 else min(of_batch * accumulate, data.size)

    def __call__(self, batch: Batch) -> float:
        """Of rows [M, b], a loader's (x [b, ...], y) or several of them, or None for all of the
        data."""
        if batch is None:
            return 1.0
        if isinstance(batch, Several):
            return sum(map(self, batch))
        rows = batch.shape[1] if isinstance(batch, Tensor) else len(batch[0])
        return rows / self._whole


def _of_loader(data: Source) -> float:
    """Rows of a loader's whole batch. Of a batch sampler whose batches have no one size it is
    their mean: what each counts beside the others is the same then, and the rate as it was."""
    assert data.loader is not None
    batches = data.loader.batch_sampler
    if data.stream is not None or type(batches) is BatchSampler:
        return float(len(data.x))  # the first is whole; a collate_fn may have changed its length
    said = getattr(batches, "batch_size", None)
    return float(said) if isinstance(said, int) and said > 0 else data.size / len(data.loader)
