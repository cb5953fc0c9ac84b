"""The networks of issue 20, as their users write them: plain modules, no members, no noise.

Where the issue leaves a size open, the choice stands here: heads of 64, 4x wide feed-forward
layers, 8,192 words, GroupNorm with 32 groups (8 in MobileNetV2, whose channels allow no more).
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stochens.networks import MLP

CLASSES = 10


class CNN(nn.Module):
    """Four convolutions, two poolings, a linear head: x [B, 3, S, S] -> [B, 10]."""

    def __init__(self, width: int = 32, size: int = 32) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.conv3 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.conv4 = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.head = nn.Linear(2 * width * (size // 4) ** 2, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = F.max_pool2d(F.relu(self.conv4(F.relu(self.conv3(x)))), 2)
        outputs: Tensor = self.head(x.flatten(1))
        return outputs


class ViTBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): x [B, T, W] -> [B, T, W]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, w // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [B, H, T, W / H]
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, w)
        x = x + self.proj(mixed)
        outputs: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return outputs


class ViT(nn.Module):
    """Patches of 4 x 4, so 64 tokens of a 32 x 32 image: x [B, 3, S, S] -> [B, 10]."""

    def __init__(self, width: int = 192, depth: int = 6, heads: int = 3, size: int = 32) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.place = nn.Parameter(0.02 * torch.randn(1, (size // 4) ** 2, width))
        self.blocks = nn.Sequential(*(ViTBlock(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2) + self.place  # [B, T, W]
        outputs: Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return outputs


class Text(nn.Module):
    """torch's own encoder layers over words: x [B, T] of whole numbers -> [B, 10]."""

    def __init__(
        self,
        width: int = 256,
        depth: int = 4,
        heads: int = 4,
        tokens: int = 128,
        words: int = 8192,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.words = nn.Embedding(words, width)
        self.place = nn.Parameter(0.02 * torch.randn(1, tokens, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.words(x) + self.place  # [B, T, W]
        for layer in self.layers:
            hidden = layer(hidden)
        outputs: Tensor = self.head(self.norm(hidden).mean(1))
        return outputs


class BasicBlock(nn.Module):
    """relu(short(x) + norm(conv(relu(norm(conv(x))))))."""

    def __init__(self, inputs: int, channels: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, channels)
        self.short: nn.Sequential | None = None
        if stride != 1 or inputs != channels:
            self.short = nn.Sequential(
                nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.GroupNorm(groups, channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + (x if self.short is None else self.short(x)))


class ResNet18(nn.Module):
    """torchvision's, with GroupNorm and the 3 x 3 stem of CIFAR: x [B, 3, S, S] -> [B, 10]."""

    def __init__(self, width: int = 64, groups: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(groups, width)
        blocks, inputs = [], width
        for stage in range(4):
            channels = width * 2**stage
            for stride in (1 if stage == 0 else 2, 1):
                blocks.append(BasicBlock(inputs, channels, stride, groups))
                inputs = channels
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = self.blocks(F.relu(self.norm(self.stem(x))))
        outputs: Tensor = self.head(features.mean((2, 3)))
        return outputs


class Inverted(nn.Module):
    """1 x 1 up, 3 x 3 depthwise, 1 x 1 down, each with GroupNorm."""

    def __init__(self, inputs: int, channels: int, stride: int, expand: int, groups: int) -> None:
        super().__init__()
        hidden = inputs * expand
        layers: list[nn.Module] = []
        if expand != 1:
            layers += [nn.Conv2d(inputs, hidden, 1, bias=False), nn.GroupNorm(groups, hidden)]
            layers += [nn.ReLU6()]
        layers += [nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False)]
        layers += [nn.GroupNorm(groups, hidden), nn.ReLU6()]
        layers += [nn.Conv2d(hidden, channels, 1, bias=False), nn.GroupNorm(groups, channels)]
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == channels

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layers(x)
        return x + outputs if self.residual else outputs


class MobileNetV2(nn.Module):
    """torchvision's, with GroupNorm; stem and second stage keep the size of CIFAR's images."""

    STAGES = (  # (expand, channels, blocks, stride), Sandler et al. 2018, table 2
        (1, 16, 1, 1),
        (6, 24, 2, 1),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def __init__(self, stages: int = 7, last: int = 1280, groups: int = 8) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1, bias=False)]
        layers += [nn.GroupNorm(groups, 32), nn.ReLU6()]
        inputs = 32
        for expand, channels, blocks, stride in self.STAGES[:stages]:
            for k in range(blocks):
                layers.append(Inverted(inputs, channels, 1 if k else stride, expand, groups))
                inputs = channels
        layers += [nn.Conv2d(inputs, last, 1, bias=False), nn.GroupNorm(groups, last), nn.ReLU6()]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(last, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.layers(x).mean((2, 3)))
        return outputs


class LSTM(nn.Module):
    """Words, one LSTM, the mean over the words: x [B, T] of whole numbers -> [B, 10]."""

    def __init__(self, width: int = 256, words: int = 8192) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.words(x))  # [B, T, W]
        outputs: Tensor = self.head(hidden.mean(1))
        return outputs


@dataclasses.dataclass(frozen=True)
class Network:
    """One row of the table: how to build a member, what it learns from, how many of them."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of one input
    members: int
    batch: int
    words: int = 0  # 0: inputs are real numbers
    points: int = 2048  # examples to draw the batches from; an epoch of fit, timed whole
    cpu: tuple[int, int, int] = (4, 32, 64)  # members, batch and points where there is no GPU
    wide: bool = False  # whether one member at 4x and 10x the batch is a row
    image: bool = False  # channels_last pays

    def data(self, points: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """x [N, ...] and y [N], the same whenever it is asked for."""
        generator = torch.Generator().manual_seed(0)
        size = (points, *self.shape)
        x = torch.randn(size, generator=generator)
        if self.words:
            x = torch.randint(self.words, size, generator=generator)
        y = torch.randint(CLASSES, (points,), generator=generator)
        return x.to(device), y.to(device)


IMAGE = (3, 32, 32)
NETWORKS: dict[str, Network] = {
    "mlp": Network(
        lambda: MLP(32, 256, 256, 256, 10), (32,), 50, 128, points=32768, cpu=(50, 128, 4096)
    ),
    "cnn": Network(CNN, IMAGE, 20, 128, points=4096, cpu=(20, 128, 256), wide=True, image=True),
    "vit": Network(ViT, IMAGE, 10, 128, wide=True),
    "text": Network(Text, (128,), 10, 64, 8192, 1024, cpu=(4, 16, 32), wide=True),
    "resnet18": Network(ResNet18, IMAGE, 10, 128, wide=True, image=True),
    "mobilenet": Network(MobileNetV2, IMAGE, 10, 128, image=True),
    "lstm": Network(LSTM, (128,), 10, 64, 8192, 1024, cpu=(4, 16, 32)),
    # TabM's packed ensemble (Gorishniy et al. 2025)
    "tabm": Network(
        lambda: MLP(32, 992, 992, 992, 992, 10), (32,), 32, 256, points=32768, cpu=(8, 256, 1024)
    ),
}

SMALL = (3, 8, 8)
TINY: dict[str, Network] = {
    "mlp": Network(lambda: MLP(4, 8, 8, 10), (4,), 3, 8, points=32),
    "cnn": Network(lambda: CNN(4, 8), SMALL, 3, 4, points=16, wide=True, image=True),
    "vit": Network(lambda: ViT(16, 2, 2, 8), SMALL, 3, 4, points=16, wide=True),
    "text": Network(lambda: Text(16, 2, 2, 6, 11), (6,), 3, 4, 11, 16, wide=True),
    "resnet18": Network(lambda: ResNet18(8, 4), SMALL, 3, 4, points=16, wide=True, image=True),
    "mobilenet": Network(lambda: MobileNetV2(2, 16), SMALL, 3, 4, points=16, image=True),
    "lstm": Network(lambda: LSTM(8, 11), (6,), 3, 4, 11, 16),
    "tabm": Network(lambda: MLP(4, 16, 16, 10), (4,), 3, 8, points=32),
}
