"""torchvision as the package index has it is built for CUDA, and importing it beside torch's build
for the CPU raises "operator torchvision::nms does not exist"; so does what imports it, as timm and
torchmetrics do. Only one of its modules raises, which states shapes for operators that are not
there: an empty one in its place lets the rest, which is plain Python, be imported.
"""

import sys
import types

import torch


def let_torchvision_import() -> None:
    """To be called before anything imports torchvision; where torch has CUDA, nothing is done."""
    if torch.version.cuda is None:
        name = "torchvision._meta_registrations"
        sys.modules.setdefault(name, types.ModuleType(name))
