"""The tree of a flame graph: nodes with weights. Too small nodes are merged.

A node has one weight, or in a difference two: before and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest

from rbtrace_py.report.exchange.rows import Folded, Label, portable_label

MAX_NODES = 50_000
"""Number of nodes that a browser draws without a noticeable pause."""

Weights = tuple[int, ...]


@dataclass(slots=True)
class FlameNode:
    """A frame and its callees. ``label`` is an index, or -1 for merged nodes."""

    label: int
    weights: list[int]
    children: list[FlameNode] = field(default_factory=list)
    gathered: int = 0
    """Number of nodes merged into this one, or 0."""


@dataclass(slots=True)
class FlameTree:
    """Nodes below one root, and their labels.

    Attributes:
        totals: Weights of the root.
        narrow: Number of merged nodes.
    """

    root: FlameNode
    labels: list[Label]
    narrow: int = 0

    @property
    def totals(self) -> Weights:
        return tuple(self.root.weights)

    def share(self, node: FlameNode) -> float:
        """Return a node's width, 0 to 1: the mean of its shares before and after."""
        shares = [
            weight / total if total else 0.0
            for weight, total in zip(node.weights, self.totals, strict=True)
        ]
        known = [total for total in self.totals if total]
        return sum(shares) / len(known) if known else 0.0

    def preorder(self) -> Iterable[tuple[FlameNode, int]]:
        """Yield each node with its depth. Children follow their parent in order."""
        waiting = [(self.root, 0)]
        while waiting:
            node, depth = waiting.pop()
            yield node, depth
            waiting.extend((child, depth + 1) for child in reversed(node.children))


def tree_of(folded: Folded, max_nodes: int = MAX_NODES) -> FlameTree:
    """Make the tree of one measurement."""
    rows = {row: (weight,) for row, weight in folded.stacks.items()}
    return build(rows, folded.labels, 1, max_nodes)


def difference_of(
    before: Folded, after: Folded, max_nodes: int = MAX_NODES
) -> FlameTree:
    """Make the tree of two measurements: rows by label, weights before and after.

    Files are compared by base name, because each release has its own folder.
    """
    labels: list[Label] = []
    numbers: dict[Label, int] = {}
    rows: dict[tuple[int, ...], list[int]] = {}
    for column, folded in enumerate((before, after)):
        known = []
        for long in folded.labels:
            label = portable_label(long)
            known.append(numbers.setdefault(label, len(numbers)))
            if len(labels) < len(numbers):
                labels.append(label)
        for row, weight in folded.stacks.items():
            key = tuple(known[number] for number in row)
            rows.setdefault(key, [0, 0])[column] += weight
    return build({row: tuple(w) for row, w in rows.items()}, labels, 2, max_nodes)


def build(
    rows: Mapping[tuple[int, ...], Weights],
    labels: Sequence[Label],
    columns: int,
    max_nodes: int = MAX_NODES,
) -> FlameTree:
    """Build a tree from rows of labels, the root first. Siblings are sorted by name."""
    root = FlameNode(-1, [0] * columns)
    children: dict[tuple[int, int], FlameNode] = {}
    for row, weights in rows.items():
        node = root
        _add(node, weights)
        for label in row:
            key = (id(node), label)
            child = children.get(key)
            if child is None:
                child = children[key] = FlameNode(label, [0] * columns)
                node.children.append(child)
            node = child
            _add(node, weights)
    tree = FlameTree(root, list(labels))
    tree.narrow = _gather(tree, _least(tree, children.values(), max_nodes))
    for node, _ in tree.preorder():
        node.children.sort(key=lambda child: _name(child, tree.labels))
    return tree


def _add(node: FlameNode, weights: Weights) -> None:
    for column, weight in enumerate(weights):
        node.weights[column] += weight


def _name(node: FlameNode, labels: list[Label]) -> tuple[bool, str]:
    return (True, "") if node.label < 0 else (False, labels[node.label].text)


def _least(tree: FlameTree, nodes: Iterable[FlameNode], max_nodes: int) -> float:
    """Return the smallest share of a node for which there are not too many nodes."""
    nodes = list(nodes)
    if len(nodes) <= max_nodes:
        return 0.0
    # Drop all nodes as small as the last one, because some of them exceed the limit.
    return nlargest(max_nodes + 1, map(tree.share, nodes))[-1]


def _gather(tree: FlameTree, least: float) -> int:
    """Merge siblings that are not wider than ``least``; return their number."""
    if not least:
        return 0
    gone = 0
    for node, _ in tree.preorder():
        small = [child for child in node.children if tree.share(child) <= least]
        if small:
            one = FlameNode(-1, [0] * len(node.weights))
            for child in small:
                _add(one, tuple(child.weights))
                one.gathered += _size(child)
            gone += one.gathered
            node.children = [c for c in node.children if tree.share(c) > least]
            node.children.append(one)
    return gone


def _size(node: FlameNode) -> int:
    """Return the number of nodes in this subtree."""
    size = 0
    waiting = [node]
    while waiting:
        size += 1
        waiting.extend(waiting.pop().children)
    return size
