"""Is an answer what the prompt asked for: the edit made, the quotation verbatim, no loop.

What is to be checked stands beside the prompt in ``NAME.check.yaml``; a prompt without one is only searched for loops.

Code (``kind: code``) is compared as syntax trees, statement by statement: the answer must be the prompt's file with
the asked edit and nothing else. Comments and formatting do not count.

======================  ==============================================================================================
``rename``              ``{old, new}``: every word ``old`` of the file becomes ``new``, in text and comments too
``replace``             ``{old fragment: new fragment}``: applied to the file's source
``docstrings``          ``all`` or names: these functions have a docstring; docstrings are not compared otherwise
``annotated``           ``all`` or names: these functions are fully annotated; annotations are not compared otherwise
``argument``            list of ``{function, name, default, passed_to: [callees]}``: the new parameter, which every call
                        of these callees inside the function is given
``added``               names new at module level (``LedgerError``, ``import logging``, ``from math import pi``)
``changed``             names whose statement may differ in any way (``main``, ``Ledger.deposit``)
``contains, absent``    fragments that the answer has or has not, in the spelling of ``ast.unparse``
======================  ==============================================================================================

Quotations (``kind: quote``): every line of the answer, else every sentence of the line, occurs in the prompt between
``<passage>`` and ``</passage>``. ``must_quote`` and ``must_not_quote`` list phrases of the passage.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from samebytes import strictyaml
from samebytes.errors import UsageError, invalid, unknown
from samebytes.workloads import CHECK_SUFFIX, Prompt

LOOP_REPEATS = 4
"""An answer loops when it ends in the same characters this many times in a row ..."""

LOOP_CHARACTERS = 96
"""... over at least this many characters, so that ``ha ha ha ha`` or a ruled line is none."""

Text = Annotated[str, Field(min_length=1)]
Identifier = Annotated[str, Field(pattern=r"^[^\W\d]\w*$")]
All = Literal["all"] | Annotated[list[Text], Field(min_length=1)]


class _Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Rename(_Declared):
    """Every word ``old`` becomes ``new``."""

    old: Identifier
    new: Identifier


class Argument(_Declared):
    """A new parameter of one function, handed on to the calls it makes."""

    function: Text
    name: Identifier
    default: str | int | float | bool | None
    passed_to: list[Text] = Field(default_factory=list)


class CodeCheck(_Declared):
    """How the answer to a code prompt is checked; see the module's table."""

    kind: Literal["code"]
    rename: Rename | None = None
    replace: dict[Text, str] = Field(default_factory=dict)
    docstrings: All | None = None
    annotated: All | None = None
    argument: list[Argument] = Field(default_factory=list)
    added: list[Text] = Field(default_factory=list)
    changed: list[Text] = Field(default_factory=list)
    contains: list[Text] = Field(default_factory=list)
    absent: list[Text] = Field(default_factory=list)


class QuoteCheck(_Declared):
    """How the answer to a question over a passage is checked."""

    kind: Literal["quote"]
    must_quote: Annotated[list[Text], Field(min_length=1)]
    must_not_quote: list[Text] = Field(default_factory=list)


Check = CodeCheck | QuoteCheck

_KINDS: dict[str, type[CodeCheck] | type[QuoteCheck]] = {"code": CodeCheck, "quote": QuoteCheck}

Quotation = Literal["verbatim", "verbatim after whitespace", "not verbatim"]


@dataclass(frozen=True)
class Loop:
    """The repetition that an answer ends in.

    Attributes
    ----------
    period : int
        Characters of the part that repeats.
    repeats : float
        How often it stands there; the last one may be cut.
    start : int
        Character index at which the repetition begins.
    """

    period: int
    repeats: float
    start: int


@dataclass(frozen=True)
class Validity:
    """What is known about one answer.

    Attributes
    ----------
    status : str
        ``"valid"``, ``"invalid"``, or ``"unchecked"`` where the prompt declares no check.
    reasons : tuple of str
        Why it is invalid; empty otherwise.
    notes : tuple of str
        What is worth telling but does not make it invalid (text around the code, cut off at max_tokens).
    finish_reason : str or None
        As the server gave it.
    loop : Loop or None
        The repetition that the answer ends in. It does not decide the status: it is reported for every answer.
    quotation : str or None
        For quotations the weakest class of any part of the answer.
    verbatim_share : float or None
        For quotations the share of the answer's characters in parts that occur in the passage, whitespace aside.
    """

    status: Literal["valid", "invalid", "unchecked"]
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    finish_reason: str | None = None
    loop: Loop | None = None
    quotation: Quotation | None = None
    verbatim_share: float | None = None

    @property
    def loops(self) -> bool:
        """Whether the answer ends in a loop."""
        return self.loop is not None


def check(prompt: Prompt, declared: Check | None, text: str, finish_reason: str | None) -> Validity:
    """Judge one answer.

    Parameters
    ----------
    prompt : Prompt
        What was asked; the original file or the passage is taken from its text.
    declared : CodeCheck or QuoteCheck or None
        The prompt's check (`load_check`).
    text : str
        The answer, without reasoning text.
    finish_reason : str or None
        ``"stop"``, ``"length"`` or whatever the server gave.

    Raises
    ------
    UsageError
        Where prompt and check do not fit each other (no code in the prompt, a fragment that it does not hold).
    """
    reasons: list[str] = []
    notes: list[str] = ["cut off at max_tokens"] if finish_reason == "length" else []
    quotation: Quotation | None = None
    share: float | None = None
    if isinstance(declared, CodeCheck):
        _check_code(prompt, declared, text, reasons, notes)
    elif isinstance(declared, QuoteCheck):
        quotation, share = _check_quote(prompt, declared, text, reasons)
    status: Literal["valid", "invalid", "unchecked"] = "invalid" if reasons else "valid"
    return Validity(
        status="unchecked" if declared is None else status,
        reasons=tuple(reasons),
        notes=tuple(notes),
        finish_reason=finish_reason,
        loop=find_loop(text),
        quotation=quotation,
        verbatim_share=share,
    )


def load_check(folder: Path, prompt_id: str) -> Check | None:
    """Read the check beside a prompt; None where the prompt has none.

    Parameters
    ----------
    folder : Path
        Folder that holds a folder per workload.
    prompt_id : str
        ``"code_edit/rename-function-graph"``.

    Raises
    ------
    UsageError
        Where the file is not YAML or not a check; an unknown key is named with the valid ones.
    """
    path = folder / f"{prompt_id}{CHECK_SUFFIX}"
    try:
        data = strictyaml.load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {error}") from None
    if not isinstance(data, dict) or "kind" not in data:
        raise UsageError(f"{path} needs a key 'kind'. Valid: {', '.join(sorted(_KINDS))}")
    kind = data["kind"]
    if not isinstance(kind, str) or kind not in _KINDS:
        raise unknown(f"kind in {path}", kind, _KINDS)
    try:
        return _KINDS[kind].model_validate(data)
    except ValidationError as error:
        own = _KINDS[kind].model_fields
        valid = {"": own, "rename": Rename.model_fields, "argument": Argument.model_fields}
        raise UsageError(f"{path}: {invalid(error, valid)}") from None


def refuse_wrong(folder: Path, prompts: Iterable[Prompt]) -> None:
    """Read the check beside each prompt and hold it to the prompt: what no answer could be judged by is refused now.

    Raises
    ------
    UsageError
        As `load_check` and `check`.
    """
    for prompt in prompts:
        check(prompt, load_check(folder, prompt.id), "", None)


def find_loop(text: str) -> Loop | None:
    """Return the repetition that ``text`` ends in, or None.

    A loop is a suffix of at least `LOOP_CHARACTERS` characters that repeats one piece at least `LOOP_REPEATS` times.
    Whitespace and a closing fence at the very end may follow it. Repetitions with a running number, and those that the
    model left again, are not found.
    """
    body = text.rstrip()
    head, _, last = body.rpartition("\n")
    if last and not last.strip("`~"):
        body = head.rstrip()
    return _repeated_suffix(text) or _repeated_suffix(body)


def _repeated_suffix(text: str) -> Loop | None:
    """Return the longest suffix that is a loop.

    The smallest period of a string of n characters is n - pi(n), with pi the prefix function of Knuth, Morris and
    Pratt (1977); over the reversed text this gives the period of every suffix in linear time.
    """
    reverse = text[::-1]
    border = [0] * len(reverse)
    found: Loop | None = None
    for index in range(1, len(reverse)):
        length = border[index - 1]
        while length and reverse[index] != reverse[length]:
            length = border[length - 1]
        border[index] = length + (reverse[index] == reverse[length])
        size = index + 1
        period = size - border[index]
        if size >= LOOP_CHARACTERS and size >= LOOP_REPEATS * period:
            found = Loop(period, size / period, len(text) - size)
    return found


_NO_FENCE = "no fenced block"


def extract_code(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the code of an answer and notes on how it was wrapped.

    The first fenced block counts; a block that is never closed goes to the end; without a fence all of it is code.
    """
    lines = text.splitlines(keepends=True)
    opening = next((n for n, line in enumerate(lines) if re.match(r" {0,3}(`{3,}[^`]*|~{3,}.*)$", line)), None)
    if opening is None:
        return text, (_NO_FENCE,)
    mark = lines[opening].strip()
    fence = mark[: len(mark) - len(mark.lstrip(mark[0]))]
    closing = next(
        (n for n in range(opening + 1, len(lines)) if re.fullmatch(rf" {{0,3}}{fence}{fence[0]}*\s*", lines[n])), None
    )
    around = "".join(lines[:opening]) + ("" if closing is None else "".join(lines[closing + 1 :]))
    notes = ["the fenced block is not closed"] if closing is None else []
    if around.strip():
        notes.append("text around the fenced block")
    return "".join(lines[opening + 1 : closing]), tuple(notes)


# --- code -----------------------------------------------------------------------------------------------------------

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _check_code(prompt: Prompt, declared: CodeCheck, text: str, reasons: list[str], notes: list[str]) -> None:
    original, wrapping = extract_code(prompt.text)
    if _NO_FENCE in wrapping:
        raise UsageError(f"{prompt.id}: a code check needs a fenced block in the prompt")
    code, wrapping = extract_code(text)
    notes.extend(wrapping)
    try:
        want = ast.parse(_edited(prompt.id, original, declared))
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{prompt.id}: a code check needs Python code in the prompt, also as asked: {error}") from None
    try:
        reasons.extend(_code_reasons(want, code, declared))
    except RecursionError:  # an answer that loops inside one expression
        reasons.append("the code nests too deeply to compare")


def _code_reasons(want: ast.Module, code: str, declared: CodeCheck) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SyntaxWarning: an invalid escape is the answer's own affair
            got = ast.parse(code)
    except (SyntaxError, ValueError, MemoryError) as error:  # ValueError: a null character; MemoryError: nesting
        place = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
        yield f"the code does not parse: {error.args[0] if error.args else 'nested too deeply'}{place}"
        return
    functions = {name: node for name, node in _definitions(got) if isinstance(node, Function)}
    if declared.rename is not None:
        yield from _left_over(code, declared.rename)
    yield from _undocumented(functions, declared.docstrings)
    yield from _unannotated(functions, declared.annotated)
    spelled = ast.unparse(got)
    yield from (f"{piece!r} is missing" for piece in declared.contains if piece not in spelled)
    yield from (f"{piece!r} is still there" for piece in declared.absent if piece in spelled)
    # What was asked and looked at above is taken out of the answer; all else must be equal.
    for argument in declared.argument:
        yield from _take_argument(functions, argument)
    for tree in (want, got):
        if declared.docstrings is not None:
            _strip_docstrings(tree)
        if declared.annotated is not None:
            _strip_annotations(tree)
    yield from _differences(_units(want), _units(got), declared)


def _edited(prompt_id: str, source: str, declared: CodeCheck) -> str:
    """Return the original with ``replace`` and ``rename`` applied."""
    for old, new in declared.replace.items():
        if old not in source:
            raise UsageError(f"{prompt_id}: its check replaces {old!r}, which the prompt's code does not hold")
        source = source.replace(old, new)
    if declared.rename is not None:
        old = declared.rename.old
        source, count = re.subn(rf"\b{old}\b", declared.rename.new, source)
        if not count:
            raise UsageError(f"{prompt_id}: its check renames {old!r}, which the prompt's code does not hold")
    return source


def _left_over(code: str, rename: Rename) -> Iterator[str]:
    for number, line in enumerate(code.splitlines(), 1):
        if re.search(rf"\b{rename.old}\b", line):
            yield f"{rename.old!r} is left on line {number}: {line.strip()}"


def _definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Yield every function and class with its qualified name, nested ones too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function | ast.ClassDef):
            yield prefix + node.name, node
            yield from _definitions(node, f"{prefix}{node.name}.")
        else:
            yield from _definitions(node, prefix)


def _asked(functions: dict[str, Function], names: All | None) -> Iterator[tuple[str, Function]]:
    """Yield the functions of a declaration that exist; a missing one is told by the comparison."""
    for name in functions if names == "all" else names or ():
        if name in functions:
            yield name, functions[name]


def _undocumented(functions: dict[str, Function], names: All | None) -> Iterator[str]:
    for name, function in _asked(functions, names):
        if not (ast.get_docstring(function) or "").strip():
            yield f"{name} has no docstring"


def _parameters(function: Function) -> list[ast.arg]:
    given = function.args
    rest = [arg for arg in (given.vararg, given.kwarg) if arg is not None]
    return [*given.posonlyargs, *given.args, *given.kwonlyargs, *rest]


def _unannotated(functions: dict[str, Function], names: All | None) -> Iterator[str]:
    for name, function in _asked(functions, names):
        for arg in _parameters(function):
            if arg.annotation is None and arg.arg not in ("self", "cls"):
                yield f"{name}: parameter {arg.arg!r} has no annotation"
        if function.returns is None:
            yield f"{name}: the return value has no annotation"


def _take_argument(functions: dict[str, Function], asked: Argument) -> Iterator[str]:
    """Check one new parameter and remove it, and its being passed on, from the tree."""
    function = functions.get(asked.function)
    if function is None:
        return
    given = function.args
    plain = given.posonlyargs + given.args
    position = next((n for n, arg in enumerate(plain) if arg.arg == asked.name), None)
    keyword = next((n for n, arg in enumerate(given.kwonlyargs) if arg.arg == asked.name), None)
    default: ast.expr | None = None
    if position is not None:
        place = position - len(plain) + len(given.defaults)
        if place >= 0:
            default = given.defaults.pop(place)
        (given.args if position >= len(given.posonlyargs) else given.posonlyargs).remove(plain[position])
    elif keyword is not None:
        default = given.kw_defaults.pop(keyword)
        given.kwonlyargs.pop(keyword)
    else:
        yield f"{asked.function} has no parameter {asked.name!r}"
        return
    if default is None or ast.unparse(default) != repr(asked.default):
        yield f"{asked.function}: the default of {asked.name!r} is not {asked.default!r}"
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in asked.passed_to:
            keywords = [word for word in call.keywords if not _is_name(word.value, asked.name)]
            args = [arg for arg in call.args if not _is_name(arg, asked.name)]
            if len(keywords) + len(args) == len(call.keywords) + len(call.args):
                yield f"{asked.function} does not pass {asked.name!r} on to {ast.unparse(call.func)}"
            call.keywords, call.args = keywords, args


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _strip_docstrings(tree: ast.Module) -> None:
    for node in [tree, *(node for _, node in _definitions(tree))]:
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
            if not node.body and not isinstance(node, ast.Module):
                node.body = [ast.Pass()]


class _Unannotate(ast.NodeTransformer):
    """Turn ``name: T = value`` into ``name = value``, and a bare ``name: T`` into ``name``."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is None:
            return ast.copy_location(ast.Expr(node.target), node)
        return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)


def _strip_annotations(tree: ast.Module) -> None:
    for _, node in _definitions(tree):
        if isinstance(node, Function):
            node.returns = None
            for arg in _parameters(node):
                arg.annotation = None
    _Unannotate().visit(tree)


def _units(tree: ast.Module) -> dict[str, str]:
    """Return the module's statements by name, each in ``ast.unparse``'s spelling.

    A method is a unit of its own (``Class.method``); what is left of its class is another.
    """
    units: dict[str, str] = {}

    def add(name: str, node: ast.AST) -> None:
        while name in units:
            name += "'"  # the second assignment to a name
        units[name] = ast.unparse(node)

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                inner = [part for part in node.body if isinstance(part, Function | ast.ClassDef)]
                rest = [part for part in node.body if part not in inner]
                node.body = rest or [ast.Pass()]
                add(prefix + node.name, node)
                visit(list(inner), f"{prefix}{node.name}.")
            elif isinstance(node, Function):
                add(prefix + node.name, node)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    add(f"import {alias.name}", ast.Import([alias]))
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    module = "." * node.level + (node.module or "")
                    add(f"from {module} import {alias.name}", ast.ImportFrom(node.module, [alias], node.level))
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                add(node.targets[0].id, node)
            elif (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                add("the module's docstring", node)
            else:
                add(ast.unparse(node).splitlines()[0][:60], node)

    visit(tree.body, "")
    return units


def _differences(want: dict[str, str], got: dict[str, str], declared: CodeCheck) -> Iterator[str]:
    """Yield what keeps the answer from being the expected file."""
    for name, spelled in want.items():
        if name not in got:
            yield f"{name} is missing"
        elif got[name] != spelled and name not in declared.changed:
            yield f"{name} is not as asked: {_first_difference(spelled, got[name])}"
    for name in declared.added:
        if name not in got:
            yield f"{name} was not added"
    for name in got:
        if name not in want and not _may_be_added(name, declared):
            yield f"{name} was added"
    order = [name for name in got if name in want]
    if order != [name for name in want if name in got]:
        yield "the order of the statements was changed"


def _may_be_added(name: str, declared: CodeCheck) -> bool:
    if declared.annotated is not None and re.match(r"(import|from) (typing|collections\.abc|__future__)\b", name):
        return True
    return any(name == added or name.startswith(f"{added}.") for added in declared.added)


def _first_difference(want: str, got: str) -> str:
    pairs = zip_longest(want.splitlines(), got.splitlines(), fillvalue="nothing")
    wanted, found = next(pair for pair in pairs if pair[0] != pair[1])
    return f"expected {wanted.strip()!r}, found {found.strip()!r}"


# --- quotations -----------------------------------------------------------------------------------------------------

_PASSAGE = re.compile(r"^<passage>\n(.*?)\n</passage>$", re.DOTALL | re.MULTILINE)
_BULLET = re.compile(r"^\s*(?:>\s*)*(?:[-*\u2022\u2013\u2014]\s+|\(?\d{1,2}[.)]\s+)?")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"'\u201d\u2019]?\s+")
_QUOTES = "\"'\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb"


def passage(prompt: Prompt) -> str:
    """Return the passage of a prompt: the lines between ``<passage>`` and ``</passage>``.

    Raises
    ------
    UsageError
        Where there is none.
    """
    match = _PASSAGE.search(prompt.text)
    if match is None:
        raise UsageError(f"{prompt.id}: a quote check needs lines <passage> and </passage> in the prompt")
    return match.group(1)


def _check_quote(
    prompt: Prompt, declared: QuoteCheck, text: str, reasons: list[str]
) -> tuple[Quotation | None, float | None]:
    source = passage(prompt)
    flat_source, flat_text = _flat(source), _flat(text)
    for phrase in (*declared.must_quote, *declared.must_not_quote):
        if _flat(phrase) not in flat_source:
            raise UsageError(f"{prompt.id}: its check names {phrase!r}, which the passage does not hold")
    parts = list(_parts(text, source, flat_source))
    if not parts:
        reasons.append("the answer is empty")
        return None, None
    reasons.extend(f"not verbatim: {part}" for part, kind in parts if kind == "not verbatim")
    reasons.extend(f"does not quote {phrase!r}" for phrase in declared.must_quote if _flat(phrase) not in flat_text)
    reasons.extend(f"quotes {phrase!r} too" for phrase in declared.must_not_quote if _flat(phrase) in flat_text)
    order: tuple[Quotation, ...] = ("verbatim", "verbatim after whitespace", "not verbatim")
    verbatim = sum(len(part) for part, kind in parts if kind != "not verbatim")
    return max((kind for _, kind in parts), key=order.index), verbatim / sum(len(part) for part, _ in parts)


def _parts(text: str, source: str, flat_source: str) -> Iterator[tuple[str, Quotation]]:
    """Yield the lines of the answer, and the sentences of a line that is not verbatim as a whole, with their class."""
    for line in text.splitlines():
        for whole in _unwrapped(line):
            if (kind := _quotation(whole, source, flat_source)) != "not verbatim":
                yield whole, kind
                break
        else:
            for sentence in _SENTENCE_END.split(_BULLET.sub("", line).strip()):
                if part := sentence.strip().strip(_QUOTES).strip():
                    yield part, _quotation(part, source, flat_source)


def _unwrapped(line: str) -> Iterator[str]:
    """Yield a line as it is, then without its bullet and the quotation marks around it; nothing for an empty line."""
    bare = _BULLET.sub("", line).strip()
    for form in (line.rstrip(), line.strip(), bare, bare.strip(_QUOTES).strip()):
        if form.strip():
            yield form


def _quotation(part: str, source: str, flat_source: str) -> Quotation:
    if part in source:
        return "verbatim"
    return "verbatim after whitespace" if _flat(part) in flat_source else "not verbatim"


def _flat(text: str) -> str:
    return " ".join(text.split())
