"""Docstrings for the site: formulas as MathML, which browsers draw by themselves."""

import re

import griffe
from latex2mathml.converter import convert

# A block ends with the paragraph that begins behind its directive or below it.
BLOCK = re.compile(
    r"^\.\. math::[ \t]*(?:\n[ \t]*\n)?(.+?)(?=\n[ \t]*\n|\Z)", re.MULTILINE | re.DOTALL
)
INLINE = re.compile(r":math:`([^`]+)`")


class Formulas(griffe.Extension):
    """Rewrites every docstring that is read."""

    def on_object(self, *, obj: griffe.Object, **settings: object) -> None:
        """Called for every module, class, function and constant."""
        if obj.docstring is not None:
            obj.docstring.value = for_site(obj.docstring.value)


def for_site(text: str) -> str:
    """The same text with tags instead of directives."""
    # What is returned would be read as a type and a description.
    text = text.replace("Info: ", "Info&#58; ")
    text = BLOCK.sub(lambda found: _drawn(found[1], "block"), text)
    return INLINE.sub(lambda found: _drawn(found[1], "inline"), text)


def _drawn(formula: str, display: str) -> str:
    # A star would be read as emphasis.
    return convert(" ".join(formula.split()), display=display).replace("*", "&#x02217;")
