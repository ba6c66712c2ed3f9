"""The Python files of the user that the command line and a run's config name.

A file and the modules that it imports from its folder are one program. Each of its files is read
once, hashed and run from the same bytes, in a namespace that no other program shares. A config
names a function by the program's file, the function's name and the SHA-256 of each file of the
program. A file runs only if the user names it in this command, and only if the program is the one
that the run was made with.
"""

import ast
import builtins
import dataclasses
import hashlib
import importlib
import itertools
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

from tlite.errors import CODE_FILES, UserError, system_reason

PACKAGE = Path(__file__).resolve().parent

_named: list[Path] = []  # the files that may run
_programs: dict[str, "Program"] = {}  # by the first name of their modules
_numbers = itertools.count()  # for these names


class Program:
    """A Python file with the modules that it imports from its folder or its package.

    Its modules are submodules of a package of its own: a second program in the process has another
    `helper`, and an edited one is read again.

    Args:
        path: the file, which is read.
        module: the file's module if Python has imported it; what it imports is read from disk.

    Raises:
        UserError: a file can't be read.
    """

    def __init__(self, path: Path, module: ModuleType | None = None):
        self.path, self.module, folder = path, module, path.resolve().parent
        self.name = module.__name__ if module else f"__code_{next(_numbers)}__"
        self.spec = getattr(module, "__spec__", None)  # another one after a reload
        root = folder
        while (root / "__init__.py").is_file():
            root = root.parent
        self._package = folder.relative_to(root).parts
        self._folders = list(dict.fromkeys([folder, root]))
        self._experiments = [folder] if folder.name == "experiments" else []
        self._experiments.append(shipped_experiments())
        self._sources = {path.name: _read(path)}
        if folder != shipped_experiments():
            CODE_FILES[self.digests[path.name]] = path
        if module:
            self._read_imports(path.name, ".".join(self._package))
            _programs[self.name] = self

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 by file name: of the file, and of each `helper.py` or `package/helper.py`."""
        return {name: _sha256(source) for name, source in self._sources.items()}

    def run(self) -> ModuleType:
        """Run the file, and return its module.

        Raises:
            UserError: it ends in an error; the message names the line.
        """
        importlib.invalidate_caches()  # a neighbour may be a moment old
        package, file = ModuleType(self.name), self.path.resolve()
        package.__path__ = list(map(str, self._folders))
        name = ".".join([self.name, *self._package, file.stem.replace(".", "_")])
        self.module = ModuleType(name)
        self.module.__file__, self.module.__package__ = str(file), name.rpartition(".")[0]
        sys.modules.update({self.name: package, name: self.module})
        _programs[self.name] = self
        try:
            self._execute(self.module, self.path.name)
        except Exception as error:
            del _programs[self.name]
            for other in [other for other in sys.modules if other.startswith(self.name)]:
                del sys.modules[other]
            reason = _reason(error, self.path, file.parent).replace(f"{self.name}.", "")
            raise UserError(reason) from error
        return self.module

    def find(self, name: str) -> Any:
        """The value of a top-level name of the file, or of a module as `helper.name`."""
        parent, _, last = name.rpartition(".")
        module = sys.modules.get(f"{self.name}.{parent}") if parent else self.module
        return vars(module).get(last) if module else None

    def changed(self, digests: dict[str, str], file: str) -> Path | None:
        """The first file that is not as `digests` says, if any; those that have not run are read.

        Args:
            digests: SHA-256 by file name.
            file: this program's file in it, which may have another name now.
        """
        expected = {self.path.name if n == file else n: digest for n, digest in digests.items()}
        for name in expected.keys() - self._sources.keys():
            if path := self._find(name):
                self._sources[name] = _read(path)
        current = self.digests
        names = [name for name in expected | current if expected.get(name) != current.get(name)]
        return (self._find(names[0]) or self.path.with_name(names[0])) if names else None

    # Imports

    def find_spec(self, name: str, path: Any) -> ModuleSpec | None:
        """A module of this program, for Python's import system."""
        if name == f"{self.name}.experiments":
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = list(map(str, self._experiments))
            return spec
        spec = PathFinder.find_spec(name, path)
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = self
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make the module (a method of every loader)."""

    def exec_module(self, module: ModuleType) -> None:
        """Run an imported module (a method of every loader)."""
        name = module.__name__.partition(".")[2].replace(".", "/")
        self._execute(module, name + ("/__init__.py" if hasattr(module, "__path__") else ".py"))

    def _execute(self, module: ModuleType, name: str) -> None:
        path = Path(module.__file__)
        if name not in self._sources:
            self._sources[name] = _read(path)
        vars(module)["__builtins__"] = vars(builtins) | {"__import__": self._import}
        exec(compile(self._sources[name], path, "exec", dont_inherit=True), vars(module))

    def _import(self, name: str, globals=None, locals=None, fromlist=(), level: int = 0) -> Any:
        """Python's `__import__`, by which the program's modules go before those of others."""
        top = name.partition(".")[0]
        if level or not self._has(top):
            return builtins.__import__(name, globals, locals, fromlist, level)
        module = builtins.__import__(f"{self.name}.{name}", globals, locals, fromlist, 0)
        return module if fromlist else sys.modules[f"{self.name}.{top}"]

    def _has(self, name: str) -> bool:
        """True if `import name` means a module of the program, and not one of a library."""
        if name == "experiments":
            return True
        if name in sys.stdlib_module_names or name == PACKAGE.name:
            return False
        if (ours := PathFinder.find_spec(name, list(map(str, self._folders)))) is None:
            return False
        path = [p for p in sys.path if Path(p).resolve() not in self._folders]
        if (other := PathFinder.find_spec(name, path)) is None:
            return True
        installed = any(
            map(_is_installed, [other.origin, *(other.submodule_search_locations or [])])
        )
        return not installed and (ours.origin is not None or other.origin is None)

    def _find(self, name: str) -> Path | None:
        """The path of a file by its name among the digests."""
        folders, rest = self._folders, name
        if name.startswith("experiments/"):
            folders, rest = self._experiments, name.partition("/")[2]
        return next((path for folder in folders if (path := folder / rest).is_file()), None)

    def _read_imports(self, name: str, package: str) -> None:
        """Read the modules that a file imports, as its source says."""
        try:
            tree = ast.parse(self._sources[name])
        except (SyntaxError, ValueError) as error:
            raise UserError(f"can't read what {name} imports: {error}") from error
        for node in ast.walk(tree):
            modules = [alias.name for alias in getattr(node, "names", [])]
            if isinstance(node, ast.ImportFrom):
                start = "." * node.level + (node.module or "")
                start = resolve_name(start, package) if node.level else start
                modules = [start, *(f"{start}.{name}" for name in modules)]
            elif not isinstance(node, ast.Import):
                continue
            for module in modules:
                if self._has(module.partition(".")[0]):
                    self._read_module(module.split("."))

    def _read_module(self, names: list[str]) -> None:
        """Read the source of a module and of the packages that it is in."""
        for at in range(1, len(names) + 1):
            parent, stem = "/".join(names[:at]), ".".join(names[:at])
            for file, package in (
                (f"{parent}/__init__.py", stem),
                (f"{parent}.py", stem.rpartition(".")[0]),
            ):
                if file not in self._sources and (path := self._find(file)):
                    self._sources[file] = _read(path)
                    self._read_imports(file, package)
                    break


class _Finder:
    """Finds the modules of programs, as an entry of `sys.meta_path`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        program = _programs.get(name.partition(".")[0])
        return program.find_spec(name, path) if program and path else None


sys.meta_path.insert(0, _Finder)


def run_file(path: Path) -> ModuleType:
    """Run a Python file that the user has named.

    Raises:
        UserError: it can't be read, or ends in an error; the message names the line.
    """
    return Program(path).run()


def is_own(value) -> bool:
    """True if a component of a model, its class or a function is the user's, and not tlite's."""
    if not (callable(value) or dataclasses.is_dataclass(value)):
        return False
    module = getattr(value, "__module__", None) or type(value).__module__
    return module.partition(".")[0] != PACKAGE.name


def describe_code(function: Callable) -> dict[str, Any]:
    """A function, or a component's class, as config.json has it.

    Returns:
        "kind", the "file" of its program, its "name", after that of its module if that is another
        file, and "sha256": the digest of each file of the program, by file name.

    Raises:
        UserError: a config can't name it: it is not on the top level of a file of the user's.
    """
    name = getattr(function, "__qualname__", repr(function))
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = Path(getattr(module, "__file__", None) or "")
    if module is None or file.suffix != ".py":
        raise UserError(f"{name} is not a function in a Python file: a run can't record it")
    library = module.__name__.partition(".")[0] in sys.stdlib_module_names
    library |= PACKAGE in file.resolve().parents or _is_installed(str(file))
    if library and file.resolve().parent != shipped_experiments():
        raise UserError(
            f"{name} is a library's function (of {module.__name__}), which a run can't record: "
            "define a function in your file that calls it"
        )
    if vars(module).get(name) is not function:
        raise UserError(
            f"{name} is not on the top level of {file.name} under that name: a run can't record it"
        )
    package = module.__name__.partition(".")[0]
    ran = package.startswith("__code_")
    program = _programs.get(package if ran else module.__name__)
    if not ran and (program is None or program.spec is not module.__spec__):  # it was reloaded
        program = Program(file, module)
    kind = "class" if isinstance(function, type) else "function"
    if module is not program.module:
        name = f"{module.__name__.partition('.')[2]}.{name}"
    return {"kind": kind, "file": program.path.name, "name": name, "sha256": program.digests}


def name_files(paths: Iterable[Path]) -> None:
    """Let these files run, where a config asks for their functions.

    Raises:
        UserError: there is no such file.
    """
    for path in paths:
        if not path.is_file():
            raise UserError(f"there is no file {path} to take code from")
        _named.append(path)


def find_code(reference: Any) -> Callable:
    """The function or the class that `describe_code` has described.

    Raises:
        ValueError: it is no such description.
        UserError: its file is not named, a file of the program has changed, or it has no such
            function.
    """
    keys = "kind", "file", "name", "sha256"
    kind, file, name, digests = (
        reference.get(key) if isinstance(reference, dict) else None for key in keys
    )
    texts = kind, file, name, *(digests.values() if isinstance(digests, dict) else [None])
    if not all(isinstance(text, str) for text in texts) or file not in digests:
        raise ValueError(f"expected a function's file, name and SHA-256, not {reference!r:.80}")
    program = _loaded(digests, file) or _run_named(digests, file, name)
    function = program.find(name)
    known = describe_code(function) if callable(function) else {}
    if (known.get("kind"), known.get("name"), known.get("file")) != (kind, name, program.path.name):
        raise UserError(f"there is no {kind} {name} in {file}")
    return function


def _loaded(digests: dict[str, str], file: str) -> Program | None:
    """The newest program of this process that has run from these sources."""
    others = digests.items() - {(file, digests[file])}
    for program in reversed(_programs.values()):
        current = program.digests
        if current[program.path.name] == digests[file] and others <= current.items():
            return program
    return None


def _run_named(digests: dict[str, str], file: str, name: str) -> Program:
    """Run the program of a function, if the user has named its file or it came with tlite."""
    reasons = []
    for path in (*_named, shipped_experiments() / os.path.basename(file)):
        if not path.is_file():
            continue
        program = Program(path)
        changed = program.changed(digests, file)
        if changed is None:
            program.run()
            changed = program.changed(digests, file)
            if changed is None:
                return program
        if path in _named and (path.name == file or program.digests[path.name] == digests[file]):
            reasons.append(f"{changed} has changed since the run was made: {path} is not used")
    how = f"--code {shlex.quote(file)} (in Python code={file!r})"
    reasons.append(f"the run uses {name} of {file}: name that file, {how}, if you trust it")
    raise UserError(reasons[0])


def name_of(function: Callable | str) -> str:
    """For people: "exact", or "my_attention of my_file.py"."""
    if isinstance(function, str):
        return function
    module = sys.modules.get(function.__module__)
    file = os.path.basename(getattr(module, "__file__", None) or function.__module__)
    return f"{function.__qualname__} of {file}"


def shipped_experiments() -> Path:
    """The folder of the experiments that come with tlite: in a wheel, or beside the package."""
    inside = PACKAGE / "_shipped" / "experiments"
    return inside if inside.is_dir() else PACKAGE.parent / "experiments"


def _is_installed(path: str | None) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(path or "").parts)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"can't read {path}: {system_reason(error)}") from error


def _reason(error: Exception, path: Path, folder: Path) -> str:
    """What went wrong in a file or in a neighbour of it, with the line."""
    places = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno))
    lines = [
        f"{path.with_name(os.path.basename(name))}, line {line}"
        for name, line in places
        if line and Path(name).parent == folder
    ]
    kind = "" if isinstance(error, UserError) else type(error).__name__
    said = (getattr(error, "msg", None) or str(error)).strip().partition("\n")[0]
    return ": ".join(part for part in (lines[-1] if lines else str(path), kind, said) if part)
