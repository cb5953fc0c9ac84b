"""The user's own network, by the name that they typed.

To import a module runs it. So a name is imported only where the user typed it, or asked in so many
words for the one that a run folder names; a run folder by itself runs nothing.
"""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from stochens.errors import InputError, did_you_mean

PATH = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
NAME = re.compile(rf"(?=.{{,200}}\Z){PATH}:{PATH}", re.ASCII)  # of at most 200 letters

Model = nn.Module | Callable[[], nn.Module]


def check_name(name: str) -> None:
    """Whether it could be one; nothing is imported."""
    module, _, function = name.partition(":")
    if NAME.fullmatch(name) and not module.endswith(".py"):
        return
    if module.endswith(".py") and NAME.fullmatch(f"{Path(module).stem}:{function}"):
        hint = f", say {Path(module).stem}:{function} in the folder of that file"
    else:
        hint = ", say mypkg:make_net"
    raise InputError(f"--model must be MODULE:FUNCTION{hint}; got {name[:80]!r}")


def import_model(name: str) -> Model:
    """The function (or class, or module object) of that name. This runs the user's code.

    Installed modules come first, then the current folder: a folder that one looks into, perhaps a
    stranger's, cannot put a file of its own in the place of an installed module.
    """
    check_name(name)
    module_name, _, path = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise InputError(
                f"--model {name}: there is no module {missing!r} in {here}, nor is it installed"
            ) from None
        raise InputError(f"--model {name}: {module_name} needs {missing!r}") from None
    except (Exception, SystemExit) as error:
        raise InputError(
            f"--model {name}: {module_name} fails: {_quote_first_line(error)}"
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            hint = did_you_mean(part, [word for word in dir(found) if not word.startswith("_")])
            where = getattr(found, "__file__", None) or module_name
            raise InputError(f"--model {name}: {where} has no {part!r}{hint}")
        found = getattr(found, part)
    if not isinstance(found, nn.Module) and not callable(found):
        raise InputError(f"--model {name} is a {type(found).__name__}, no function")
    return found if isinstance(found, nn.Module) else _explain_failures(found, name)


def _explain_failures(build: Callable[[], Any], name: str) -> Callable[[], nn.Module]:
    """The same function, where a failure is one line."""

    def build_or_explain() -> nn.Module:
        try:
            net = build()
        except Exception as error:
            raise InputError(f"--model {name} fails: {_quote_first_line(error)}") from error
        if not isinstance(net, nn.Module):
            raise InputError(f"--model {name} must return an nn.Module, got {net!r:.80}")
        return net

    return build_or_explain


def _quote_first_line(error: BaseException) -> str:
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"
