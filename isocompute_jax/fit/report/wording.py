"""Numbers in words, and the templates: every sentence of the terminal and of the page is a macro of one file."""

from __future__ import annotations

import dataclasses
import functools
import html
import importlib.metadata
import math
import pathlib
import platform
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from isocompute_jax import __version__
from isocompute_jax.fit.configurations import Configuration
from isocompute_jax.records.printing import printable

if TYPE_CHECKING:
    import jinja2

TEMPLATES = pathlib.Path(__file__).parent / "templates"
TERMINAL_WIDTH = 110
LONGEST_NAME = 34
"""Characters of a name in a sentence or a legend."""
EN_DASH = "\N{EN DASH}"
_JOINED = "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"
_LARGE = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def amount(compute: float) -> str:
    """Writes a compute to three significant figures: `12.5`, `131,000` or `5.6 million`."""
    if not math.isfinite(compute):
        return EN_DASH
    for size, word in _LARGE:
        if compute >= 0.9995 * size:
            return f"{compute / size:.3g} {word}"
    if compute < 100:
        return f"{compute:z.3g}"
    return f"{round(compute, 2 - math.floor(math.log10(compute))):,.0f}"


def figures(value: float | None) -> str:
    """Writes a number in three figures; a dash when there is none."""
    return EN_DASH if value is None or not math.isfinite(value) else f"{value:z.3g}"


@dataclasses.dataclass(frozen=True)
class Rewards:
    """Writes rewards of one sweep alike: with these decimals, and as percent where their range is 0 to 100."""

    decimals: int
    percent: bool

    @classmethod
    def of(cls, reward_range: tuple[float, float], span: float) -> Rewards:
        """Takes three decimals for a range of 1, and more where the rewards that were measured span little."""
        low, high = reward_range
        needed = 3 - math.floor(math.log10(high - low)) if math.isfinite(high - low) else 3
        if span > 0:
            needed = max(needed, 1 - math.floor(math.log10(span)))
        return cls(min(max(needed, 0), 6), (low, high) == (0, 100))

    def value(self, reward: float) -> str:
        """Writes `0.427`, or `42.7%`."""
        return f"{reward:z.{self.decimals}f}{'%' if self.percent else ''}" if math.isfinite(reward) else EN_DASH

    def interval(self, ends: Sequence[float], *, like: Sequence[float] = ()) -> str:
        """Writes `0.40 to 0.45`: a decimal less than a reward has where the ends, or those of `like`, are far apart."""
        low, high = ends
        if not math.isfinite(low + high):
            return EN_DASH
        first, last = like or ends
        wide = last - first >= 2 * 10.0 ** (1 - self.decimals)
        decimals = max(self.decimals - int(wide), 0)
        return f"{low:z.{decimals}f} to {high:z.{decimals}f}{'%' if self.percent else ''}"

    def difference(self, cost: float) -> str:
        """Writes `0.012`: two significant figures, with at most one decimal more than a reward has."""
        if not math.isfinite(cost):
            return EN_DASH
        if abs(cost) < 0.5 * 10.0 ** -(self.decimals + 1):
            return "0"
        decimals = min(1 - math.floor(math.log10(abs(cost))), self.decimals + 1)
        return f"{cost:z.{max(decimals, 0)}f}"


def short(name: str, most: int = LONGEST_NAME) -> str:
    """Shortens a name to at most `most` characters, and writes `n = 4, B = 8` as `n = 4 (B = 8)`, as lists need it."""
    name = re.sub(r"^(n = \d+), (B = \d+)", r"\1 (\2)", printable(name))
    kept = most - 1
    return name if len(name) <= most else f"{name[: kept - kept // 2]}\N{HORIZONTAL ELLIPSIS}{name[-(kept // 2) :]}"


def listed(items: Iterable[Any], last: str = "and") -> str:
    """Writes `a`, `a and b`, `a, b and c`; with semicolons where the items have commas themselves."""
    words = [str(item) for item in items]
    comma = "; " if any("," in word for word in words) else ", "
    return f" {last} ".join([comma.join(words[:-1]), words[-1]] if len(words) > 1 else words)


def names(configurations: Sequence[Configuration], last: str = "and", most: int = 5) -> str:
    """Writes `n = 32, 64 and 128`; whole names where more than n tells them apart; of many the first ones."""
    found = [short(each.name) for each in configurations]
    sizes = [re.fullmatch(r"n = (\d+)", name) for name in found]
    rest = [f"{len(found) - most + 1} more"] if len(found) > most else []
    found = found[: most - 1] if rest else found
    if all(sizes) and len(found) > 1:
        return "n = " + listed([*(name[len("n = ") :] for name in found), *rest], last)
    return listed([*found, *rest], last)


def cell(value: Any) -> str:
    """Writes a cell of a table: floats to four significant figures, a dash for what is unknown."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return EN_DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:z.4g}"
    return printable(str(value))


def wrapped(text: str, *, first: str = "", indent: str = "  ", most: int | None = None) -> list[str]:
    """Breaks a text into at most `most` lines of `TERMINAL_WIDTH` columns; `n = 8` stays on one line."""
    told = printable(text, lines=True).replace(" = ", _JOINED)
    lines = textwrap.wrap(
        told, TERMINAL_WIDTH, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False, max_lines=most,
        placeholder=" \N{HORIZONTAL ELLIPSIS}",
    )  # fmt: skip
    return [line.replace(_JOINED, " = ") for line in lines]


class Html(str):
    """Text that is HTML already: templates put it in as it is, where plain text is escaped."""

    def __html__(self) -> str:
        """The protocol by which template engines recognise it."""
        return self


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of the page that another room writes; text with `__html__` is put in as it is, the rest is escaped."""

    title: str
    paragraphs: tuple[str, ...] = ()  # explanation
    figure: pathlib.Path | None = None  # an .svg, which is put into the page itself
    alt: str = ""  # what the figure shows, for those who cannot see it
    how_to_read: str = ""  # the figure's caption
    findings: tuple[str, ...] = ()  # sentences computed from data
    columns: tuple[str, ...] = ()  # headings of a table under the figure; empty without one
    rows: Sequence[Sequence[Any]] = ()  # of cells: floats to four significant figures, None as a dash, the rest as text


def section_from(template: pathlib.Path, **values: Any) -> Section:
    """A section whose words are the blocks of a template, which is given `values`: `title`, `about`, `findings`, ...

    Paragraphs of `about` have an empty line between them; a finding ends with a full stop at the end of a line.
    """
    found = _environment(escape=False).from_string(template.read_text(encoding="utf-8"))
    texts = {name: "".join(block(found.new_context(values))) for name, block in found.blocks.items()}
    about, findings = (
        tuple(part for each in re.split(between, texts.pop(name, "")) if (part := _joined(each)))
        for name, between in (("about", r"\n[ \t]*\n"), ("findings", r"(?<=\.)[ \t]*\n"))
    )
    kept = {name: values[name] for name in ("figure", "columns", "rows") if name in values}
    said = {name: _joined(text) for name, text in texts.items() if name in ("title", "alt", "how_to_read")}
    return Section(paragraphs=about, findings=findings, **said, **kept)


def say(macro: str, *given: Any, template: str = "sentences.j2") -> str:
    """Returns what a macro of the sentences says, on one line; empty where it has nothing to say."""
    return _joined(str(getattr(_module(template), macro)(*given)))


def words() -> Mapping[str, Any]:
    """Returns headings, labels and captions, by their names."""
    return _module("sentences.j2").words  # pyright: ignore[reportAttributeAccessIssue]


def render(template: str, **values: Any) -> str:
    """Fills a template of a page; plain text in it is escaped."""
    return _environment(escape=True).get_template(template).render(words=words(), **values)


def _joined(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


@functools.cache
def _module(template: str) -> jinja2.environment.TemplateModule:
    return _environment(escape=False).get_template(template).module


@functools.cache
def _environment(*, escape: bool) -> jinja2.Environment:
    import jinja2  # reading and fitting need no templates

    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=escape,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    shared = (amount, cell, figures, listed, picture, say, unbroken)
    found.filters.update({function.__name__: function for function in shared}, f=format)
    found.globals.update({function.__name__: function for function in shared})
    return found


def unbroken(text: str) -> Html:
    """The text, escaped unless it is HTML, with `n = 8` and `--flag=value` each kept on one line."""
    marked = str(text) if hasattr(text, "__html__") else html.escape(str(text), quote=False)
    marked = re.sub(r"--[a-z]\w*(=[\w.,:]*\w)?", r'<span class="flag">\g<0></span>', marked)
    return Html(marked.replace(" = ", _JOINED))


def picture(path: pathlib.Path, alt: str) -> Html:
    """Puts an SVG into the page, so that it is one file."""
    text, label = path.read_text(encoding="utf-8"), html.escape(alt, quote=True)
    return Html(f'<svg role="img" aria-label="{label}"{text[text.index("<svg") + len("<svg") :]}')


def versions() -> dict[str, str]:
    """Returns the versions of this package, Python and the libraries that compute."""
    found = {name: importlib.metadata.version(name) for name in ("jax", "numpy", "scipy")}
    return {"isocompute_jax": __version__, "python": platform.python_version(), **found}
