"""Whether a wheel holds every file of the package that git knows, and nothing else.

`python .ci/look_into_wheel.py dist/stochens-*.whl`
"""

import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path, PurePosixPath

# What a wheel without its files would lose in silence: kernels would fall back to the slower way,
# types would be unknown, pages would be bare.
NEEDED = (".py", ".cpp", ".cu", ".hpp", ".css", ".js", ".html", "py.typed")


def look(wheel: Path) -> str:
    """A line that says what is in it; exits with what is wrong."""
    listed = subprocess.run(
        ["git", "ls-files", "src"], capture_output=True, text=True, check=True
    ).stdout.split()
    known = {line.removeprefix("src/") for line in listed}
    held = set(zipfile.ZipFile(wheel).namelist())
    about = {name for name in held if PurePosixPath(name).parts[0].endswith(".dist-info")}
    if missing := sorted(known - held):
        sys.exit(f"{wheel.name} lacks {', '.join(missing)}")
    if strangers := sorted(held - known - about):
        sys.exit(f"{wheel.name} holds what is no file of the package: {', '.join(strangers)}")
    kinds = Counter(next((kind for kind in NEEDED if name.endswith(kind)), "") for name in known)
    if absent := [kind for kind in NEEDED if not kinds[kind]]:
        sys.exit(f"{wheel.name} has no file of the kinds {', '.join(absent)}")
    return f"{wheel.name} holds " + ", ".join(f"{kinds[kind]} {kind}" for kind in NEEDED)


if __name__ == "__main__":
    print(look(Path(sys.argv[1])))
