"""Methods of plugins in the folder of a benchmark.

Results belong to the code of a method, and a report is written without its plugin. The folder
therefore has a description of each method that is not in the package.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_fair.app.settings import plugins
from fedjax_fair.app.settings.config import PartConfig
from fedjax_fair.app.settings.method import Method
from fedjax_fair.app.settings.named_methods import find_method, method_parts
from fedjax_fair.app.settings.registry import GROUPS
from fedjax_fair.results.files import write_text
from fedjax_fair.training.fingerprint import describe, differences

__all__ = ["Description", "needs_groups", "read", "record", "recorded"]

_LINK = re.compile(r"\[(.*)\]\((.*)\)")


class Description(NamedTuple):
    """Description of a method in a report.

    Attributes:
        summary: One line.
        paper: Citation, or an empty string.
        link: Address of the paper, or an empty string.
        file: Name of the file of the plugin, or an empty string.
    """

    summary: str
    paper: str = ""
    link: str = ""
    file: str = ""


# The same command would otherwise continue with results of former code.
def record(folder: Path, methods: Iterable[str], part: PartConfig | None = None) -> None:
    """Writes the descriptions of methods of plugins, which must be those of earlier runs.

    ``part`` is the trained part of networks.

    Raises:
        ValueError: If the folder has results of other code under the same name.
    """
    for name in dict.fromkeys(part for method in methods for part in method_parts(method)):
        if name not in GROUPS.get("plugin", ()):
            continue
        method = find_method(name)
        # Results do not depend on the summary.
        given = part if part != PartConfig() else None
        code = describe(method=method._replace(summary=""), model=given)
        checksums = {} if part is None else _checksums(part)
        file, shown = _file(folder, name), _describe(name, method)
        before = recorded(folder, name) if _has_results(folder, name) else {}
        # Descriptions by earlier versions have no checksums of files.
        known = checksums if checksums.keys() <= before.get("code", {}).keys() else {}
        if before and (changed := differences(code | known, before["code"])):
            path, value, former = changed[0]
            raise ValueError(
                f"method={name!r}: {str(folder)!r} has results of other code or ranges "
                f"({path}={former}, now {value}); use another name, or another folder with "
                "--output."
            )
        file.parent.mkdir(exist_ok=True)
        write_text(file, json.dumps(shown._asdict() | {"code": code | checksums}, indent=2) + "\n")


def _checksums(part: PartConfig) -> dict[str, str]:
    """Returns the SHA-256 of the files of initial parameters; parameters of a run have none."""
    files = {"weights": part.weights, "weights_names": part.weights_names}
    return {
        f"model.{setting} SHA-256": hashlib.sha256(Path(file).read_bytes()).hexdigest()
        for setting, file in files.items()
        if file is not None and Path(file).is_file()
    }


def read(folder: Path, name: str) -> Description:
    """Describes a method of the package, or one that the folder has a description of.

    Raises:
        ValueError: If there is no such method, or its description is damaged.
    """
    file = _file(folder, name)
    is_included = any(name in GROUPS[kind] for kind in GROUPS.keys() - {"plugin"})
    if is_included or not file.exists():
        return _describe(name, find_method(name))
    described = recorded(folder, name)
    return Description(*(str(described[field]) for field in Description._fields))


def recorded(folder: Path, name: str) -> dict[str, Any]:
    """Returns the description of a method of a plugin and its code; nothing for other methods.

    Raises:
        ValueError: If its description is damaged.
    """
    file = _file(folder, name)
    if not file.exists():
        return {}
    try:
        described = dict(json.loads(file.read_bytes()))
        _ = [described[field] for field in Description._fields], dict(described["code"])
    except (ValueError, TypeError, LookupError, RecursionError):
        raise ValueError(
            f"path={str(file)!r}: expected an undamaged description of a method; delete the file "
            "and enter the method again."
        ) from None
    return described


def _file(folder: Path, name: str) -> Path:
    return folder / "methods" / f"{name}.json"


def _has_results(folder: Path, name: str) -> bool:
    files = (folder / "programs").glob("*/*/tuning.jsonl")
    return any(name in method_parts(file.parent.name) for file in files)


def _describe(name: str, method: Method) -> Description:
    source = _LINK.fullmatch(method.source())
    paper, link = source.groups() if source is not None else ("", "")
    files = (path.name for path in plugins.loaded() if name in plugins.methods_of(str(path)))
    return Description(method.describe(), paper, link, next(files, ""))


def needs_groups(method: str) -> bool:
    """Returns whether a method or a part of it needs a sensitive feature."""
    return any(part in GROUPS["group fairness"] for part in method_parts(method))
