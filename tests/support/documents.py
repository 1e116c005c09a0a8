"""Takes the repository's documents apart: code blocks, code spans, links, and the command lines that they show."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_OPTIONAL = re.compile(r"\[([^\[\]]*)\](?:\.\.\.)?")


@dataclass(frozen=True)
class Block:
    """A fenced code block: its language, empty if there is none, and its text."""

    language: str
    text: str


@dataclass(frozen=True)
class Document:
    """A Markdown file of the repository."""

    path: Path

    @property
    def name(self) -> str:
        """The path in the repository."""
        return str(self.path.relative_to(ROOT))

    def text(self) -> str:
        """The file's content."""
        return self.path.read_text(encoding="utf-8")

    def blocks(self) -> list[Block]:
        """All fenced code blocks."""
        return [Block(*match) for match in _FENCE.findall(self.text())]

    def spans(self) -> list[str]:
        """All code spans outside code blocks; what a table writes as `\\|` is `|`."""
        return [span.replace("\\|", "|") for span in _SPAN.findall(_FENCE.sub("", self.text()))]

    def links(self) -> list[str]:
        """Targets of all links outside code."""
        targets: list[str] = _LINK.findall(_SPAN.sub("", _FENCE.sub("", self.text())))
        return targets

    def lines_of(self, program: str) -> list[str]:
        """The lines of code blocks, and the code spans, that begin with a program of that name."""
        shown = itertools.chain.from_iterable(block.text.splitlines() for block in self.blocks())
        lines = (re.sub(r"\s+#.*", "", line.removeprefix("$ ")) for line in itertools.chain(shown, self.spans()))
        return [line for line in lines if re.match(rf"(\S*/)?{program}( |$)", line)]


def documents() -> list[Document]:
    """Every document of the repository that is written by hand."""
    patterns = ("*.md", "docs/*.md", "examples/**/*.md")
    return [Document(path) for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def spelled_out(line: str) -> Iterator[list[str]]:
    """The words after the program of each command line that a synopsis stands for.

    `[...]` is left out or kept, `a|b` is one or the other, and `N` is a number.
    """
    optional = _OPTIONAL.search(line)
    if optional is not None:
        for kept in ("", optional.group(1)):
            yield from spelled_out(line[: optional.start()] + kept + line[optional.end() :])
        return
    choices = (("3",) if word == "N" else word.split("|") for word in shlex.split(line)[1:])
    yield from map(list, itertools.product(*choices))


def anchors(markdown: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", markdown), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
