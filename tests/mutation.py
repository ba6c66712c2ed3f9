"""Mutation testing: change one operator or number at a time and see whether a test fails.

    python tests/mutation.py [--groups models data] [--number 40] [--seed 0]

Draw positions in the modules of each group and make one mutant at each (cosmic-ray). The tests of
the module run in build/mutation/tree, a copy of the last commit. Outcomes are kept beside it, in
outcomes.jsonl: after Ctrl-C, which prints the table of the mutants so far, the same command
resumes; changed tests are tried on survivors. The groups take turns.
A mutant that cannot be imported counts as killed, one whose tests time out does not.
"""

import argparse
import ast
import contextlib
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code, use_mutation
from cosmic_ray.plugins import get_operator, operator_names
from cosmic_ray.work_item import MutationSpec

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build/mutation"
NUMBERS = "./test_golden.py::test_random_numbers_are_unchanged"
# Folder: {module, and functions if not all count: its test files, the most relevant first}.
GROUPS = {
    "comparison": {"statistics": "statistics blocks"},
    "data": {
        "windows": f"windows {NUMBERS}", "tables stratified_split hash_split": "tables",
        "corpus read read_windows _read_into": "corpus",
        "documents split_documents _file_units _text_units _next_line _before_white_space "
        "_text_blocks": "prepare",
    },
    "training": {"step": "trainer optimizer runs/test_aux_losses.py"},
    "functional": {
        "attention": "attention", "logits": "logits", "losses": "logits", "positions": "positions",
        "layers": "layers inspection/test_capture.py models/test_calls.py",
        "random": f"random layers {NUMBERS}", "recurrent": "recurrent",
        "kernels/chunked_attention": "kernels", "kernels/fused_attention": "kernels",
        "kernels/matmul": "kernels", "kernels/mixed_attention": "kernels",
    },
    "models": {
        "block": "block options calls custom", "classifier": "calls options",
        "components": "config parameters", "config": "config parameters custom",
        "custom": "custom probe", "encoder": "options calls", "ensemble": "ensemble",
        "init": "init parameters options custom", "inputs": "block options calls custom",
        "logistic": "baselines/test_logistic.py calls", "low_rank": "low_rank",
        "parameters": "parameters init", "seq2seq": "options calls",
        "transformer": "options calls",
    },
}  # fmt: skip
# Swaps that any test would detect are left out, such as | or >> in place of + between floats.
SWAPS = """Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Mul Mod_Mul Pow_Mul BitAnd_BitOr BitXor_BitAnd
    RShift_LShift LShift_RShift Eq_NotEq NotEq_Eq Is_IsNot IsNot_Is Lt_LtE Lt_GtE LtE_Lt LtE_Gt
    Gt_GtE Gt_LtE GtE_Gt GtE_Lt Delete_USub Delete_Not"""
OPERATORS = re.compile(
    rf"core/(Replace\w+Operator_({'|'.join(SWAPS.split())})|AddNot|NumberReplacer|"
    r"Replace(True|False|And|Or|Break|Continue)With\w+|ZeroIterationForLoop)"
)
IMPORTS = "flax.nnx hypothesis optax scipy.stats"  # before the forks: saves each four seconds
LIMIT = 900  # seconds for the tests of a mutant
OPTIONS = "-x -n 0 -p no:cacheprovider --hypothesis-seed=0"
EXCLUDED = "decorator", "fstring", "raise_stmt"
ANNOTATIONS = {("annassign", ":"), ("tfpdef", ":"), ("funcdef", "->")}


def is_mutable(node, functions: list[str]) -> bool:
    """True in one of the functions (of all, if none is named), except in EXCLUDED syntax."""
    names, is_star = set(), node.parent.type == "parameters"
    while (parent := node.parent) is not None:
        before = getattr(node.get_previous_sibling(), "value", "")
        if parent.type in EXCLUDED or (parent.type, before) in ANNOTATIONS:
            return False
        names |= {parent.name.value} if parent.type == "funcdef" else set()
        node = parent
    return not is_star and (not functions or bool(names & {*functions}))


def draw_mutants(group: str, number: int, seed: int) -> list[tuple[str, MutationSpec]]:
    """Return mutants at `number` random positions of a group, and the test files of each."""
    at_position: dict[tuple, list[tuple[str, MutationSpec]]] = {}
    for key, names in GROUPS[group].items():
        module, *functions = key.split()
        path = Path(f"tlite/{group}/{module}.py")
        tests = " ".join(
            f"tests/{name}" if "/" in name else f"tests/{group}/test_{name}.py"
            for name in names.split()
        )
        source = path.read_text(encoding="utf-8")
        defined = {getattr(node, "name", "") for node in ast.walk(ast.parse(source))}
        if missing := {*functions} - defined:
            sys.exit(f"{path} has no {', '.join(sorted(missing))}")
        nodes = [*ast_nodes(get_ast(source))]
        for operator in sorted(filter(OPERATORS.fullmatch, operator_names())):
            positions = get_operator(operator)().mutation_positions
            pairs = ((node, *ends) for node in nodes for ends in positions(node))
            for occurrence, (node, start, end) in enumerate(pairs):
                if is_mutable(node, functions):
                    mutant = MutationSpec(path, operator, occurrence, start, end)
                    at_position.setdefault((path, start), []).append((tests, mutant))
    rng = random.Random(f"{seed} {group}")
    positions = rng.sample(sorted(at_position), min(number, len(at_position)))
    at_positions = ([*filter(is_valid, at_position[position])] for position in positions)
    return [rng.choice(mutants) for mutants in at_positions if mutants]


def is_valid(tests_and_mutant: tuple[str, MutationSpec]) -> bool:
    """False if the source has a syntax error, such as `if not x := y`."""
    mutant = tests_and_mutant[1]
    operator, source = get_operator(mutant.operator_name)(), mutant.module_path.read_text("utf-8")
    with contextlib.suppress(SyntaxError):
        return bool(ast.parse(mutate_code(source, operator, mutant.occurrence)))
    return False


def run_tests(tests: str) -> tuple[str, str]:
    """Run tests in a fork; return "survived", "killed" or "timed out", and what they printed."""
    with tempfile.TemporaryFile() as output:
        fork = multiprocessing.get_context("fork").Process(target=call_pytest, args=(tests, output))
        fork.start()
        try:
            fork.join(LIMIT)
        finally:
            if is_alive := fork.is_alive():
                os.killpg(fork.pid, signal.SIGKILL)
                fork.join()
        if is_alive:
            return "timed out", ""
        output.seek(0)
        printed = output.read().decode(errors="replace")
        if "ERROR: not found: " in printed:  # a test has another name now
            sys.exit(printed)
        return "killed" if fork.exitcode else "survived", printed[-2000:]


def call_pytest(tests: str, output) -> None:
    os.setsid()  # so that processes of the tests can be killed with this one
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    sys.exit(pytest.main([*OPTIONS.split(), *tests.split()]))


def find_outcome(tests: str, mutant: MutationSpec, outcomes: dict[str, dict]) -> dict:
    """Run the tests on a mutant, unless its outcome is known."""
    version = hashlib.sha256(
        b"".join(Path(name.split("::")[0]).read_bytes() for name in tests.split())
    )
    original = mutant.module_path.read_text(encoding="utf-8")
    source = hashlib.sha256(original.encode()).hexdigest()
    identity = f"{mutant.operator_name} {mutant.occurrence} {mutant.module_path} {source}"
    known = outcomes.get(identity, {"tests": None, "outcome": "survived"})
    if known["outcome"] != "survived" or known["tests"] == version.hexdigest():
        return known
    start, operator = time.monotonic(), get_operator(mutant.operator_name)()
    with use_mutation(mutant.module_path, operator, mutant.occurrence) as (_, mutated):
        result, output = run_tests(tests)
    pairs = zip(original.splitlines(), mutated.splitlines(), strict=False)
    lines = next(([a.strip(), b.strip()] for a, b in pairs if a != b), [])
    outcome = {"id": identity, "tests": version.hexdigest(), "outcome": result}
    outcome |= {"change": f"{mutant.module_path}:{mutant.start_pos[0]}: {' -> '.join(lines)}"}
    outcome |= {"seconds": round(time.monotonic() - start), "output": output}
    outcome["failed"] = re.findall(r"^(?:FAILED|ERROR) ([^\s\[]+)", output, re.MULTILINE)
    with (FOLDER / "outcomes.jsonl").open("a", encoding="utf-8") as file:
        print(json.dumps(outcome), file=file)
    print(f"{outcome['outcome']} in {outcome['seconds']} s: {outcome['change']}", flush=True)
    return outcome


def check_without_change(tests: set[str]) -> None:
    """Exit if a test that detects a mutant fails without it, too."""
    result, output = run_tests(" ".join(sorted(tests))) if tests else ("survived", "")
    if result != "survived":
        sys.exit(f"tests fail without a change:\n{output}")


def copy_last_commit(tree: Path) -> None:
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    archive = tree.with_suffix(".tar")
    subprocess.run(["git", "-C", ROOT, "archive", "-o", archive, "HEAD"], check=True)
    shutil.unpack_archive(archive, tree)
    (ROOT / ".pytest_cache").mkdir(exist_ok=True)
    (tree / ".pytest_cache").symlink_to(ROOT / ".pytest_cache")  # programs compiled by tests
    sys.path[0] = os.environ["PYTHONPATH"] = str(tree)
    os.chdir(tree)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--groups", nargs="*", default=[*GROUPS], choices=[*GROUPS])
    parser.add_argument("--number", type=int, default=40, help="of mutants of each group")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    copy_last_commit(FOLDER / "tree")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as in conftest.py; threads do not survive a fork
    for name in IMPORTS.split():
        importlib.import_module(name)
    file, survivors = FOLDER / "outcomes.jsonl", []
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    outcomes = {one["id"]: one for one in map(json.loads, lines)}
    mutants = {group: draw_mutants(group, options.number, options.seed) for group in options.groups}
    results: dict[str, list[dict]] = {group: [] for group in mutants}
    with contextlib.suppress(KeyboardInterrupt):
        for turn in range(options.number):
            for group in mutants:
                for tests, mutant in mutants[group][turn : turn + 1]:
                    results[group].append(find_outcome(tests, mutant, outcomes))
    columns = "modules", "mutants", "killed", "survived", "timed out", "killed, %"
    rows = [f"| {' | '.join(columns)} |", "| --- |" + " ---: |" * 5]
    for group, outcomes_of_group in results.items():
        check_without_change({n for o in outcomes_of_group for n in o.get("failed", ())})
        counts = Counter(outcome["outcome"] for outcome in outcomes_of_group)
        total, killed = counts.total(), counts["killed"]
        row = group, total, killed, counts["survived"], counts["timed out"]
        rows.append(f"| {' | '.join(map(str, row))} | {100 * killed / max(total, 1):.0f} |")
        survivors += [o["change"] for o in outcomes_of_group if o["outcome"] == "survived"]
    print(*rows, *survivors, sep="\n")


if __name__ == "__main__":
    main()
