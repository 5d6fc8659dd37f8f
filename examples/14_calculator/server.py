"""An MCP server over stdio with one tool, a calculator: ``python server.py``.

An expression is parsed and computed node by node; nothing is ever executed. What is no expression,
has no real number as its value, or would take long is an error that says so.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from mcp.server.fastmcp import FastMCP
from mcp.server.fastmcp.exceptions import ToolError

LONGEST = 100
"""Characters of an expression."""
LARGEST = 1e15
"""Absolute value of every number, intermediate ones too."""
LARGEST_EXPONENT = 64

BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}

app = FastMCP("calculator", log_level="ERROR")


@app.tool()
def calculate(expression: str) -> str:
    """Compute an expression of numbers, + - * / // % ** and parentheses."""
    return f"{evaluate(expression):.12g}"


def evaluate(expression: str) -> float:
    """Return the value of an expression.

    Raises:
        ToolError: it has none; the text goes to the model.
    """
    if len(expression) > LONGEST:
        raise ToolError(f"the expression has {len(expression)} characters, at most {LONGEST}")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, MemoryError):
        raise ToolError(f"not an expression: {expression!r}") from None
    except RecursionError:
        raise ToolError("the expression is nested too deeply") from None


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _checked(number)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
            return _checked(UNARY[type(op)](_value(operand)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return _computed(op, _value(left), _value(right))
    raise ToolError(
        f"{ast.unparse(node)!r} is not allowed: use numbers, + - * / // % ** and parentheses"
    )


def _computed(op: ast.operator, left: float, right: float) -> float:
    if isinstance(op, ast.Pow) and abs(right) > LARGEST_EXPONENT:
        raise ToolError(f"the exponent {right:g} is too large, at most {LARGEST_EXPONENT}")
    try:
        return _checked(BINARY[type(op)](left, right))
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except OverflowError:
        raise ToolError("the result is too large") from None


def _checked(number: complex) -> float:
    if isinstance(number, complex) or math.isnan(number):
        raise ToolError("the result is not a real number")
    if abs(number) > LARGEST:
        raise ToolError(f"a number is larger than {LARGEST:g}")
    return number


if __name__ == "__main__":
    app.run()
