"""Which names of torch our own code uses, and with which arguments, read from its source.

A use is *guarded* where the code itself finds out whether the name is there: ``getattr`` with a default, ``hasattr``,
an ``except ImportError`` or ``AttributeError``, ``wrapping.wrap`` (which says what it misses), or a function of
`ddpdoctor.facts.versions`. Objects of torch are followed through assignments, annotations, ``sys.modules[…]`` and
arguments of our own functions; what patches a module (``finder.TARGETS``) is given that module.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

CATCHING = {"ImportError", "ModuleNotFoundError", "AttributeError"}
PROBING = ("ddpdoctor.facts.versions", "ddpdoctor_watch.versions")
IN_TEXT = re.compile(r"(?<![\w./])torch(?:\.[A-Za-z_]\w*)+(?!\w*\.html)(?![*/])")
VERSION = re.compile(r"\b2\.\d+\b")


@dataclass(frozen=True, order=True)
class Use:
    """One use of a name."""

    name: str
    """From ``torch`` on."""
    file: str
    line: int
    guarded: bool = False
    keyword: str = ""
    """Handed over in a call of it."""
    places: int = 0
    """Arguments that are handed over by position."""
    probed: tuple[str, ...] = ()
    """Names found by probing on the way: where one is missing, this code does not run."""


@dataclass
class Program:
    """Our modules, and what is known of the arguments of their functions."""

    modules: dict[str, ast.Module] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    given: dict[tuple[str, str, str], str | None] = field(default_factory=dict)
    """Module, function and argument: what of torch it is; None where calls differ."""
    stale: set[str] = field(default_factory=set)
    """Modules of which more is known than when they were read."""
    calls: dict[ast.FunctionDef, list[ast.Call]] = field(default_factory=dict)

    def give(self, module: str, function: str, argument: str, path: str) -> None:
        """Note what of torch an argument is given."""
        key = (module, function, argument)
        if key not in self.given or self.given[key] not in (path, None):
            self.given[key] = None if key in self.given else path
            self.stale.add(module)

    def list_calls(self, function: ast.FunctionDef) -> list[ast.Call]:
        """Return the calls in a function, also those of functions in it."""
        if function not in self.calls:
            self.calls[function] = [each for each in ast.walk(function) if isinstance(each, ast.Call)]
        return self.calls[function]

    def find(self, module: str, name: str) -> ast.FunctionDef | ast.ClassDef | None:
        """Return a function or class of a module of ours."""
        body = self.modules[module].body if module in self.modules else []
        kinds = (ast.FunctionDef, ast.ClassDef)
        return next((each for each in body if isinstance(each, kinds) and each.name == name), None)


def list_uses(root: Path, folders: Iterable[str]) -> list[Use]:
    """Return what the Python files below some folders use of torch, each use once."""
    program = Program()
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            add_module(program, str(path.relative_to(root)), path.read_text())
    return read_program(program)


def add_module(program: Program, file: str, text: str) -> None:
    """Take a file into a program, where it says anything of torch."""
    if "torch" not in text and "ddpdoctor_watch" not in file:
        return
    name = file.removesuffix(".py").removesuffix("/__init__").removeprefix("checks/").replace("/", ".")
    name = name.rpartition("src.")[2]
    name = name.replace("ddpdoctor.watch.inject.ddpdoctor_watch", "ddpdoctor_watch")
    try:
        program.modules[name] = ast.parse(text)
    except SyntaxError:  # a demo that does not parse
        return
    program.files[name] = file


def read_program(program: Program) -> list[Use]:
    """Return what a program uses of torch."""
    _give_targets(program)
    program.stale = set(program.modules)
    found: dict[str, set[Use]] = {}
    while program.stale:
        name = program.stale.pop()
        if name in program.modules:
            reader = _Reader(program, name)
            reader.run()
            found[name] = set(reader.uses)
    return sorted(set().union(*found.values()))


def list_words(file: str, text: str) -> Iterator[Use]:
    """Yield names of torch that a page names; those beside which a version is named count as guarded."""
    for number, line in enumerate(text.splitlines(), 1):
        for match in IN_TEXT.finditer(line):
            if match.group().endswith("_"):  # the beginning of several
                continue
            yield Use(match.group(), file, number, guarded=VERSION.search(line) is not None)


def _give_targets(program: Program) -> None:
    for module in program.modules.values():
        for node in module.body:
            if not (isinstance(node, ast.Assign) and _dotted(node.targets[0]) == "TARGETS"):
                continue
            for patched, function in ast.literal_eval(node.value).items():
                if patched.startswith("torch"):
                    program.give("ddpdoctor_watch.torchpatches", function, "module", patched)


class _Reader(ast.NodeVisitor):
    """Reads one module, function by function."""

    def __init__(self, program: Program, name: str) -> None:
        self.program, self.name, self.file = program, name, program.files[name]
        self.uses: list[Use] = []
        self.scopes: list[dict[str, str | None]] = [{}]
        self.ours: dict[str, tuple[str, str | None]] = {}
        """Names that mean a module of ours, or something in one."""
        self.strings: dict[str, list[str]] = {}
        self.guards: list[frozenset[str]] = [frozenset()]
        """Names that the functions around have asked for."""
        self.tested: set[str] = set()
        """Those of them that `hasattr` asks for."""
        self.catching = 0
        self.classes: list[str | None] = []
        """What of torch the classes around are made of."""
        self.texts: list[tuple[int, str]] = []

    def run(self) -> None:
        tree = self.program.modules[self.name]
        for node in tree.body:
            text = _string(node.value) if isinstance(node, ast.Assign) else None
            if text and "\n" in text:
                self.texts.append((node.lineno, text))
            if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Tuple, ast.List)):
                self._take_strings(_dotted(node.targets[0]), node.value)
        self.visit(tree)

    # What names mean.

    def path_of(self, node: ast.AST | None) -> str | None:
        """Return what of torch an expression is."""
        if isinstance(node, ast.Name):
            return next((scope[node.id] for scope in reversed(self.scopes) if node.id in scope), None)
        if isinstance(node, ast.Attribute):
            base = self.path_of(node.value)
            if base is None and _is_super(node.value) and self.classes and self.classes[-1]:
                base = self.classes[-1]
            return f"{base}.{node.attr}" if base else None
        if isinstance(node, ast.Subscript) and _dotted(node.value) == "sys.modules":
            return _torch_string(node.slice)
        if isinstance(node, ast.Call):
            called = _dotted(node.func)
            if called == "sys.modules.get" and node.args:
                return _torch_string(node.args[0])
            if called == "getattr" and len(node.args) > 1:
                base, name = self.path_of(node.args[0]), _string(node.args[1])
                return f"{base}.{name}" if base and name else None
        if isinstance(node, ast.BoolOp):
            return self.path_of(node.values[0])
        return None

    def _made_by(self, node: ast.AST | None) -> str | None:
        """Return the class of torch that an expression or an annotation is an object of."""
        path = self.path_of(node.func if isinstance(node, ast.Call) else node)
        return path if path and path.rpartition(".")[2][:1].isupper() else None

    def _bind(self, target: ast.AST, path: str | None) -> None:
        if isinstance(target, ast.Name):
            self.scopes[-1][target.id] = path
        elif isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                self._bind(each, None)

    def _note(
        self, name: str, node: ast.AST, guarded: bool = False, *, keyword: str = "", places: int = 0
    ) -> None:
        name = name.split(".__")[0]  # of each function, class or module
        known = frozenset().union(*self.guards)
        probed = tuple(
            sorted(
                each
                for each in known
                if f"{name}.".startswith(f"{each}.")
                # What stands behind `hasattr` may need more than that name of the same owner.
                or (each in self.tested and name.startswith(each.rpartition(".")[0] + "."))
            )
        )
        line = getattr(node, "lineno", 0)
        guarded = guarded or bool(self.catching) or name in known
        self.uses.append(Use(name, self.file, line, guarded, keyword, places, probed))

    # Statements.

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] == "torch":
                self._note(alias.name, node)
                self.scopes[-1][alias.asname or "torch"] = alias.name if alias.asname else "torch"
            elif alias.asname:
                self.ours[alias.asname] = (alias.name, None)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        where = node.module or ""
        if node.level:
            package = self.name if self.file.endswith("__init__.py") else self.name.rpartition(".")[0]
            where = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], where]).strip(
                "."
            )
        for alias in node.names:
            name = alias.asname or alias.name
            if where.split(".")[0] == "torch":
                self._note(f"{where}.{alias.name}", node)
                self.scopes[-1][name] = f"{where}.{alias.name}"
            else:
                module = f"{where}.{alias.name}"
                known = module in self.program.modules or module in PROBING
                self.ours[name] = (module, None) if known else (where, alias.name)

    def visit_If(self, node: ast.If) -> None:
        if _dotted(node.test) == "TYPE_CHECKING":
            before = len(self.uses)
            for each in node.body:
                self.visit(each)
            del self.uses[before:]  # nothing of it runs, but annotations mean it
            for each in node.orelse:
                self.visit(each)
            return
        self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> None:
        caught = {
            word
            for each in node.handlers
            for word in re.findall(r"\w+", ast.unparse(each.type) if each.type else "")
        }
        self.catching += bool(caught & CATCHING)
        for statement in node.body:
            self.visit(statement)
        self.catching -= bool(caught & CATCHING)
        for part in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(part)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        bases = [path for path in map(self.path_of, node.bases) if path]
        self.classes.append(bases[0] if bases else None)
        self.scopes.append({})
        self.generic_visit(node)
        self.scopes.pop()
        self.classes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for each in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults, node.returns):
            if each is not None:
                self.visit(each)
        scope: dict[str, str | None] = {}
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            if argument.annotation is not None:
                self.visit(argument.annotation)
            given = self.program.given.get((self.name, node.name, argument.arg))
            scope[argument.arg] = given or self._made_by(argument.annotation)
        for rest in (node.args.vararg, node.args.kwarg):
            if rest is not None:
                scope[rest.arg] = None
        self.scopes.append(scope)
        for again in (True, False) if len(self.guards) == 1 else (False,):
            # Once more with what the first time has bound.
            before = len(self.uses)
            self.guards.append(frozenset(self._list_asked(node)))
            for statement in node.body:
                self.visit(statement)
            self.guards.pop()
            if again:
                del self.uses[before:]
        if any(_dotted(each.func) == "exec" for each in self.program.list_calls(node)):
            self._read_texts(node)
        self.scopes.pop()

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.scopes.append({each.arg: None for each in node.args.args})
        self.generic_visit(node)
        self.scopes.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        if isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple):
            for target, value in zip(node.targets[0].elts, node.value.elts, strict=False):
                self._bind(target, self.path_of(value))
            return
        for target in node.targets:
            if isinstance(target, (ast.Attribute, ast.Subscript)):
                self.visit(target.value)
            self._bind(target, self.path_of(node.value) or self._made_by(node.value))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.annotation)
        if node.value is not None:
            self.visit(node.value)
        self._bind(
            node.target,
            self.path_of(node.value) or self._made_by(node.value) or self._made_by(node.annotation),
        )

    def visit_For(self, node: ast.For) -> None:
        self._bind(node.target, None)
        self._take_strings(_dotted(node.target), node.iter)
        if isinstance(node.iter, ast.Name) and node.iter.id in self.strings:
            self.strings[_dotted(node.target)] = self.strings[node.iter.id]
        self.generic_visit(node)

    def _take_strings(self, name: str, node: ast.AST) -> None:
        if isinstance(node, (ast.Tuple, ast.List)):
            found = [_string(each) for each in node.elts]
            if found and all(found):
                self.strings[name] = [each for each in found if each]

    # Expressions.

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self.path_of(node)
        if path is None:
            self.generic_visit(node)
        elif isinstance(node.ctx, ast.Load):
            self._note(path, node)

    def visit_Name(self, node: ast.Name) -> None:
        """A name was noted where it was imported."""

    def visit_Call(self, node: ast.Call) -> None:
        name = _dotted(node.func)
        if name in ("getattr", "hasattr") and len(node.args) > 1:
            self._note_asked(
                node, node.args[0], node.args[1], guarded=name == "hasattr" or len(node.args) > 2
            )
        else:
            self._visit_call(node)
        self.generic_visit(node)

    def _visit_call(self, node: ast.Call) -> None:
        path = self.path_of(node.func)
        if path is not None:
            self._note_arguments(node, path)
            return
        module, function = self._find_ours(node.func)
        if module is None or function is None:
            return
        if module in PROBING:
            return self._note_probed(node)
        made = self.program.find(module, function)
        if isinstance(made, ast.ClassDef):
            return self._note_subclass(node, module, made)
        if made is None:
            return
        names = [each.arg for each in (*made.args.posonlyargs, *made.args.args)]
        pairs = [*zip(names, node.args, strict=False), *((each.arg, each.value) for each in node.keywords)]
        for argument, value in pairs:
            given = self.path_of(value)
            if given and argument:
                self.program.give(module, function, argument, given)
        values = {argument: value for argument, value in pairs if argument}
        for owner, asked, guarded in self._list_lookups(made):
            if owner in values and asked in values:
                self._note_asked(node, values[owner], values[asked], guarded)

    def _note_arguments(self, node: ast.Call, path: str) -> None:
        places = 0 if any(isinstance(each, ast.Starred) for each in node.args) else len(node.args)
        if places:
            self._note(path, node, places=places)
        for each in node.keywords:
            if each.arg:
                self._note(path, node, keyword=each.arg)

    def _note_subclass(self, node: ast.Call, module: str, made: ast.ClassDef) -> None:
        """Note what a class of ours hands on to the class of torch that it is made of."""
        reader = self if module == self.name else None
        base = next((path for path in map(self.path_of, made.bases) if path), None) if reader else None
        if base is None:
            return
        maker = next((e for e in made.body if isinstance(e, ast.FunctionDef) and e.name == "__init__"), None)
        own = set()
        if maker is not None:
            if maker.args.kwarg is None:
                return
            own = {each.arg for each in (*maker.args.args, *maker.args.kwonlyargs)}
        for each in node.keywords:
            if each.arg and each.arg not in own:
                self._note(base, node, keyword=each.arg)

    def _note_probed(self, node: ast.Call) -> None:
        path = self.path_of(node.args[0]) if node.args else None
        asked = [each.arg for each in node.keywords] + [_string(each) for each in node.args[1:]]
        for each in asked:
            if path and each:
                self._note(path, node, guarded=True, keyword=each)

    def _note_asked(self, node: ast.AST, owner: ast.AST, name: ast.AST, guarded: bool) -> None:
        base = self.path_of(owner)
        named = _string(name)
        names = [named] if named else self.strings.get(_dotted(name), [])
        for each in names if base else []:
            self._note(f"{base}.{each}", node, guarded)

    def _list_asked(self, function: ast.FunctionDef) -> Iterator[str]:
        """Yield the names of torch that a function finds out about."""
        for node in self.program.list_calls(function):
            name = _dotted(node.func)
            if name == "sys.modules.get":
                path = self.path_of(node)
                if path:
                    yield path
            elif (name == "hasattr" and len(node.args) == 2) or (name == "getattr" and len(node.args) == 3):
                base, asked = self.path_of(node.args[0]), _string(node.args[1])
                if base and asked:
                    yield f"{base}.{asked}"
                    if name == "hasattr":
                        self.tested.add(f"{base}.{asked}")

    def _list_lookups(self, function: ast.FunctionDef) -> Iterator[tuple[str, str, bool]]:
        """Yield arguments of which one is looked up in the other, and whether by probing."""
        for node in self.program.list_calls(function):
            if _dotted(node.func) == "getattr":
                owner, name = node.args[:2]
                if isinstance(owner, ast.Name) and isinstance(name, ast.Name):
                    yield owner.id, name.id, len(node.args) > 2

    def _find_ours(self, node: ast.AST) -> tuple[str | None, str | None]:
        if isinstance(node, ast.Name):
            if node.id in self.ours:
                return self.ours[node.id]
            return (self.name, node.id) if self.program.find(self.name, node.id) else (None, None)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module, name = self.ours.get(node.value.id, (None, None))
            return (module, node.attr) if module and name is None else (None, None)
        return None, None

    # Source that is executed.

    def _read_texts(self, function: ast.FunctionDef) -> None:
        """Read the texts of a module whose function executes one of them: their names mean what they mean there."""
        chosen = any(self._find_ours(each.func)[0] in PROBING for each in self.program.list_calls(function))
        for line, text in self.texts:
            try:
                tree = ast.parse(text)
            except SyntaxError:
                continue
            before = len(self.uses)
            self.catching += chosen
            self.visit(tree)
            self.catching -= chosen
            moved = [dataclasses.replace(use, line=use.line + line - 1) for use in self.uses[before:]]
            self.uses[before:] = moved


def _is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _dotted(node.func) == "super"


def _dotted(node: ast.AST) -> str:
    """Return a name, or names with dots between; nothing for other expressions."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _string(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _torch_string(node: ast.AST) -> str | None:
    text = _string(node) or ""
    return text if text.split(".")[0] == "torch" else None
