"""Mathematical equality: agreement with the graded pairs, and what no grader may do: hang, or depend on its thread."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import json
import pathlib

import pytest

from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import Grading, RewardConfig, get_grader
from isocompute_jax.tasks.graders import math_compare, math_values
from isocompute_jax.tasks.graders.answers import find_answer, without_thoughts
from isocompute_jax.tasks.graders.math import Math, as_written
from tests.tasks.groups import decode, group, rewards_of

PAIRS = pathlib.Path(__file__).parents[1] / "graded_pairs"
HALVES = sorted(PAIRS.glob("*.jsonl"))


def reward(gold: str, text: str) -> float:
    return Math().grade(Problem("p", "", gold, "math"), text).reward


def boxed(gold: str, answer: str) -> float:
    return reward(gold, f"So it is $\\boxed{{{answer}}}$.")


@contextlib.contextmanager
def grading(deadline_s: float):
    engine = Grading(RewardConfig(workers=1, deadline_s=deadline_s), decode)
    with contextlib.closing(engine):
        yield engine


@pytest.mark.slow
@pytest.mark.parametrize("half", HALVES, ids=lambda path: path.stem)
def test_agreement_with_the_graded_pairs(half):
    """98% of verdicts, at most 0.5% of wrong answers paid, and none that hangs; in a worker, as training runs it."""
    pairs = [json.loads(line) for line in half.read_text(encoding="utf-8").splitlines()]
    with grading(deadline_s=20.0) as engine:
        futures = [
            engine.submit(group(pair["completion"]), Problem(pair["id"], "", pair["gold"], "math")) for pair in pairs
        ]
        graded = [future.result() for future in futures]
    assert [one.reward_failures for one in graded] == [0] * len(pairs)
    found = [rewards_of(one)[0] == 1.0 for one in graded]
    wrong = [(pair["id"], verdict) for pair, verdict in zip(pairs, found, strict=True) if verdict != pair["verdict"]]
    paid = [name for name, verdict in wrong if verdict]
    assert len(wrong) <= 0.02 * len(pairs) and len(paid) <= 0.005 * len(pairs), wrong


SAME = [
    ("1/2", r"\dfrac12"), ("1/2", r"{1 \over 2}"), (r"2\frac{1}{2}", "2.5"), (r"-2\frac12", "-5/2"),
    ("1000", r"1{,}000"), ("x = 5", "5"), ("5", "5 cm"), ("0.5 hours", "30 minutes"), ("50\\%", "1/2"),
    ("50\\%", "50"), ("50", "50\\%"), (r"9\pi\text{ cm}^2", r"9\pi"),
    (r"\frac{9\sqrt{3}}{2}\text{ cm}", r"\frac{9\sqrt3}{2}"), ("1, 2", "x = 2 or x = 1"), (r"\pm 3", "3, -3"),
    (r"\{1, 2\}", r"\{2, 1\}"), ("[1, 2)", r"1 \le x < 2"),
    (r"(-\infty, 1) \cup (3, \infty)", r"x > 3 \text{ or } x < 1"), (r"\mathbb{R} \setminus \{2\}", r"x \ne 2"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}"),
    ("(x+1)^2", "x^2+2x+1"), ("y = 2x+3", "2x - y + 3 = 0"), ("2x+3", "f(x) = 3+2x"), (r"2\sin x\cos x", r"\sin(2x)"),
    (r"\frac{\sqrt2}{2}", r"\frac{1}{\sqrt{2}}"), ("2^{100}", "1267650600228229401496703205376"),
    (r"0.1\overline{6}", "1/6"), ("3:2", "6:4"), ("(C)", r"\text{C}"), ("yes", "Yes."), ("2.67", "2.6667"),
    (r"6.02 \times 10^{23}", r"6.02 \cdot 10^{23}\text{ m}"), (r"2 \times 10^3 \text{ m}", r"2 \text{ km}"),
    ("[-3, 3]", r"|x| \le 3"), ("x < -2 or x > 2", "|x| > 2"), (r"x \le -1", r"1 - 2x \ge 3"),
    (r"(-2, -1) \cup (1, 2)", "1 < |x| < 2"), ("(2, 7]", r"x > 2 \text{ and } x \le 7"),
    (r"(2, 4) \cup (4, 7)", r"2 < x < 7, x \ne 4"), (r"x < 1 \text{ or } x > 3", r"x < 1 \text{ and } x > 3"),
    ("x > 1, y > 2", "y > 2, x > 1"),
    (r"\begin{pmatrix} 1 \\ 7 \end{pmatrix}", r"\vec{v} = \begin{pmatrix} 1 \\ 7 \end{pmatrix}"),
    (r"\frac{\sqrt{3}}{2}", r"\cos 30^\circ"), (r"1 + i", r"\sqrt{2}(\cos 45^{\circ} + i\sin 45^{\circ})"),
    ("B", r"\text{The correct answer is (B)}"), ("(E)", r"\textbf{Choice E}"), ("-8", "\u2060-8\ufeff"),
    ("17", "(" * 60 + "17" + ")" * 60), (r"\{1, 2\}", r"\{((1)), {{2}}\}"),
    (r"\frac{3^{200}}{2}", str(3**200 // 2) + ".5"),
    # A name may be an expression in letters.
    ("73", "p+q = 25+48 = 73"), ("30^\\circ", r"\angle ABC = 30^\circ"), (r"\frac{3}{4}", r"\frac{a}{b} = 3/4"),
    ("1/2", r"P(X > 3) = \frac12"), ("4", r"\gcd(a,b) = 4"), ("12", "AB^2 = 12"), ("5 cm", r"a+b = 5 \text{ cm}"),
    ("5", r"AB = BC = 5"), ("7", "3 + 4 = 7"), ("7", "f(3) + f(4) = 7"),
    # Signs within sets and points.
    (r"\{-1, 0, 1\}", r"\{0, \pm 1\}"), ("(1, 2), (-1, 2)", r"(\pm 1, 2)"), ("(1, -1), (-1, 1)", r"(\pm 1, \mp 1)"),
    (r"1, -1, 2, -2", r"\pm 1, \pm 2"), (r"\{1+\sqrt2, 1-\sqrt2\}", r"\{1 \pm \sqrt2\}"),
    # Parts that touch are one.
    ("[1, 3]", r"[1, 2) \cup [2, 3]"), ("(1, 2]", r"(1, 2) \cup \{2\}"),
    (r"[0, \sqrt2]", r"[0, \frac{1}{\sqrt2}) \cup [\frac{\sqrt2}{2}, \sqrt2]"),
    (r"\mathbb{R}", r"(0, \infty) \cup (-\infty, 0]"), (r"x \ge 2", r"x = 2 \text{ or } x > 2"),
    (r"\{1, 2, 3\}", r"\{3\} \cup \{1, 2\}"),
    # Bases.
    ("1100_2", "(1100)_2"), ("1100_2", r"1100_{\text{two}}"), ("1100_2", r"1100_{(2)}"),
    ("1100_2", r"01100 \text{ (base 2)}"), ("FF_{16}", r"\mathrm{FF}_{16}"),
    # Numbers that nobody computes.
    ("9^{9^9}", r"9 \cdot 3^{2 \cdot 9^9 - 2}"), ("10^{10^{10}}", r"2^{10^{10}} \cdot 5^{10^{10}}"),
    (r"\frac{3^{10^9}}{2}", r"\frac{9^{500000000}}{2}"), ("(-2)^{10^9}", "4^{500000000}"),
    ("99999999!", "99999999 !"),
]  # fmt: skip
OTHER = [
    ("3", "3 or 5"), ("5", "x > 5"), ("5", r"\ge 5"), (r"\{1, 2\}", "1"), ("(1, 2)", "(2, 1)"),
    ("(1, 2)", r"\{1, 2\}"), ("[1, 2)", "(1, 2)"), ("x < 3", r"x \le 3"), ("5 cm", "5 m"), ("25 cm^2", "25 cm"),
    (r"\sqrt2", "1.414"), ("1/3", "0.333333"), ("x = 3", "y = 4"), ("3i", "3"), ("-5", "5"),
    ("1010_2", "1010_3"), ("C", "(C) or (D)"), ("2^{1000}", "2^{1001}"), ("5", ""), ("5", r"\frac{1}{}"),
    (r"6 \times 10^{-5} \text{ m}", r"6 \times 10^{-5} \text{ km}"), ("3^2", r"3^3 \text{ cm}"),
    ("[-3, 3]", "|x| < 3"), ("(3, \\infty)", "|x| > 3"), ("(3, \\infty)", "x + 1 > 3"),
    ("(3, \\infty)", "x - 1 > 2"),  # still to be solved
    ("(1, 3)", "|x - 2| < 1"), ("(3, \\infty)", "-x > -3, y > 2"), ("(0, \\infty)", r"x > 0 \text{ and } x \ne 2"),
    ("(1, 3)", r"x > 1 \text{ or } x < 3"),
    (r"\begin{pmatrix} 1 \\ 7 \end{pmatrix}", r"v = \begin{pmatrix} 7 \\ 1 \end{pmatrix}"),
    (r"\cos 30", r"\cos 30^\circ"), (r"\frac{1}{2}", r"\sin 30"), ("B", r"\text{Option A or B}"),
    ("B", r"\text{Option C}"), ("2^{300}", str(2**300 + 1)), ("1/3", "0." + "3" * 300),
    (r"\sqrt{2}", "0" + "(" * 60 + "2" + ")" * 60), ("73", "p+q = 73 = 74"), ("5", "x + 2 = 5"), ("10", "2x = 10"),
    ("5", "-x = 5"), ("8", "3 + 4 = 8"), ("13", "(3)(4) = 13"), ("11", r"\binom{5}{2} = 11"), ("x + y = 3", "3"),
    ("x + y = 3", "a + b = 3"), ("2x + 3", "2y = 2x + 3"), ("5", "p + q = 5, p - q = 3"), ("5", r"p + q = \pm 5"),
    (r"\{1\}", r"\{\pm 1\}"), (r"(\pm 1, \pm 1)", r"(\pm 1, \mp 1)"), ("(1, 1), (-1, -1)", r"(\pm 1, \mp 1)"),
    ("[1, 3]", r"[1, 2) \cup (2, 3]"), ("(1, 2)", r"(1, 2) \cup \{2\}"), ("[1, 3]", r"[1, 2), [2, 3]"),
    ("[0, 1]", r"[0, 0.333) \cup [1/3, 1]"), ("(1, 3)", "x > 1, y < 3"), ("x > 1, y > 2", "y > 1, x > 2"),
    ("x = 1, y = 2", "x = 2, y = 1"), (r"(-\infty, \infty)", r"x + 1 > 2 \text{ and } x < 5"),
    ("1100_2", r"1100_{\text{three}}"), ("1100_2", "12"), ("a_{12}", "A_{12}"), ("9^{9^9}", "(9^9)^9"),
    ("9^{9^9}", "9^{9^9} + 1"), ("9^{9^{9^9}}", "9^{(9^9)^9}"), ("9^{9^{9^9}}", "3^{9^{9^9}}"),
    ("(-2)^{10^9}", "-2^{10^9}"), ("99999999!", "99999999"), (r"\binom{10^9}{10^8}", r"\frac{10^9}{10^8}"),
    (r"x \equiv 3 \pmod 7", r"x \neq 3 \pmod 7"),
]  # fmt: skip


CONDITIONS = (
    r"\text{ if }", r"\text{, if }", r"\text{ only if }", r"\text{ iff }", r"\text{ when }", r"\text{ whenever }",
    r"\text{ unless }", r"\text{ where }", r"\text{ given }", r"\text{ provided that }", r"\text{ assuming }",
    r"\iff ", r"\implies ", r"\Leftrightarrow ", r"\Rightarrow ", "⟹",
)  # fmt: skip


@pytest.mark.parametrize("condition", CONDITIONS)
def test_an_answer_under_a_condition_on_itself_is_none(condition):
    for gold, name in (("3", "x"), (r"\frac{1}{2}", "P"), ("(1, 2)", "(x, y)"), ("2n", "a_n")):
        assert boxed(gold, f"{name} = {gold}") == 1.0
        assert boxed(gold, f"{name} = {gold}{condition}{name} = {gold}") == 0.0
        assert boxed(gold, f"{gold}{condition}{name} = {gold}") == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is 3 if x = 3.", 0.0), ("The answer is $x = 3$ if $x = 3$.", 0.0),
        ("#### 3 unless it is 4", 0.0), ("So $x = 3$ if $x = 3$.", 0.0),
        (r"So it is $\boxed{\text{if } x = 3 \text{ then } x = 3}$.", 0.0),
        (r"So it is $\boxed{3 \text{ if } a > 0, 4 \text{ otherwise}}$.", 0.0),
        ("The answer is 3. If you need more, ask.", 1.0), ("If each of the 3 has 1, there are 3.", 1.0),
        ("We find that if $x > 0$ then $x = 3$.", 1.0), (r"If $x > 0$, it is $\boxed{3}$, as is easily seen.", 1.0),
    ],
)  # fmt: skip
def test_conditions_in_sentences(text, expected):
    assert reward("3", text) == expected


def test_a_gold_answer_may_have_a_condition():
    gold = r"3 \text{ if } n \text{ is even}, 4 \text{ if } n \text{ is odd}"
    assert boxed(gold, gold) == 1.0 and boxed(gold, "3") == 0.0


@pytest.mark.parametrize(("gold", "answer", "expected"), [(*c, 1.0) for c in SAME] + [(*c, 0.0) for c in OTHER])
def test_answers_by_hand(gold, answer, expected):
    assert boxed(gold, answer) == expected
    assert boxed(gold, gold) == 1.0


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{3} and so \boxed{5}", "5"), (r"$\boxed{3}$ and $\boxed{5}$", "3, 5"),
        (r"first \boxed{3}. <think>\boxed{4}</think> It is 7. The answer is 6.", "6."), ("#### 12\nbye", "12"),
        ("so $x = 3$, and\nthe area is $A = 4$.", "A = 4"), (r"\\boxed{7}", "7"), (r"\boxed 7", "7"),
        (r"Thus $p = \boxed{4}$, $q = \boxed{4}$ and $r_1 = \boxed{-1}$.", "4, 4, -1"),
        ("$p = \\boxed{4}$.\nThen $q = \\boxed{9}$.", "9"), ("We have $k = 3$. Wait, let me see", None),
    ],
)  # fmt: skip
def test_where_the_answer_is_found(text, answer):
    found = find_answer(text)
    stated = found if found.place != "end" else found._replace(text=without_thoughts(found.text))
    assert as_written(stated) == answer


@pytest.mark.parametrize(
    ("gold", "text", "expected"),
    [
        ("42", "Therefore the total is 42.", 1.0), ("42", "So we get $6 \\cdot 7 = 42$.", 1.0),
        ("42", "#### 42", 1.0), ("1/2", "The answer is $\\frac{1}{2}$.", 1.0),
        ("x^2+1", "**Final Answer:** $f(x) = x^2 + 1$", 1.0), ("1, 2", "The answer is $1$ and $2$.", 1.0),
        ("42", "The answer is:\n\n$$42$$", 1.0), ("B", "The answer is (B).", 1.0), ("yes", "The answer is yes.", 1.0),
        ("yes", "The answer is no.", 0.0), ("42", "The answer is not 42.", 0.0),
        ("42", "The answer is 42 or 43.", 0.0), ("5", "There are 5 apples and 3 pears.", 0.0), ("5", "", 0.0),
        ("3", "Let me try $k = 3$. Perhaps $k = 3$ is too small, so let me try", 0.0),
        ("3", "Suppose it were 4. That fails. So there are 3 of them.", 1.0),
    ],
)  # fmt: skip
def test_texts_without_a_box(gold, text, expected):
    assert reward(gold, text) == expected


def test_off_the_main_thread_nothing_changes():
    """math-verify's own time limits are signals, which other threads cannot have: there it pays nothing, in silence."""
    cases = [("1/2", "0.5"), ("x^2+2x+1", "(x+1)^2"), (r"\{1, 2\}", "1")]
    in_main = [boxed(*case) for case in cases]
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        assert list(thread.map(lambda case: boxed(*case), cases)) == in_main == [1.0, 1.0, 0.0]


@pytest.mark.slow
def test_what_hangs_is_killed_and_counted():
    """Nothing in the text says that this sum has ten million terms and no closed form."""
    hangs = r"\boxed{\sum_{a=1}^{10^{7}} \sin(a^2)}"
    with grading(deadline_s=2.5) as engine:
        found = engine.submit(group(hangs, r"\boxed{5}"), Problem("p", "", "5", "math")).result()
    assert rewards_of(found) == [0.0, 1.0]
    assert found.reward_failures == 1


@pytest.mark.parametrize("text", [
    "9^{9^{9^9}}", "10^{10^{10}}", "99999999!", "3!!!!!!!!!", "{" * 500 + "7" + "}" * 500, "(10^{9})!",
    "(2^{90})^{(2^{90})}", r"\binom{10^9}{10^8}", r"\frac{1}{7^{(9^9)}}", "((9!)!)!", r"2^{5\cdot 10^7}",
    "x^" * 300 + "2", r"\sqrt" * 200 + "2", "2" + "^{2}" * 300, "(1,(" * 400 + "1" + "))" * 400,
    r"\sin(" * 28 + "x" + ")" * 28,
])  # fmt: skip
def test_what_would_take_for_ever_is_refused_unread(text):
    with pytest.raises(math_values.NotUnderstoodError):
        math_values.parse(text)
    assert not math_compare.same_answer("5", text)


@pytest.mark.parametrize("text", [
    "2024!", "10^{2024}", "2^{2^{10}}", r"\binom{1000}{500}", r"(1+x)^{10}", r"\prod_{i=1}^{1000} i",
    r"\sum_{k=2}^{10^7} k",
])  # fmt: skip
def test_what_people_write_is_small_enough(text):
    assert math_values.is_bounded(text)


@pytest.mark.slow
def test_no_gold_answer_of_the_pairs_is_refused_at_load():
    counts = collections.Counter()
    for half in HALVES:
        for line in half.read_text(encoding="utf-8").splitlines():
            counts[Math().fault(Problem("p", "", json.loads(line)["gold"], "math"))] += 1
    assert set(counts) == {None}
    assert "holds no answer" in (Math().fault(Problem("p", "", "$ $", "math")) or "")


@pytest.mark.parametrize(
    ("gold", "completion", "right"),
    [
        ("3, 5", r"\(\boxed{3}\) and \(\boxed{5}\)", True), ("15", r"\(\boxed{14}\) or \(\boxed{15}\)", False),
        ("5", r"\[\boxed{3}\] or \[\boxed{5}\]", False), ("5", r"$\boxed{3}$ or $\boxed{5}$", False),
        ("5", "Thus $x=3$ or $x=5$.", False), ("5", "So it is 3 or 5.", False), ("3, 5", "Thus $x=3$ or $x=5$.", True),
        ("5", "One or more is needed, so it is $5$.", True), ("12", "A, B or C has 4, so there are 12.", True),
        ("12:00", r"\boxed{1:00}", False), ("3:00 PM", r"\boxed{4:00 PM}", False), ("3:00", r"\boxed{3:00}", True),
        ("2:4", r"\boxed{1:2}", True), ("0:3", r"\boxed{0:3}", True), ("3:00 PM", r"\boxed{3:00 PM}", True),
        (r"\frac{1}{0}", r"\boxed{\frac{2}{0}}", False), ("16", r"\boxed{16_7}", False), ("16_7", r"\boxed{16}", True),
        ("16", r"\boxed{16_{10}}", True), ("5", r"\fbox{5}", True), ("5", r"\boxed 5", True), ("5", r"\fbox 5", True),
        ("5", r"<think>\boxed{6}</think>So it is \boxed{5}", True),
    ],
)  # fmt: skip
def test_brackets_hedges_times_and_bases(gold, completion, right):
    assert bool(Math().grade(Problem("p", "q", gold, "math"), completion).reward) is right


@pytest.mark.parametrize("name", ["exact", "numeric", "math"])
def test_what_was_thought_is_no_answer(name):
    """A box in a thought neither pays nor stands before what is said afterwards; `\\fbox` is a box too."""

    def grade(text):
        return get_grader(name).grade(Problem("p", "q", "5", name), text).reward

    assert grade(r"<think>\boxed{5}</think>The answer is 6.") == 0.0
    assert grade(r"<think>try \boxed{6}</think>The answer is 5.") == 1.0
    assert grade(r"<think>maybe 6</think>\fbox{5}") == grade(r"so \boxed 5") == 1.0
