"""YAML as plain values, by way of its nodes: PyYAML itself overlooks a key that stands twice, and where it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from gt.client.signals.configfile import At

#: How deep a file may be nested; an alias to what is around it never ends.
DEPTH = 16


def parsed(text: str, at: At) -> Any:
    """The value of a whole file, None if it is empty. Raises ConfigError."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        return None if node is None else _Reader(loader).value(node, at, DEPTH)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        at.wrong(f"this is no YAML: {line}{error.problem}")
    except yaml.YAMLError as error:
        at.wrong(f"this is no YAML: {getattr(error, 'reason', error)}")


class _Reader:
    def __init__(self, loader: yaml.SafeLoader) -> None:
        self.loader = loader
        self._flat: set[int] = set()

    def value(self, node: yaml.Node, at: At, depth: int) -> Any:
        if not depth:
            at.wrong(f"nested more than {DEPTH} deep")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, at, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, at / i, depth - 1) for i, item in enumerate(node.value)]
        return self.loader.construct_object(node, deep=True)

    def _mapping(self, node: yaml.MappingNode, at: At, depth: int) -> dict[Any, Any]:
        if id(node) not in self._flat:  # an alias brings it here again
            self._flat.add(id(node))
            self._check_twice(node, at)
            self.loader.flatten_mapping(node)
        return {key: self.value(item, at / key, depth - 1) for key, item in self._items(node, at)}

    def _check_twice(self, node: yaml.MappingNode, at: At) -> None:
        lines: dict[Any, int] = {}
        for (key, _), (key_node, _) in zip(self._items(node, at), node.value, strict=True):
            line = key_node.start_mark.line + 1
            if key in lines:
                (at / key).wrong(f"stands twice, in lines {lines[key]} and {line}")
            lines[key] = line

    def _items(self, node: yaml.MappingNode, at: At) -> list[tuple[Any, yaml.Node]]:
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                at.wrong(f"line {key_node.start_mark.line + 1}: a key is a name or a number")
        return [(self._key(key_node), item) for key_node, item in node.value]

    def _key(self, node: yaml.Node) -> Any:
        return "<<" if node.tag == "tag:yaml.org,2002:merge" else self.loader.construct_object(node, deep=True)
