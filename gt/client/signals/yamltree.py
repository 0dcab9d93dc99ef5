"""Parses YAML into plain values. PyYAML alone accepts a key that appears twice, and forgets the lines of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from gt.client.signals.configfile import At

#: How deep a file may be nested. An alias to an enclosing mapping has no end.
MAX_DEPTH = 16


def parse(text: str, at: At) -> Any:
    """The value of a whole file; None if it is empty. Raises ConfigError."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        return None if node is None else _Reader(loader).value(node, at, MAX_DEPTH)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        at.fail(f"this is not valid YAML: {line}{error.problem}")
    except yaml.YAMLError as error:
        at.fail(f"this is not valid YAML: {getattr(error, 'reason', error)}")


class _Reader:
    def __init__(self, loader: yaml.SafeLoader) -> None:
        self.loader = loader
        #: the mappings that were checked and flattened, by ``id``
        self._flattened: set[int] = set()

    def value(self, node: yaml.Node, at: At, depth: int) -> Any:
        if not depth:
            at.fail(f"nested more than {MAX_DEPTH} deep")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, at, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, at / i, depth - 1) for i, item in enumerate(node.value)]
        return self.loader.construct_object(node, deep=True)

    def _mapping(self, node: yaml.MappingNode, at: At, depth: int) -> dict[Any, Any]:
        if id(node) not in self._flattened:  # an alias refers to the same node a second time
            self._flattened.add(id(node))
            self._check_duplicate_keys(node, at)
            self.loader.flatten_mapping(node)
        return {key: self.value(item, at / key, depth - 1) for key, item in self._items(node, at)}

    def _check_duplicate_keys(self, node: yaml.MappingNode, at: At) -> None:
        lines: dict[Any, int] = {}
        for (key, _), (key_node, _) in zip(self._items(node, at), node.value, strict=True):
            line = key_node.start_mark.line + 1
            if key in lines:
                (at / key).fail(f"this key appears twice, in lines {lines[key]} and {line}")
            lines[key] = line

    def _items(self, node: yaml.MappingNode, at: At) -> list[tuple[Any, yaml.Node]]:
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                at.fail(f"line {key_node.start_mark.line + 1}: a key must be a name or a number")
        return [(self._key(key_node), item) for key_node, item in node.value]

    def _key(self, node: yaml.Node) -> Any:
        return "<<" if node.tag == "tag:yaml.org,2002:merge" else self.loader.construct_object(node, deep=True)
