"""A griffe extension that renders formulas of docstrings as MathML, which needs no script."""

import re

import griffe
from latex2mathml.converter import convert

# A block ends with the paragraph that begins after its directive or below it.
BLOCK = re.compile(
    r"^\.\. math::[ \t]*(?:\n[ \t]*\n)?(.+?)(?=\n[ \t]*\n|\Z)", re.MULTILINE | re.DOTALL
)
INLINE = re.compile(r":math:`([^`]+)`")


class Formulas(griffe.Extension):
    """Extension that renders the formulas of every docstring."""

    def on_object(self, *, obj: griffe.Object, **settings: object) -> None:
        """Rewrites the docstring of a module, class, function or constant."""
        if obj.docstring is not None:
            obj.docstring.value = render_formulas(obj.docstring.value)


def render_formulas(text: str) -> str:
    """Replaces directives of formulas by MathML."""
    # "Info: " would be parsed as a type and a description.
    text = text.replace("Info: ", "Info&#58; ")
    text = BLOCK.sub(lambda match: _to_mathml(match[1], "block"), text)
    return INLINE.sub(lambda match: _to_mathml(match[1], "inline"), text)


def _to_mathml(formula: str, display: str) -> str:
    # Markdown would read a star as emphasis.
    return convert(" ".join(formula.split()), display=display).replace("*", "&#x02217;")
