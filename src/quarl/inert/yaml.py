"""Plain values of a YAML file: no tag names code, and no small file becomes many values."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import yaml

from quarl.errors import QuarlError, UnsupportedError, first_line
from quarl.inert.zip import read_bytes

YAML_BYTES = 2**16
"""Largest file in bytes. The zoo's files take 1 to 3 kB, those of its hyper-parameters up to 16. Parsing is slow, and a
longer file is not a configuration."""
MAX_VALUES = 1000
"""Largest number of values in a YAML file; aliases count each time they are used."""
MAX_MERGED = 20_000
"""Largest number of values in a file of defaults that others are merged into."""
MAX_DEPTH = 20
"""Levels of a YAML file; the zoo's have 4."""
MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """YAML without code: of Python's tags, only those of an OrderedDict, a tuple and a name are read, as data."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise RecursionError
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuse merge keys.

        Agents' files need none, and a few of them multiply into more entries than fit in memory.
        """
        if any(key.tag == MERGE for key, _ in node.value):
            raise yaml.constructor.ConstructorError(None, None, "merge keys (<<) are not supported", node.start_mark)


class _MergingLoader(_Loader):
    """A loader that merges one mapping into another: `<<: *defaults`, with the mapping's own keys first."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        merged = [value for key, value in node.value if key.tag == MERGE]
        if not merged:
            return
        base = merged[0]
        if len(merged) > 1 or not isinstance(base, yaml.MappingNode):
            problem = "only one mapping can be merged into another"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        self.flatten_mapping(base)
        node.value = [*base.value, *(entry for entry in node.value if entry[0].tag != MERGE)]
        if len(node.value) > MAX_VALUES:  # each of many mappings that merge the one before is longer than that
            raise ValueError(f"a mapping has more than {MAX_VALUES} values")


def _ordered_dict(loader: yaml.SafeLoader, node: Any) -> dict[Any, Any]:
    """Return the dict of !!python/object/apply:collections.OrderedDict [[[key, value], ...]]."""
    arguments = loader.construct_sequence(node, deep=True)
    return dict(arguments[0]) if arguments else {}


def _name(loader: yaml.SafeLoader, name: str, node: yaml.Node) -> str:
    """Return the name in !!python/name:torch.nn.modules.activation.ReLU '' as text, without looking it up."""
    if not isinstance(node, yaml.ScalarNode) or node.value:
        raise yaml.constructor.ConstructorError(None, None, f"the name {name} with a value", node.start_mark)
    return name


_Loader.add_constructor("tag:yaml.org,2002:python/object/apply:collections.OrderedDict", _ordered_dict)
_Loader.add_constructor("tag:yaml.org,2002:python/tuple", partial(yaml.SafeLoader.construct_sequence, deep=True))
_Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", _name)


def read_yaml(path: Path, *, merging: bool = False) -> dict[str, Any]:
    """Return the mapping in a zoo's YAML file, built of literals only; a tag that names code is refused.

    merging: the file holds defaults and may use merge keys.
    """
    data = read_bytes(path, limit_bytes=YAML_BYTES)
    try:
        # SafeLoaders with three more constructors, which build plain values
        document = yaml.load(data, Loader=_MergingLoader if merging else _Loader)
        _count(document, MAX_MERGED if merging else MAX_VALUES)
    except yaml.constructor.ConstructorError as error:
        raise UnsupportedError(f"{path}: {str(error.problem)[:100]}; only literals are read") from None
    except RecursionError:
        raise QuarlError(f"{path} is nested too deeply to be a configuration") from None
    except (yaml.YAMLError, ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
        reason = first_line(error)[:100]
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            reason = f"line {error.problem_mark.line + 1}: {str(error.problem)[:100]}"
        raise QuarlError(f"{path} is not YAML: {reason}") from None
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise QuarlError(f"{path} holds a {type(document).__name__}, not settings by name")
    return document


def _count(value: Any, budget: int) -> int:
    """Return the budget left after `value`; raise if aliases expand a small file beyond any configuration."""
    if budget <= 0:
        raise ValueError("it has more values than any configuration")
    if isinstance(value, int) and value.bit_length() > 64:  # 1:59:59:59... is a single number, too long even to print
        raise ValueError("a number has more than 64 bits")
    children = [*value.keys(), *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    for child in children:
        budget = _count(child, budget - 1)
    return budget


def key_lines(path: Path) -> dict[tuple[str | int, ...], int]:
    """Return the line numbers, from 1, of the keys and list entries of a file, by the path of keys to them.

    Raises QuarlError if a mapping has a key twice: the second one would silently replace the first.
    """
    lines: dict[tuple[str | int, ...], int] = {}
    root = yaml.compose(read_bytes(path, limit_bytes=YAML_BYTES), Loader=_Loader)
    waiting: list[tuple[tuple[str | int, ...], yaml.Node | None]] = [((), root)]
    while waiting:
        at, node = waiting.pop()
        if isinstance(node, yaml.SequenceNode):
            children = [((*at, number), child, child) for number, child in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            children = [((*at, key.value), key, child) for key, child in node.value]
        else:
            continue
        for where, marked, child in children:
            line = marked.start_mark.line + 1
            if where in lines:
                raise QuarlError(f"{path}, line {line}: {where[-1]!r} repeats line {lines[where]}; keep one of them")
            lines[where] = line
            waiting.append((where, child))
    return lines
