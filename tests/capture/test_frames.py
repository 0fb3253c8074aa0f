"""The user's lines, of the code that runs now."""

from __future__ import annotations

import sys

from fxquant.capture.frames import instruction, user_line, user_stack


def innermost():
    frame = sys._getframe()
    return user_stack(frame, outermost.__code__), user_line(frame, outermost.__code__), instruction(frame)


def middle():
    return innermost()


def outermost():
    return middle()


def test_lines_of_the_user():
    stack, line, where = outermost()
    assert [part.rpartition(" in ")[2] for part in stack.splitlines() if "File" in part] == ["middle", "innermost"]
    assert line.startswith(f"{__file__}:")
    assert "return user_stack(frame" in line
    assert where[0] != 0
    assert where[1] > 0


def test_without_a_frame():
    assert user_stack(None, outermost.__code__) == user_line(None, outermost.__code__) == ""
    assert instruction(None) == (0, 0)
