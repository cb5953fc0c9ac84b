"""Parameters [M, ...] of all members side by side in one vector, so that a step over all of them is
a few operations however many layers there are."""

import torch
from torch import Tensor

from stochens.members import Params


class SideBySide:
    """How stacked parameters lie in a vector [M D]: one parameter after the other, each [M, ...].

    >>> lay = SideBySide({"w": torch.zeros(2, 3), "b": torch.zeros(2, 1)})
    >>> lay.of_members(torch.arange(8.0))  # means over w and b of each member
    tensor([2.2500, 4.7500])
    >>> {name: tuple(p.shape) for name, p in lay.named(torch.arange(8.0)).items()}
    {'w': (2, 3), 'b': (2, 1)}
    """

    def __init__(self, params: Params) -> None:
        first = next(iter(params.values()))
        self.members = len(first)
        self.shapes = {name: p.shape for name, p in params.items()}
        self.sizes = [p.numel() for p in params.values()]  # of all members
        self.each = [size // self.members for size in self.sizes]  # of one
        self.width = sum(self.each)  # D
        # of each number its place among members side by side, [M, D]
        own = torch.arange(self.members * self.width, device=first.device).view(self.members, -1)
        self.order = torch.cat([part.flatten() for part in own.split(self.each, dim=1)])
        self._by_member = self.order.argsort()

    def named(self, vector: Tensor) -> Params:
        """[M D] -> views [M, ...] by name."""
        parts, shapes = vector.split(self.sizes), self.shapes.items()
        return {name: part.view(shape) for part, (name, shape) in zip(parts, shapes, strict=True)}

    def laid_out(self, by_member: Tensor, out: Tensor | None = None) -> Tensor:
        """[M, D], members after each other -> [M D]."""
        return torch.index_select(by_member.view(-1), 0, self.order, out=out)

    def by_member(self, vector: Tensor) -> Tensor:
        """The inverse: [M D] -> [M, D]."""
        return vector.index_select(0, self._by_member).view(self.members, -1)

    def of_members(self, vector: Tensor) -> Tensor:
        """Means over each member's numbers: [M D] -> [M]."""
        return self.by_member(vector).mean(1)

    def to_numbers(self, of_members: Tensor) -> Tensor:
        """One number of each member for all of its parameters: [M] -> [M D]."""
        return self.spread(of_members[:, None].expand(-1, len(self.sizes)))

    def by_tensor(self, vector: Tensor) -> Tensor:
        """Means over each parameter of each member: [M D] -> [M, parameters]."""
        parts = vector.split(self.sizes)
        return torch.stack([p.view(self.members, -1).mean(1) for p in parts], 1)

    def spread(self, of_tensors: Tensor) -> Tensor:
        """The other way: [M, parameters] -> [M D]."""
        columns = zip(of_tensors.unbind(1), self.each, strict=True)
        return torch.cat([one[:, None].expand(-1, size).flatten() for one, size in columns])

    def for_all(self, numbers: dict[str, float], like: Tensor) -> Tensor:
        """A number of each parameter: one tensor where all are the same, else [M D]."""
        each = like.new_tensor(list(numbers.values()))
        if bool((each == each[0]).all()):
            return each[0]
        return each.repeat_interleave(torch.tensor(self.sizes, device=each.device))

    def vector(self, params: Params, like: Tensor) -> Tensor:
        """Tensors by name, [1 or M, ...], as one vector [M D]; 0 where there is none."""
        parts = (
            params[name].to(like).expand(shape) if name in params else like.new_zeros(shape)
            for name, shape in self.shapes.items()
        )
        return torch.cat([part.flatten() for part in parts])
