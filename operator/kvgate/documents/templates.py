"""OpenShift's Templates: the objects of one, with the values of its parameters in their places.

docs.openshift.com, "Using templates": `${NAME}` inside any text, `${{NAME}}` alone for a value that need not be a text.
"""

import re
from collections.abc import Iterator, Mapping

import yaml
from msgspec import Struct, field
from msgspec.structs import replace

from kvgate.documents.positions import own_field
from kvgate.documents.reading import Document
from kvgate.text.patterns import pattern

_REFERENCE = pattern(r"\$\{(\w{1,100})\}")
_ALONE = pattern(r"\$\{\{(\w{1,100})\}\}")
_MAX_ADDED = 1 << 18
"""Characters that the values of a template add to its texts; further references stay as they are."""
_TAGS = (
    ("tag:yaml.org,2002:int", pattern(r"[-+]?\d{1,18}")),
    ("tag:yaml.org,2002:float", pattern(r"[-+]?\d{1,18}\.\d{1,18}")),
    ("tag:yaml.org,2002:bool", pattern(r"true|false")),
)


def objects_of(document: Document) -> Iterator[Document]:
    """Yield the objects of a Template, else the document itself. A parameter without a value stays a reference."""
    listed = own_field(document.node, "objects") if document.kind == "Template" else None
    if document.api_version not in ("v1", "template.openshift.io/v1") or not isinstance(listed, yaml.SequenceNode):
        yield document
        return
    parameters, values = own_field(document.node, "parameters"), {}
    for parameter in parameters.value if isinstance(parameters, yaml.SequenceNode) else ():
        name, value = own_field(parameter, "name"), own_field(parameter, "value")
        if isinstance(name, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode) and value.value:
            values[name.value] = value.value
    filling = _Filling(values=values)
    for node in listed.value:
        if isinstance(node, yaml.MappingNode):
            yield replace(document, node=filling.of(node))


class _Filling(Struct, kw_only=True):
    """The values of one template on their way into its objects; nodes that several places share are made once."""

    values: Mapping[str, str]
    made: dict[int, yaml.Node] = field(default_factory=dict)
    left: int = _MAX_ADDED

    def of(self, node: yaml.Node) -> yaml.Node:
        if id(node) in self.made:
            return self.made[id(node)]
        self.made[id(node)] = filled = node  # an alias inside of what it stands for
        marks = (node.start_mark, node.end_mark)
        if isinstance(node, yaml.SequenceNode):
            filled = yaml.SequenceNode(node.tag, [self.of(item) for item in node.value], *marks)
        elif isinstance(node, yaml.MappingNode):
            items = [(self.of(key), self.of(value)) for key, value in node.value]
            filled = yaml.MappingNode(node.tag, items, *marks)
        elif isinstance(node, yaml.ScalarNode):
            alone = _ALONE.fullmatch(node.value)
            value = self.values.get(alone[1], node.value) if alone else _REFERENCE.sub(self._value, node.value)
            tag = node.tag
            if alone:
                tag = next((tag for tag, form in _TAGS if form.fullmatch(value)), "tag:yaml.org,2002:str")
            if value != node.value:
                filled = yaml.ScalarNode(tag, value, *marks, style=node.style)
        self.made[id(node)] = filled
        return filled

    def _value(self, reference: re.Match[str]) -> str:
        value = self.values.get(reference[1], reference[0])
        self.left -= len(value)
        return value if self.left > 0 else reference[0]
