"""Takes away from a finding whatever it does not need."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.fuzz.finding import Finding, find
from tests.fuzz.source import Input, Line, Recipe

MOST_TRIALS = 400
"""Models that are tried for one finding: under a minute."""


def reduced(finding: Finding) -> Finding:
    """The smallest model found on which the same check fails, in the same way."""
    trials = 0
    again = True
    while again:
        again = False
        for recipe in smaller(finding.recipe):
            trials += 1
            if trials > MOST_TRIALS:
                return finding
            found = _try(recipe, finding)
            if found is not None:
                finding, again = found, True
                break
    return finding


def _try(recipe: Recipe, finding: Finding) -> Finding | None:
    try:
        found = find(recipe, finding.seed, (finding.check,))
    except Exception:  # it is no model any more
        return None
    return found if found is not None and found.error == finding.error else None


def smaller(recipe: Recipe) -> Iterator[Recipe]:
    """Models with something less, the largest steps first."""
    for edit in (_fewer_results, _fewer_lines, _plainer_code, _smaller_inputs):
        for candidate in edit(recipe):
            pruned = candidate.pruned()
            if pruned.inputs and str((pruned, pruned.inputs)) != str((recipe, recipe.inputs)):
                yield pruned


def _fewer_results(recipe: Recipe) -> Iterator[Recipe]:
    """One of the results alone; any value as the result; or one result less."""
    given = sorted(recipe.returns.reads)
    made = [name for line in recipe.lines for name in sorted(line.writes)]
    for name in (*given, *made):
        yield replace(recipe, returns=Line(f"return {name}"))
    for name in given if len(given) > 2 else ():
        rest = [each for each in given if each != name]
        yield replace(recipe, returns=Line(f"return {', '.join(rest)}"))


def _fewer_lines(recipe: Recipe) -> Iterator[Recipe]:
    """Without a line: what it made is replaced by something that it read, or by an earlier value."""
    inputs = [each.name for each in recipe.inputs]
    for number, line in reversed(list(enumerate(recipe.lines))):
        before, after = recipe.lines[:number], recipe.lines[number + 1 :]
        values = {name for name in line.reads if not name.startswith("self.")}
        for name in sorted(values | set(inputs)) if line.writes else ("",):
            renames = dict.fromkeys(line.writes, name)
            yield replace(
                recipe,
                lines=(*before, *(_renamed(each, renames) for each in after)),
                returns=_renamed(recipe.returns, renames),
            )


class _Rename(ast.NodeTransformer):
    def __init__(self, renames: dict[str, str]) -> None:
        self.renames = renames

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.renames.get(node.id, node.id), node.ctx)


def _renamed(line: Line, renames: dict[str, str]) -> Line:
    if not line.reads & renames.keys():
        return line
    return replace(line, code=ast.unparse(_Rename(renames).visit(ast.parse(line.code))))


def _plainer_code(recipe: Recipe) -> Iterator[Recipe]:
    """A keyword less, or an inner call in place of what is called on it."""
    for kind in ("members", "lines"):
        lines: tuple[Line, ...] = getattr(recipe, kind)
        for number, line in enumerate(lines):
            for code in plainer(line.code):
                changed = (*lines[:number], replace(line, code=code), *lines[number + 1 :])
                yield replace(recipe, **{kind: changed})


def plainer(code: str) -> Iterator[str]:
    """The same code with one keyword, or one function around its argument, less."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for keyword in list(node.keywords):
                kept = node.keywords
                node.keywords = [each for each in kept if each is not keyword]
                yield ast.unparse(tree)
                node.keywords = kept
    for holder, place, value in _places(tree):
        if isinstance(value, (ast.Call, ast.BinOp)) and not _is_seeded(value):
            for part in value.args if isinstance(value, ast.Call) else (value.left, value.right):
                if isinstance(part, (ast.Name, ast.Call, ast.BinOp)):
                    _put(holder, place, part)
                    yield ast.unparse(tree)
            _put(holder, place, value)


def _places(tree: ast.AST) -> list[tuple[Any, Any, Any]]:
    """Every node of a tree, with what holds it and where."""
    found: list[tuple[Any, Any, Any]] = []
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                found += [(value, number, each) for number, each in enumerate(value)]
            else:
                found.append((node, field, value))
    return found


def _put(holder: Any, place: Any, value: Any) -> None:
    if isinstance(holder, list):
        holder[place] = value
    else:
        setattr(holder, place, value)


def _is_seeded(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("seeded", "parameter", "gain")


def _smaller_inputs(recipe: Recipe) -> Iterator[Recipe]:
    """A smaller batch, and smaller maps; all arguments alike."""
    for axis in range(max(len(each.shape) for each in recipe.inputs)):
        for size in (1, 2, 3):
            yield replace(recipe, inputs=tuple(_shrunk(each, axis, size) for each in recipe.inputs))


def _shrunk(each: Input, axis: int, size: int) -> Input:
    if axis >= len(each.shape) or each.shape[axis] <= size:
        return each
    return replace(each, shape=(*each.shape[:axis], size, *each.shape[axis + 1 :]))
