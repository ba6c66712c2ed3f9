"""A command begins soon: what only pictures and statistics need is imported where they are made."""

import subprocess
import sys

HEAVY = ("matplotlib", "scipy", "sklearn", "datasets", "torch", "transformers")


def test_what_trains_imports_no_pictures_and_no_statistics():
    code = (
        "import sys, tlite.cli.commands, tlite.cli.texts, tlite.recipes.kinds; print(*sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {*HEAVY} & {*found.stdout.split()}
