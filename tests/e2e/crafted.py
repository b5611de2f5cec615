"""The target crafted.py, which defines and fires probes of any shape."""

from __future__ import annotations

import json
from typing import Any

from processes import TARGETS, Target

Operand = list[Any]
"""``[name, type, role]``, with the numbers of the rbtrace note."""


class Crafted(Target):
    def __init__(self) -> None:
        super().__init__("/usr/bin/python3", TARGETS / "probes/crafted.py")

    def define(
        self, name: str, operands: list[Operand], role: int = 0, provider: str = "made"
    ) -> None:
        assert self.step(json.dumps(["define", provider, name, role, operands]))

    def fire(self, name: str, *values: Any, times: int = 1) -> None:
        assert self.step(json.dumps(["fire", name, values, times])) == "done"

    def told(self, *words: Any) -> None:
        assert self.step(json.dumps(words)) == "done"
