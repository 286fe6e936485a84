"""YAML as the project reads it: plain data, and no key twice.

PyYAML keeps the last of two equal keys and says nothing, so that a limit that was meant would not be the one that runs.
"""

from __future__ import annotations

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        # before merge keys (<<) are resolved: what they bring may be overridden
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                raise yaml.YAMLError(f"key {key.value!r} is given twice, in line {lines[name]} and in line {line}")
            lines[name] = line
        return node


def load(text: str) -> Any:
    """Read YAML as `yaml.safe_load` does, but refuse a mapping that has a key twice.

    Raises
    ------
    yaml.YAMLError
        Where ``text`` is no YAML, or for such a key, which is named with its lines.
    """
    return yaml.load(text, Loader=_Loader)  # noqa: S506  (a SafeLoader)
