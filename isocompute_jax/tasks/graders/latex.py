# ruff: noqa: RUF001 (the signs that people write are what this file is about)
r"""One spelling of what people write: `\dfrac12`, `½` and `frac{1}{2}` all become `\frac{1}{2}`."""

from __future__ import annotations

import re

from isocompute_jax.tasks.graders.answers import plain_unicode
from isocompute_jax.tasks.graders.math_values import without_doubled_brackets

MAX_CHARS = 2000
"""A longer answer is no answer."""

_SYMBOLS = str.maketrans({
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\leq ", "≥": r"\geq ", "≠": r"\neq ", "×": r"\times ", "÷": r"\div ",
    "·": r"\cdot ", "⋅": r"\cdot ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "°": r"^\circ ",
    "±": r"\pm ", "√": r"\sqrt ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "≈": r"\approx ", "∨": r"\lor ",
    "∧": r"\land ", "→": r"\to ", "⟨": r"\langle ", "⟩": r"\rangle ", "ℝ": r"\mathbb{R}", "‖": "|", "′": "'",
    "\u2062": "", "〈": r"\langle ", "〉": r"\rangle ", "＄": "$",
})  # fmt: skip

_REPLACED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\\(?:displaystyle|textstyle|limits|nolimits|left|right|[bB]igg?[lr]?)(?![A-Za-z])\.?", ""),
        (r"\\(?:rm|bf|it|normalsize|large)(?![A-Za-z])", ""),
        (r"\\(?:ldots|cdots|dots)(?![A-Za-z])|\.\.\.|…", r"\\dots "),
        (r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}", r"\\binom{\1}{\2}"),
        # The parser takes a transpose for nothing.
        (
            r"(?<=[A-Za-z)\]}])\s?\^\s?(?:\{\s?(?:T|\\top|\\intercal)\s?\}|T|\\(?:top|intercal)(?![A-Za-z]))",
            r"^{\\Upsilon}",
        ),
        (r"(?:(?<=\bis )|(?<==)|(?<== )|^)(?:negative|minus) (?=\.?\d)|\bnegative (?=\.?\d)", "-"),
        (r"\\(?:,|;|:|!|>|quad(?![a-z])|qquad(?![a-z])|hspace\{[^{}]*\}|hfill)|\\ |~", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}", r"\\frac{\1}{\2}"),
        (r"(?<=\d)\s?[xX]\s?(?=10\s?\^)", r"\\times "),
        (r"\\(?:d?dot|bar)\s?\{(\d+)\}(?!.*\\dot)", r"\\overline{\1}"),
        (r"(?<![\\A-Za-z])frac\s?\{", r"\\frac{"),
        (r"(?<![\\A-Za-z])sqrt", r"\\sqrt"),
        (r"\\(?:lbrace|\{)", r"\\{"),
        (r"\\(?:rbrace|\})", r"\\}"),
        (r"\\(?:lvert|rvert|vert|mid)(?![A-Za-z])", "|"),
        (r"\\(?:le|leqslant|leqq)(?![A-Za-z])|<=|=<", r"\\leq "),
        (r"\\(?:ge|geqslant|geqq)(?![A-Za-z])|>=|=>", r"\\geq "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\ne(?![A-Za-z])|!=|\\not\s?=", r"\\neq "),
        (r"\\(?:varnothing|O)(?![A-Za-z])", r"\\emptyset "),
        (r"\\(?:degree|deg)(?![A-Za-z])|\^\s?\{?\s?\\circ\s?\}?", r"^\\circ "),
        (r"\\(?:wedge|land)(?![A-Za-z])(?=.*[<>=\d])", r" and "),
        (r"\\(?:vee|lor)(?![A-Za-z])(?=.*[<>=\d])", r" or "),
        (r"\\wedge(?![A-Za-z])", r"\\land "),  # of statements, which an algebra of numbers does not know
        (r"\\vee(?![A-Za-z])", r"\\lor "),
        (r"\\(?:imath|mathrm\s?\{i\}|mathbf\s?\{i\}|text\s?\{i\})", "i"),
        (r"\\mathrm\s?\{e\}|\\text\s?\{e\}", "e"),
        (r"\*\*(?=[\d({-])", "^"),
        (r"(?<![A-Za-z\\])(?:infinity|Infinity|inf|oo)(?![A-Za-z])", r"\\infty "),
        (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi "),
        (r"(?<![A-Za-z\\])(sin|cos|tan|cot|sec|csc|ln|log|exp|arcsin|arccos|arctan)(?=\s?[(^0-9x])", r"\\\1"),
        (r"(?<![A-Za-z\\])theta(?![A-Za-z])", r"\\theta "),
        (r"\\pm\s?(?=[^\s])", r"\\pm "),
        # Arguments without braces, or with round ones.
        (r"\\frac\s?(\d)\s?(\d)(?!\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s?(\d)\s?(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s?([\dA-Za-z])\s?\{", r"\\frac{\1}{"),
        (r"\\frac\s?(\{[^{}]*\})\s?([\dA-Za-z])", r"\\frac\1{\2}"),
        (r"\\frac\s?\(([^()]*)\)\s?\(([^()]*)\)", r"\\frac{\1}{\2}"),
        (r"\\sqrt\s?\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\sqrt\s?(\d+(?:\.\d+)?|[A-Za-z])", r"\\sqrt{\1}"),
        (r"\^\s?(-?\d{2,}|-\d)", r"^{\1}"),
        (r"\^\s?\((-?[\w./+-]+)\)", r"^{\1}"),
        (r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([-+]?\d+)(?![\w.])", r"\1\\times 10^{\2}"),
    )
)  # fmt: skip
_WRAPPER = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mathsf|mbox|hbox|operatorname\*?|boldsymbol|bm|"
    r"boxed|fbox|underline|emph|ensuremath)\s?\{([^{}]*)\}"
)
_VECTOR = re.compile(r"\\(?:mathbf|boldsymbol|bm)\s?\{?([A-Za-z])\}?(?=\s?\\(?:times|cdot))")
_MATH = re.compile(r"(?<!\\)(?:\$\$?|\\\(|\\\)|\\\[|\\\])")
_DOUBLED = re.compile(r"\\\\+(?=[A-Za-z{}])")
_ROW = re.compile(r"\\\\(?:\[[^\]]{0,20}\])?")
_THIN = re.compile(r"(?<=\d)\\[,;:](?=\d{3}(?!\d))")
_CURRENCY = re.compile(r"(-?)(\\\$|(?<!\$)\$(?=[\d.,]+$)|[€£¥])\s?(\d[\d.,]*)(?![A-Za-z\d])")
_CURRENCIES = {"$": "dollars", "€": "euros", "£": "GBP", "¥": "yen"}


def clean(text: str) -> str:
    """An answer in one spelling: wrappers of text are opened, delimiters of formulas and outer white space gone.

    It takes time linear in the text; what is not understood stays as it is.
    """
    text = plain_unicode(text[:MAX_CHARS]).translate(_SYMBOLS)
    text = _ROW.sub("\0", text) if r"\begin" in text else _DOUBLED.sub(r"\\", text)
    text = text.replace(r"\%", "%").strip().removeprefix("**").removesuffix("**")
    text = _THIN.sub("", text)
    text = _CURRENCY.sub(lambda found: f" {found[1]}{found[3]} {_CURRENCIES[found[2][-1]]} ", text)
    text = _VECTOR.sub(r"\\vec{\1}", _MATH.sub(" ", text).replace("\\$", " "))
    for _ in range(3):  # nested wrappers
        text = _WRAPPER.sub(r" \1 ", text)
    for pattern, new in _REPLACED:
        text = pattern.sub(new, text)
    text = without_doubled_brackets(text)
    return re.sub(r"\s+", " ", text).strip().rstrip(".,;: ").lstrip(":,; ").replace("\0", r"\\")
