"""Prints the first Python snippet of a page, which is the README's quick start."""

import re
import sys
from pathlib import Path

found = re.search(r"```python\n(.*?)```", Path(sys.argv[1]).read_text(), re.DOTALL)
if found is None:
    sys.exit(f"{sys.argv[1]} has no Python snippet")
print(found[1], end="")
