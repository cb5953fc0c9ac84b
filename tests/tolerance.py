"""How far apart two right computations of one number may lie: the error model of every test.

A CPU's vector width, its libraries and its threads change three things: the order of a sum, whether
a product is rounded before it is added, and the last bits of exp, log or tanh. With u = eps / 2:

1. One operation is off by a factor of 1 + d, |d| <= u.
2. A sum of n products is off by at most n u sum |a_i b_i|, in any order, with products fused or not
   (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1, to first order). So
   two computations of it are at most n eps sum |a_i b_i| apart.
3. exp, log, tanh and their like are off by at most 4 units in the last place: SLEEF states 1, MKL
   and the compilers' vector libraries 1 to 4.
4. Of L layers (or steps of an algorithm) each adds an error of its own and hands on those of the
   layers before it. The sum at the end is L times one layer's, times `condition`: the most by which
   a relative error anywhere is magnified on its way to the end.

    |a - b| <= depth (terms + FUNCTION) eps condition scale

`scale` is the size of what is summed, sum |a_i b_i|, and not that of the sum: where positive and
negative terms cancel, the result is small and its error is not.

It is a bound, so no CPU breaks it; errors of random sign stay near its square root in `terms` and
`depth`. Where the bound would be too wide to hold anything, compare in float64.
"""

from typing import Any

import torch

FUNCTION = 4  # units in the last place, point 3
ADAM = 1e3  # the growth of a rounding error in training, see `trained`


def rounding(
    dtype: torch.dtype, *, terms: int = 1, depth: int = 1, condition: float = 1.0
) -> float:
    """depth (terms + FUNCTION) eps condition, a relative error.

    >>> rounding(torch.float64, terms=12, depth=10) == 160 * 2.0**-52
    True
    """
    return depth * (terms + FUNCTION) * torch.finfo(dtype).eps * condition


def close(
    dtype: torch.dtype,
    *,
    terms: int = 1,
    depth: int = 1,
    condition: float = 1.0,
    scale: float = 1.0,
) -> dict[str, Any]:
    """The same as `rtol` and `atol` of assert_close and assert_allclose, for numbers whose terms
    have the size `scale`."""
    within = rounding(dtype, terms=terms, depth=depth, condition=condition)
    return {"rtol": within, "atol": within * scale}


def trained(dtype: torch.dtype, *, steps: int, rows: int) -> dict[str, Any]:
    """The same of parameters near 1 after `steps` steps on batches of `rows` examples.

    A step moves a parameter by lr times a gradient over its size (Adam), so its error is lr times
    the gradient's relative one. That is rows eps times sum |g_i| / |sum g_i|, the terms' sizes over
    their sum's: ADAM, together with what later steps make of it.
    """
    return close(dtype, terms=rows, depth=steps, condition=ADAM)
