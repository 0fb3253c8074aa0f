"""Which lines of the user's code run now."""

from __future__ import annotations

import linecache
from types import CodeType, FrameType

from fxquant.errors import is_library_file


def user_stack(frame: FrameType | None, below: CodeType) -> str:
    """The user's frames from ``frame`` out to the call of ``below``, innermost last, as Python prints them."""
    lines: list[str] = []
    while frame is not None and frame.f_code is not below:
        code, number = frame.f_code, frame.f_lineno
        if not is_library_file(code.co_filename):
            source = linecache.getline(code.co_filename, number, frame.f_globals).strip()
            lines.append(f'File "{code.co_filename}", line {number}, in {code.co_name}\n    {source}')
        frame = frame.f_back
    return "\n  ".join(reversed(lines))


def user_line(frame: FrameType | None, below: CodeType) -> str:
    """``file:line: source`` of the innermost of the user's frames within ``below``; empty if there is none."""
    while frame is not None and is_library_file(frame.f_code.co_filename):
        frame = None if frame.f_code is below else frame.f_back
    if frame is None:
        return ""
    source = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals).strip()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}: {source}"


def instruction(frame: FrameType | None) -> tuple[int, int]:
    """Which instruction of which call a frame is at."""
    return (id(frame), frame.f_lasti) if frame is not None else (0, 0)
