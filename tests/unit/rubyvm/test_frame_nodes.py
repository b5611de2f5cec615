"""Nodes of frames are freed at once, without Python's collector."""

from __future__ import annotations

import gc

from rbtrace_py.model.stacks import Frame, FrameKind
from rbtrace_py.rubyvm.frames import FrameNode


def _count() -> int:
    return sum(isinstance(one, FrameNode) for one in gc.get_objects())


def test_no_node_points_to_itself() -> None:
    frame = Frame(FrameKind.RUBY, "pay", "pay", "a.rb", 1)
    before = _count()
    gc.disable()
    try:
        node = FrameNode(FrameNode(None, None), frame)
        node.ruby = frame
        assert node.is_ruby
        assert _count() == before + 2
        del node
        assert _count() == before
    finally:
        gc.enable()
