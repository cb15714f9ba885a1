"""Text and tables in TeX."""

from __future__ import annotations

from collections.abc import Sequence

_SPECIAL = {char: f"\\{char}" for char in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "→": r"$\to$",
    "–": "--",
}


def escape(text: str) -> str:
    """Text with TeX's special characters escaped."""
    return "".join(_SPECIAL.get(char, char) for char in text)


def tabular(rows: Sequence[Sequence[str]]) -> str:
    """A `tabular` with the rules of the package booktabs; the first row is the header. Cells are escaped."""
    header, *body = [" & ".join(map(escape, row)) + r" \\" for row in rows]
    columns = f"l{'r' * (len(rows[0]) - 1)}"
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule", *body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])
