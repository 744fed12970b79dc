"""Hooks of mkdocs that add README, notebooks and the API reference to the site."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).parents[1]
SOURCE_LINK = r"\]\(\.\./(fedjax_fair/[\w/]+\.py)\)"

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}


@event_priority(100)  # Notebooks must be added before mkdocs-jupyter converts them.
def on_files(files, config):
    """Adds pages from outside of this folder."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text("utf8")
        files.append(File.generated(config, page, content=relative_to_docs(text)))
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        path = f"notebooks/{notebook.name}"
        files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls))
    for source in sorted(set(re.findall(SOURCE_LINK, (ROOT / "docs/design.md").read_text("utf8")))):
        # Without this level, exclude_docs leaves out the files of Python.
        included = InclusionLevel.INCLUDED
        content = (ROOT / source).read_bytes()
        files.append(File.generated(config, source, content=content, inclusion=included))
    for page in pages(config.nav):
        if page.startswith("api/"):
            module = page.removeprefix("api/").removesuffix(".md")
            files.append(File.generated(config, page, content=reference(module)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrites links from pages of this folder to the root of the repository."""
    markdown = re.sub(SOURCE_LINK, r"](\1)", markdown)
    return link_notebooks(markdown.replace("](../CONTRIBUTING.md)", "](CONTRIBUTING.md)"))


def pages(nav) -> Iterator[str]:
    """Yields all pages of a navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages(part)


def relative_to_docs(text: str) -> str:
    """Rewrites the links of a page of the root for this folder."""
    text = text.replace("](docs/", "](").replace("[CITATION.cff](CITATION.cff)", "CITATION.cff")
    text = text.replace("](notebooks/)", "](notebooks/01_first_federation.ipynb)")
    return link_notebooks(text)


def link_notebooks(text: str) -> str:
    """Replaces links to the sources of notebooks by links to their pages."""
    return re.sub(r"\]\((?:\.\./)?notebooks/(\w+)\.py\)", r"](notebooks/\1.ipynb)", text)


def public_names(module: str) -> dict[str, str]:
    """Maps each name that a module exports, except modules, to the path of its definition.

    Examples:
        >>> public_names("fedjax_fair.solvers")["SGD"]
        'fedjax_fair.solvers.sgd.SGD'
    """
    for node in parse(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            origins = {name: origin(module, name) for name in ast.literal_eval(node.value)}
            return {name: path for name, path in origins.items() if not is_module(path)}
    raise ValueError(f"{module} has no __all__, which pages of the API reference need.")


def parse(module: str) -> ast.Module:
    """Parses the file of a module."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text("utf8"))


def origin(module: str, name: str) -> str:
    """Returns the dotted path of a name's definition, following imports."""
    for node in ast.walk(parse(module)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedjax_fair"):
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module != module:
                    return origin(str(node.module), alias.name)
    return f"{module}.{name}"


def is_module(name: str) -> bool:
    """Checks whether a dotted name is that of a file or a folder."""
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def reference(module: str) -> str:
    """Returns the API reference of a module."""
    about = f"::: {module}\n    options: {{members: false, show_root_heading: false}}\n"
    blocks = (f"::: {path}\n" for path in public_names(module).values())
    return "\n".join([f"# {module}\n", about, *blocks])
