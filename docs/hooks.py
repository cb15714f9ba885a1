"""Hooks of MkDocs: LaTeX becomes MathML, which browsers draw without a script, and the site gets a font for it."""

from __future__ import annotations

import html
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert  # pyright: ignore[reportMissingImports] - installed for the site alone

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
# What the converter does not know, and what it knows instead.
SPELLINGS = {"{aligned}": "{split}", r"\arg": r"\operatorname{arg}"}
FONT = "STIXTwoMath-Regular.ttf"


def on_config(config: Any) -> None:
    """The section of the methods lists the pages of docs/methods, so a new page needs no entry."""
    pages = sorted(path.name for path in Path(config.docs_dir, "methods").glob("*.md"))
    first = ["index.md", "comparison.md"]
    section = next(entry for entry in config.nav if "Methods" in entry)
    section["Methods"] = [f"methods/{name}" for name in [*first, *(page for page in pages if page not in first)]]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """`no-run` after the language of a code block is for the tests; MkDocs does not know it."""
    return re.sub(r"^(```\w+) no-run$", r"\1", markdown, flags=re.MULTILINE)


def on_page_content(content: str, page: Any, **_: Any) -> str:
    def mathml(match: re.Match[str]) -> str:
        latex = html.unescape(match[2])
        for name, known in SPELLINGS.items():
            latex = latex.replace(name, known)
        formula = convert(latex, display="block" if match[1] == "div" else "inline")
        if "\\" in formula or "<mi>&</mi>" in formula:
            raise ValueError(f"{page.file.src_path}: this formula is not converted completely: {latex}")
        # Each bar would stretch by what it stands next to, so the two bars of a norm would differ in size.
        formula = re.sub("<mo>(&#x02016;|&#x0007C;|&#x02223;)</mo>", r'<mo stretchy="false">\1</mo>', formula)
        return re.sub("<mi>(log|exp)</mi>", r'<mi>\1</mi><mspace width="0.17em" />', formula)

    return FORMULA.sub(mathml, content)


def on_post_build(config: Any) -> None:
    package = find_spec("ziamath")
    assert package
    assert package.submodule_search_locations
    shutil.copy(Path(package.submodule_search_locations[0], "fonts", FONT), config.site_dir)
