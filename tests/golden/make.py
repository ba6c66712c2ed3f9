"""Write tests/golden/expected.json with the numbers of the code in this tree.

    python tests/golden/make.py [CASE ...]

Without names, compute every case that is not in the file. A named case is computed again, and the
fields that have changed are printed. It uses one device and the settings of the tests
(tests/conftest.py).
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import tests.conftest  # noqa: E402, F401
from tests.helpers import golden  # noqa: E402


def make(case: str) -> dict:
    """Compute the numbers of a case."""
    kind, _, name = case.partition(": ")
    if kind == "course":
        with tempfile.TemporaryDirectory() as folder:
            return golden.course(name, Path(folder))
    return golden.shipped_model(name) if kind == "model" else {"numbers": golden.random_numbers()}


def write(expected: dict[str, dict]) -> None:
    """Write one line for each field of a case."""
    cases = []
    for case, fields in sorted(expected.items()):
        lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in fields.items()]
        cases.append(f" {json.dumps(case)}: {{\n" + ",\n".join(lines) + "\n }")
    text = "{\n" + ",\n".join(cases) + "\n}\n"
    (golden.FOLDER / "expected.json").write_text(text, encoding="utf-8")


def main(names: list[str]) -> None:
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    expected = golden.read() if (golden.FOLDER / "expected.json").exists() else {}
    for case in names or [case for case in golden.cases() if case not in expected]:
        before = expected.get(case, {})
        expected[case] = {"commit": commit} | make(case)
        changed = [field for field, value in expected[case].items() if before.get(field) != value]
        print(f"{case}: {', '.join(changed)}", flush=True)
        write(expected)


if __name__ == "__main__":
    main(sys.argv[1:])
