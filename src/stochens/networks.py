"""Plain networks: no noise, no members. Methods add the one, `members.forward` the other."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stochens.errors import InputError


class MLP(nn.Sequential):
    """A multilayer perceptron with `sizes[0]` inputs and `sizes[-1]` outputs.

    `x [B, sizes[0]] -> [B, sizes[-1]]`

    >>> MLP(2, 10, 10, 2)(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """

    def __init__(self, *sizes: int, activation: type[nn.Module] = nn.ReLU) -> None:
        if len(sizes) < 2:
            raise ValueError(f"an MLP needs at least an input and an output size, got {sizes}")
        layers: list[nn.Module] = []
        for n_in, n_out in itertools.pairwise(sizes):
            layers += [nn.Linear(n_in, n_out), activation()]
        super().__init__(*layers[:-1])  # no activation after the output layer


class PiecewiseLinear(nn.Module):
    """Numbers as how far they are through each bin of their feature (Gorishniy et al., 2022).

    e_k(x) = (x - edge_k) / (edge_k+1 - edge_k), not below 0 but in the first bin of a feature, and
    not above 1 but in its last, so that nothing is lost beyond the edges. It has no parameters.

    edges: those of each feature, ascending, two or more. `PiecewiseLinear.of(x)` takes quantiles.

    `x [B, F] -> [B, bins of all features]`

    >>> embed = PiecewiseLinear([[0.0, 1.0, 3.0], [-1.0, 1.0]])
    >>> embed(torch.tensor([[2.0, 0.0], [-1.0, 2.0]]))
    tensor([[ 1.0000,  0.5000,  0.5000],
            [-1.0000,  0.0000,  1.5000]])
    """

    feature: Tensor
    edge: Tensor
    width: Tensor
    least: Tensor
    most: Tensor

    def __init__(self, edges: Sequence[Sequence[float]]) -> None:
        super().__init__()
        each = [torch.tensor(own, dtype=torch.get_default_dtype()) for own in edges]
        for k, own in enumerate(each):
            if own.dim() != 1 or len(own) < 2 or not bool((own.diff() > 0).all()):
                raise InputError(
                    f"edges of a feature must be two or more ascending numbers, got {own.tolist()} "
                    f"for feature {k}"
                )
        bins = [len(own) - 1 for own in each]
        first = torch.cat([torch.arange(n) == 0 for n in bins])
        last = torch.cat([torch.arange(n) == n - 1 for n in bins])
        low, high = torch.zeros(len(first)), torch.ones(len(first))
        buffers = {
            "feature": torch.arange(len(bins)).repeat_interleave(torch.tensor(bins)),
            "edge": torch.cat([own[:-1] for own in each]),
            "width": torch.cat([own.diff() for own in each]),
            "least": low.masked_fill(first, -math.inf),
            "most": high.masked_fill(last, math.inf),
        }
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)
        self.features, self.bins = len(bins), sum(bins)

    @classmethod
    def of(cls, x: Tensor, bins: int = 8) -> "PiecewiseLinear":
        """With edges at quantiles of x [N, F], the rows to learn from; a feature with few values
        has fewer bins, and one that never changes has a bin from there on.

        >>> PiecewiseLinear.of(torch.arange(9.0)[:, None], bins=4).edge
        tensor([0., 2., 4., 6.])
        """
        if x.dim() != 2 or not bool(x.isfinite().all()):
            raise InputError(f"x must be finite numbers [N, F], got {tuple(x.shape)}")
        levels = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
        edges = []
        for column in x.double().cpu().unbind(1):
            quantiles = torch.from_numpy(np.quantile(column.numpy(), levels.numpy()))
            own = quantiles.to(torch.get_default_dtype()).unique()  # as they are kept
            if len(own) == 1:
                own = torch.stack([own[0], own[0] + own[0].abs().clamp_min(1)])
            edges.append(own.tolist())
        return cls(edges)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.shape[1] != self.features:
            raise InputError(f"x must be [B, {self.features}], got {tuple(x.shape)}")
        through = (x[:, self.feature] - self.edge.to(x)) / self.width.to(x)  # [B, bins]
        return torch.minimum(torch.maximum(through, self.least.to(x)), self.most.to(x))

    def extra_repr(self) -> str:
        return f"{self.features} features, {self.bins} bins"


class Periodic(nn.Module):
    """Numbers as waves of frequencies that are learned (Gorishniy et al., 2022).

    e(x) = [cos(2 pi c_k x), sin(2 pi c_k x)] for k < `waves`, with c_k ~ N(0, scale^2) at first.

    `x [B, F] -> [B, 2 * F * waves]`

    >>> Periodic(3, waves=4)(torch.zeros(5, 3)).shape
    torch.Size([5, 24])
    """

    def __init__(self, features: int, *, waves: int = 8, scale: float = 0.1) -> None:
        super().__init__()
        if not scale > 0:
            raise InputError(f"scale must be positive, got {scale!r}")
        self.scale = scale
        self.frequency = nn.Parameter(torch.empty(features, waves))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.frequency, std=self.scale)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.shape[1] != len(self.frequency):
            raise InputError(f"x must be [B, {len(self.frequency)}], got {tuple(x.shape)}")
        angles = (2 * math.pi * self.frequency * x.unsqueeze(-1)).flatten(1)  # [B, F * waves]
        return torch.cat([angles.cos(), angles.sin()], 1)

    def extra_repr(self) -> str:
        features, waves = self.frequency.shape
        return f"{features} features, {waves} waves, scale={self.scale}"


class FRN(nn.Module):
    """Filter response normalisation with its thresholded linear unit (Singh and Krishnan, 2020).

    y = max(gamma * x / sqrt(mean(x^2) + eps) + beta, tau), the mean over the positions of each
    example and channel. Unlike batch normalisation it mixes no examples and keeps no state.

    `x [B, C, *positions] -> [B, C, *positions]`

    >>> FRN(3)(torch.ones(2, 3, 4, 4)).shape
    torch.Size([2, 3, 4, 4])
    """

    def __init__(self, channels: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(channels))  # gamma
        self.bias = nn.Parameter(torch.empty(channels))  # beta
        self.tau = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.tau)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() < 3:
            raise ValueError(f"FRN needs [B, C, *positions], got {tuple(x.shape)}; use LayerNorm")
        positions = tuple(range(2, x.dim()))
        wide = x.float() if x.dtype.itemsize < 4 else x  # bf16 is too coarse for the mean
        mean_square = wide.square().mean(positions, keepdim=True).to(x.dtype)
        shape = (-1, *[1] * len(positions))
        scaled = x * torch.rsqrt(mean_square + self.eps) * self.weight.view(shape)
        # max(a, tau) = relu(a - tau) + tau: torch.maximum's backward pass is slow, a quarter of the
        # time of a small ResNet's gradient on a CPU. Where both are equal, tau has the gradient.
        above = F.relu(scaled + (self.bias - self.tau).view(shape))
        return above + self.tau.view(shape)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"


class ResidualBlock(nn.Module):
    """y = silu(short(x) + frn(conv(silu(frn(conv(x)))))), with 3x3 convolutions.

    The first one has the stride. short(x) is x, or frn(conv(x)) with a 1x1 convolution where the
    block changes the shape.

    `x [B, inputs, H, W] -> [B, channels, H / stride, W / stride]`
    """

    def __init__(self, inputs: int, channels: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride=stride, padding=1)
        self.norm1 = FRN(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm2 = FRN(channels)
        changes = stride != 1 or inputs != channels
        self.conv_short = nn.Conv2d(inputs, channels, 1, stride=stride) if changes else None
        self.norm_short = FRN(channels) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        inner = F.silu(self.norm1(self.conv1(x)))
        if self.conv_short is not None and self.norm_short is not None:
            x = self.norm_short(self.conv_short(x))
        return F.silu(x + self.norm2(self.conv2(inner)))


class SmallResNetFRN(nn.Module):
    """A ResNet for small images, small enough for full-batch HMC on a CPU.

    A 3x3 convolution of stride 2, `blocks` residual blocks, the mean over positions, a linear head.

    `x [B, inputs, H, W] -> [B, classes]`

    >>> SmallResNetFRN()(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self, *, channels: int = 8, blocks: int = 1, inputs: int = 1, classes: int = 10
    ) -> None:
        super().__init__()
        # stride 2: three quarters of the positions, and of the time, are saved from here on
        self.conv = nn.Conv2d(inputs, channels, 3, stride=2, padding=1)
        self.norm = FRN(channels)
        self.blocks = nn.Sequential(*(ResidualBlock(channels, channels) for _ in range(blocks)))
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        features = self.blocks(F.silu(self.norm(self.conv(x))))  # [B, C, H / 2, W / 2]
        outputs: Tensor = self.head(features.mean((-2, -1)))
        return outputs


class ResNet20FRN(nn.Module):
    """ResNet-20 with FRN and SiLU (Izmailov et al. 2021): 274,042 parameters for 10 classes.

    A 3x3 convolution, three stages of three residual blocks with 16, 32 and 64 channels (the second
    and third stage halve the image), the mean over positions, a linear head. Weights start from
    Kaiming's normal.

    `x [B, 3, H, W] -> [B, classes]`

    >>> ResNet20FRN()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = FRN(16)
        self.blocks = nn.Sequential(
            *(ResidualBlock(16, 16) for _ in range(3)),
            ResidualBlock(16, 32, stride=2),
            *(ResidualBlock(32, 32) for _ in range(2)),
            ResidualBlock(32, 64, stride=2),
            *(ResidualBlock(64, 64) for _ in range(2)),
        )
        self.head = nn.Linear(64, classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        features = self.blocks(F.silu(self.norm(self.conv(x))))  # [B, 64, H / 4, W / 4]
        outputs: Tensor = self.head(features.mean((-2, -1)))
        return outputs


class CNNLSTM(nn.Module):
    """The network for IMDB's reviews of Izmailov et al. 2021: 2,700,098 parameters.

    An embedding of `words`, a convolution over 5 of them, ReLU, the largest of 4 positions each, an
    LSTM, and a linear head on its last state. Theirs adds 1 to what opens the forget gate. Here the
    bias begins with that 1; `forget_bias` is the mean of a prior that says the same.

    `x [B, T] word numbers -> [B, classes]`,  T at least 8

    >>> CNNLSTM(words=50)(torch.zeros(3, 20, dtype=torch.long)).shape
    torch.Size([3, 2])
    """

    KERNEL, POOL = 5, 4

    def __init__(
        self,
        *,
        words: int = 20_000,
        width: int = 128,
        channels: int = 64,
        hidden: int = 128,
        classes: int = 2,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.conv = nn.Conv1d(width, channels, self.KERNEL)
        self.lstm = nn.LSTM(channels, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.embedding.weight, std=0.05)  # N(0, 1) would drown what is learned
        own = dict(self.lstm.named_parameters())
        with torch.no_grad():
            own["bias_ih_l0"].zero_()
            own["bias_hh_l0"].copy_(self.forget_bias())

    def forget_bias(self) -> Tensor:
        """What lstm.bias_hh_l0 [4 hidden] begins with: 1 where it opens the forget gate, else 0.

        >>> CNNLSTM(words=9, hidden=2).forget_bias()
        tensor([0., 0., 1., 1., 0., 0., 0., 0.])
        """
        gates = torch.zeros(4, self.lstm.hidden_size)  # in torch's order: in, forget, cell, out
        gates[1] = 1.0
        return gates.flatten()

    def forward(self, x: Tensor) -> Tensor:
        shortest = self.KERNEL + self.POOL - 1
        if x.dim() != 2 or x.shape[1] < shortest:
            raise ValueError(f"x must be [B, T] with T >= {shortest}, got {tuple(x.shape)}")
        words = self.embedding(x).transpose(1, 2)  # [B, width, T]
        parts = F.max_pool1d(F.relu(self.conv(words)), self.POOL)  # [B, channels, T / 4 - 1]
        states, _ = self.lstm(parts.transpose(1, 2))  # [B, T / 4 - 1, hidden]
        outputs: Tensor = self.head(states[:, -1])
        return outputs
