"""The Python files of the user that the command line and a run's config name.

A file and the modules that it imports from its folder are one program. Its files are read and
hashed once, by the import statements in their source; they run from what was read, in a namespace
that no other program shares. A config names a function by the program's file, the function's name
and the SHA-256 of each file of the program. A file runs only if the user names it in this command,
and only if the program is the one that the run was made with.
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
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from tlite.errors import CODE_FILES, UserError, system_reason

PACKAGE = Path(__file__).resolve().parent
PREFIX = "__code_"  # of the names of the modules that run here

_named: list[Path] = []  # the files that may run
_programs: dict[str, "Program"] = {}  # by the first name of their modules
_numbers = itertools.count()  # for these names


class Program(Loader):
    """A Python file with the modules that it imports from its folder or its package.

    Its modules are submodules of a package that is made for it: a second program in the process has
    another `helper`, and an edited one is read again.

    Args:
        path: the file. It is read, and so are the modules that its import statements name.
        module: the file's module if Python has imported it.

    Raises:
        UserError: a file can't be read, or is not Python.
    """

    def __init__(self, path: Path, module: ModuleType | None = None):
        importlib.invalidate_caches()  # a neighbour may be a moment old
        self.path, self.module, folder = path, module, path.resolve().parent
        self.name = module.__name__ if module else f"{PREFIX}{next(_numbers)}__"
        self.spec = getattr(module, "__spec__", None)  # another one after a reload
        root = folder
        while (root / "__init__.py").is_file():
            root = root.parent
        self._package = list(folder.relative_to(root).parts)
        self._folders = list(map(str, dict.fromkeys([folder, root])))
        self._experiments = [str(folder)] if folder.name == "experiments" else []
        self._experiments.append(str(shipped_experiments()))
        self._sources: dict[str, tuple[Path, bytes]] = {}
        try:
            self._read(path, path.name, self._package)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UserError(_reason(error, path)) from error
        if folder != shipped_experiments():
            CODE_FILES[self.digests[path.name]] = path
        if module:
            _programs[self.name] = self

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 by file name: of the file, and of each `helper.py` or `package/helper.py`."""
        return {name: hashlib.sha256(text).hexdigest() for name, (_, text) in self._sources.items()}

    def run(self) -> ModuleType:
        """Run the file in a new module, and return it.

        Raises:
            UserError: it ends in an error; the message names the line.
        """
        file, inner = self.path.resolve(), f"{self.name}.experiments"
        for name, folders in ((self.name, self._folders), (inner, self._experiments)):
            package = sys.modules[name] = ModuleType(name)
            package.__path__ = folders
        parent = ".".join([self.name, *self._package])
        self.module = ModuleType(f"{parent}.{file.stem.replace('.', '_')}")
        self.module.__file__, self.module.__package__ = str(file), parent
        sys.modules[self.module.__name__] = self.module
        _programs[self.name] = self
        try:
            self._execute(self.module, self.path.name)
        except Exception as error:
            del _programs[self.name]
            raise UserError(_reason(error, self.path).replace(f"{self.name}.", "")) from error
        return self.module

    def find(self, name: str) -> Any:
        """The value of a top-level name of the file, or of a module as `helper.name`."""
        parent, _, last = name.rpartition(".")
        module = sys.modules.get(f"{self.name}.{parent}") if parent else self.module
        return vars(module).get(last) if module else None

    def changed(self, digests: dict[str, str], file: str) -> Path | None:
        """The first file that is not as `digests` says, if any.

        Args:
            digests: SHA-256 by file name.
            file: this program's file in it, which may have another name now.
        """
        others = {name: digest for name, digest in digests.items() if name != file}
        expected, current = others | {self.path.name: digests[file]}, self.digests
        for name in current | expected:
            if expected.get(name) != current.get(name):
                return self._sources.get(name, [self.path.parent / name])[0]
        return None

    # Imports

    def _read(self, path: Path, file: str, package: list[str]) -> None:
        """Read a file, and the modules of the program that its import statements name."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"can't read {path}: {system_reason(error)}") from error
        self._sources[file] = path, content
        for node in ast.walk(ast.parse(content, str(path.resolve()))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                level, module = getattr(node, "level", 0), getattr(node, "module", None)
                start = package[: len(package) + 1 - level] if level else []
                start += module.split(".") if module else []
                for alias in node.names:
                    names = [*start, *alias.name.split(".")]
                    if level or self._provides(names[0]):
                        self._read_module(names)

    def _read_module(self, names: list[str]) -> None:
        """Read a module of the program and the packages that it is in."""
        folders = self._folders
        for at, name in enumerate(names, 1):
            if names[:at] == ["experiments"]:
                folders = self._experiments
                continue
            spec = PathFinder.find_spec(name, folders) if folders else None
            if spec is None:
                return
            folders, inner = list(spec.submodule_search_locations or []), names[:at]
            file = "/".join(inner) + ("/__init__.py" if folders else ".py")
            if isinstance(spec.loader, SourceFileLoader) and file not in self._sources:
                self._read(Path(spec.origin), file, inner if folders else inner[:-1])

    def _provides(self, name: str) -> bool:
        """True if `import name` means a module of the program, and not one of a library."""
        if name in sys.stdlib_module_names or name == PACKAGE.name:
            return False
        installed = [path for path in sys.path if _is_installed(path)]
        return name == "experiments" or (
            PathFinder.find_spec(name, installed) is None
            and PathFinder.find_spec(name, self._folders) is not None
        )

    def _import(self, name: str, globals=None, locals=None, fromlist=(), level: int = 0) -> Any:
        """Python's `__import__`, by which the program's modules go before those of others."""
        top = name.partition(".")[0]
        if level or not self._provides(top):
            return builtins.__import__(name, globals, locals, fromlist, level)
        module = builtins.__import__(f"{self.name}.{name}", globals, locals, fromlist, 0)
        return module if fromlist else sys.modules[f"{self.name}.{top}"]

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """A module of a program, for Python's import system."""
        if not name.startswith(PREFIX) or not (program := _programs.get(name.partition(".")[0])):
            return None
        spec = PathFinder.find_spec(name, path)
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = program
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Run an imported module (a method of every loader)."""
        name = module.__name__.partition(".")[2].replace(".", "/")
        file = name + ("/__init__.py" if hasattr(module, "__path__") else ".py")
        if file not in self._sources:
            raise ImportError(f"no import statement of {self.path.name} names {file}")
        self._execute(module, file)

    def _execute(self, module: ModuleType, file: str) -> None:
        path, content = self._sources[file]
        vars(module)["__builtins__"] = vars(builtins) | {"__import__": self._import}
        exec(compile(content, path.resolve(), "exec", dont_inherit=True), vars(module))


sys.meta_path.insert(0, Program)


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
    first = getattr(module, "__name__", "").partition(".")[0]
    library = PACKAGE in file.resolve().parents or _is_installed(str(file))
    library |= first in sys.stdlib_module_names
    if library and file.resolve().parent != shipped_experiments():
        raise UserError(
            f"{name} is a library's function (of {first}), which a run can't record: define a "
            "function in your file that calls it"
        )
    if file.suffix != ".py" or vars(module).get(name) is not function:
        where = f"{file.name or 'a Python file'} under that name"
        raise UserError(f"{name} is not on the top level of {where}: a run can't record it")
    program = _programs.get(first if first.startswith(PREFIX) else module.__name__)
    if program is None or (module is program.module and module.__spec__ is not program.spec):
        program = Program(file, module)  # Python has imported it, or has reloaded it
    kind = "class" if isinstance(function, type) else "function"
    if module is not program.module:
        name = f"{module.__name__.partition('.')[2]}.{name}"
    return {"kind": kind, "file": program.path.name, "name": name, "sha256": program.digests}


def name_files(paths: Iterable[Path]) -> None:
    """Let these files run if a config names a function of theirs.

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
        ValueError: `reference` is not a description of a function.
        UserError: the user has not named its file, a file of the program has changed, or it has no
            such function.
    """
    try:
        kind, file, name, digests = (reference[key] for key in ("kind", "file", "name", "sha256"))
        if {type(text) for text in (kind, file, name, digests[file], *digests.values())} != {str}:
            raise TypeError
    except (TypeError, KeyError, AttributeError) as error:
        text = f"expected a function's file, name and SHA-256, not {reference!r:.80}"
        raise ValueError(text) from error
    programs = (p for p in reversed(_programs.values()) if callable(p.find(name)))
    loaded = next((p for p in programs if p.changed(digests, file) is None), None)
    program = loaded or _run_named(digests, file, name)
    function = program.find(name)
    expected = {"kind": kind, "name": name, "file": program.path.name, "sha256": program.digests}
    if not callable(function) or describe_code(function) != expected:
        raise UserError(f"there is no {kind} {name} in {file}")
    return function


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
            return program
        if path in _named and (path.name == file or program.digests[path.name] == digests[file]):
            reasons.append(
                f"{changed} has changed since the run was made: restore it to open the run"
            )
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


def _reason(error: Exception, path: Path) -> str:
    """The error of a file or of a neighbour of it, with the line."""
    frames = traceback.walk_tb(error.__traceback__)
    positions = [(frame.f_code.co_filename, line) for frame, line in frames]
    if isinstance(error, SyntaxError):
        positions.append((error.filename or "", error.lineno))
    lines = [
        f"{path.with_name(os.path.basename(name))}, line {line}"
        for name, line in positions
        if line and Path(name).parent == path.resolve().parent
    ]
    kind = "" if isinstance(error, UserError) else type(error).__name__
    message = (getattr(error, "msg", None) or str(error)).strip().partition("\n")[0]
    return ": ".join(text for text in (lines[-1] if lines else str(path), kind, message) if text)
