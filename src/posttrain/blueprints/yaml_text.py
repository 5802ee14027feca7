"""Keys of a YAML file as dotted names, and changes to single values that leave the rest of the text alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml


class YamlError(ValueError):
    """The text is no YAML; `line` is where."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def load_yaml(text: str) -> Any:
    """The document; YamlError with the line."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        message = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise YamlError(message, (mark.line if mark else 0) + 1) from error
    except (ValueError, RecursionError) as error:  # a date that is none; brackets without end
        raise YamlError(str(error), 1) from error


def scalars(text: str) -> dict[str, Any]:
    """Every scalar by its dotted name (`ajet.trainer_common.test_freq`), in the order of the file."""
    return dict(_flat(load_yaml(text), ""))


def _flat(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    elif not isinstance(value, list):
        yield prefix, value


def replace_scalars(text: str, changes: Mapping[str, Any]) -> str:
    """The text with these values replaced in place, comments and layout kept. KeyError for unknown names."""
    spans = dict(_spans(yaml.compose(text, Loader=yaml.SafeLoader), ""))
    edits = sorted(((*spans[name], _written(value)) for name, value in changes.items()), reverse=True)
    for start, end, value in edits:
        text = text[:start] + value + text[end:]
    return text


def _spans(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, tuple[int, int]]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _spans(value, f"{prefix}.{key.value}" if prefix else str(key.value))
    elif isinstance(node, yaml.ScalarNode):
        yield prefix, (node.start_mark.index, node.end_mark.index)


def _written(value: Any) -> str:
    if isinstance(value, float):
        mantissa, exponent, power = f"{value:.6g}".partition("e")
        if not exponent:
            return mantissa
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{power}"  # YAML 1.1 reads 1e-6 as text
    return str(value).lower() if isinstance(value, bool) else str(value)
