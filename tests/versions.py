"""Run the tests with other versions: `make test-versions`, after changing a lower bound.

    python tests/versions.py [--only lowest python3.12] [-- pytest's arguments]

Run each installed Python from 3.11 on with the newest packages, and the first one with the lowest
versions that pyproject.toml allows, in a temporary virtual environment.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ["python3.11", "python3.12", "python3.13"]
EXTRAS = "test", "text"


def lowest_versions() -> list[str]:
    """Return the requirements of pyproject.toml at their lowest versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [one for extra in EXTRAS for one in project["optional-dependencies"][extra]]
    return [one.replace(">=", "==") for one in project["dependencies"] + extras]


def run_tests(name: str, arguments: list[str]) -> str:
    """Return pytest's last line with these versions, or why the tests can't run."""
    python = PYTHONS[0] if name == "lowest" else name
    if not shutil.which(python) or subprocess.run([python, "-V"], capture_output=True).returncode:
        return "not installed"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        pip = [f"{folder}/bin/pip", "install", "-qq", "-e", f".[{','.join(EXTRAS)}]"]
        pip += lowest_versions() if name == "lowest" else []
        done = subprocess.run(pip, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            return f"can't be installed: {done.stderr.strip().splitlines()[-1]}"
        pytest = [f"{folder}/bin/python", "-m", "pytest", "-n", "auto", "--dist", "loadfile"]
        done = subprocess.run([*pytest, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        print(done.stdout[-4000:], flush=True)
        return done.stdout.strip().splitlines()[-1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[*PYTHONS, "lowest"])
    parser.add_argument("arguments", nargs="*", default=["--ignore=tests/system"])
    options = parser.parse_args()
    outcomes = {name: run_tests(name, options.arguments) for name in options.only}
    print("\n".join(f"{name}: {outcome}" for name, outcome in outcomes.items()))
    sys.exit(any("failed" in end or "error" in end for end in outcomes.values()))
