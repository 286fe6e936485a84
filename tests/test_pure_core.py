from __future__ import annotations

import subprocess
import sys

import pytest

CORE = ("definitions", "sse", "compare", "stats", "acceptance", "fairness", "replay", "energy", "margins")


@pytest.mark.parametrize("module", CORE)
def test_the_pure_core_needs_the_standard_library_alone(module: str) -> None:
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        f"import samebytes.{module}\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names) - {'samebytes'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
