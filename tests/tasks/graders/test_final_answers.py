"""Completions as models write them, and what each grader pays: where the answer stands, and what stands around it."""

from __future__ import annotations

import pytest

from isocompute_jax.records.rollout import Problem
from isocompute_jax.tasks import get_grader

BOTH = [
    # where it stands
    ("5", r"So the answer is \(5\).", 1), ("5", r"Thus \(x = 5\).", 1), ("5", r"\[ 12 - 7 = 5 \]", 1),
    ("5", "\\[\n12 - 7 = 5\n\\]", 1), ("5", "$$x = 5$$", 1), ("5", r"\[\boxed{5}\]", 1), ("5", r"\fbox{5}", 1),
    ("5", r"\boxed 5", 1), ("5", r"$\boxed{ 5 }$.", 1), ("5", r"\boxed{\boxed{5}}", 1), ("5", r"\boxed{\text{5}}", 1),
    ("5", r"\boxed{\mathbf{5}}", 1), ("5", r"\boxed{$5$}", 1), ("5", r"\boxed{\displaystyle 5}", 1),
    ("5", "**Final Answer:** 5", 1), ("5", "The final answer is: $\\boxed{5}$", 1), ("5", "Answer: **5**", 1),
    ("5", "The answer is $5$.", 1), ("5", "The answer is\n\n5", 1), ("5", "#### 5\n", 1), ("5", "####5", 1),
    ("5", r"\boxed{4} is wrong. Correct is \boxed{5}.", 1), ("5", r"\boxed{5} is wrong. Correct is \boxed{4}.", 0),
    ("5", "The answer is 4. No: the answer is 5.", 1), ("5", "#### 5\nThe answer is 4", 0),
    # thoughts
    ("5", r"<think>\boxed{5}</think>The answer is 6.", 0), ("5", r"<think>try \boxed{6}</think>The answer is 5.", 1),
    ("5", "<think>It is 6.</think>\n\nIt is 5.", 1), ("5", "<think>It is 5.</think>", 0),
    ("5", "It is 5. Wait, let me check 6", 0),
    # hedges
    ("5", r"$\boxed{3}$ or $\boxed{5}$", 0), ("5", r"\[\boxed{3}\] or \[\boxed{5}\]", 0),
    ("15", r"\(\boxed{14}\) or \(\boxed{15}\)", 0), ("5", "Thus $x=3$ or $x=5$.", 0), ("5", "It is 3 or 5.", 0),
    ("5", r"\boxed{3 \text{ or } 5}", 0), ("5", r"\boxed{3, 5}", 0), ("5", "The answer is 5 or 6.", 0),
    ("5", "The answer is $5$ or 6.", 0), ("5", "The answer is either 5 or 6.", 0), ("5", "#### 5, or 6", 0),
    ("5", "The answer is not 5.", 0), ("5", "The answer is not $5$.", 0), ("5", r"\boxed{\text{not } 5}", 0),
    ("5", "The answer is 5 if x = 5.", 0), ("5", "#### 5 and 6", 0), ("5", r"\boxed{5 \text{ and } 6}", 0),
    # words, steps and names around it
    ("42", "The answer is 42, and she is happy.", 1), ("42", "#### 42 I checked it and it holds.", 1),
    ("42", "The answer is 42 because 6 times 7 makes that.", 0),
    ("42", "The answer is 42, since it is what we want.", 1), ("42", "The answer is 42. It is 6 times 7.", 1),
    ("42", "The answer is 42, but it could be 43.", 0), ("42", "The answer is 42, and she has 3 apples left.", 1),
    ("42", r"\boxed{42, x}", 0), ("42", "The answer is 42, a number that is even.", 1), ("42", "#### 42, and 43", 0),
    ("42", "The answer is 42, so it is 42 or 43.", 0),
    ("42", "The answer is 42 dollars.", 1), ("42", "The answer is 42 dollars, so John has 8 left.", 1),
    ("42", "The answer is 42! That was fun.", 0), ("20", "The answer is 15 + 5 = 20.", 1),
    ("20", "She has 40 / 2 = <<40/2=20>>20 apples.", 1), ("20", "#### <<40/2=20>>20", 1),
    ("20", r"\boxed{15 + 5 = 20}", 1), ("20", r"\boxed{4 \times 5 = 20}", 1), ("20", r"\boxed{n = 4 \cdot 5 = 20}", 1),
    ("20", r"\boxed{19 = 20}", 0), ("20", r"\boxed{-x = 20}", 0), ("20", r"\boxed{2x = 20}", 0),
    ("20", r"\boxed{x + 1 = 20}", 0), ("20", r"\boxed{20 = x + 1}", 0), ("20", r"\boxed{x \geq 20}", 0),
    ("20", r"\boxed{x > 20}", 0), ("20", r"\boxed{x \neq 20}", 0), ("20", r"\boxed{f(x) = 20}", 1),
    ("20", r"\boxed{x_1 = 20}", 1), ("20", r"\boxed{AB = 20}", 1), ("20", r"\boxed{p + q = 20}", 1),
    ("4", "3+1 is 4", 1), ("20", "So there are 20 apples left.", 1), ("20", "So $20$ apples are left.", 1),
    ("20", "Total: $20", 1), ("20", r"It costs \$20.", 1), ("20", "So it's 20%.", 1),
    # as a fresh reader wrote them
    ("-5", "The answer is negative 5.", 1), ("5", "The answer is negative 5.", 0), ("-5", "The answer is minus 5.", 1),
    ("5", "The answer isn't 5", 0), ("5", "It can't be 5", 0), ("5", "The answer cannot be 5.", 0),
    ("5", "It is never 5", 0), ("5", "The answer is anything but 5", 0), ("5", "answer: under 5", 0),
    ("5", "answer: below 5", 0), ("5", "The answer exceeds 5", 0), ("5", "The answer is twice 5", 0),
    ("5", "answer: double 5", 0), ("5", "answer: the reciprocal of 5", 0), ("5", "answer: the cube of 5", 0),
    ("5", "answer: twenty 5", 0), ("5", "The answer is 5 bn", 0), ("5", "answer: 5 Mio.", 0),
    ("5", "answer: 5 lakh", 0), ("5", "answer: £5m", 0), ("5", "answer: 5 tenths", 0), ("5", "answer: 5 squared", 0),
    ("5", r"\boxed{5 \text{ squared}}", 0), ("5", "答案是 5", 1), ("5", "所以\uff0c她有5个苹果。", 1),
    ("5", "Итак, получаем 5.", 1), ("5", "Also hat sie 5 Äpfel.", 1), ("5", "답은 5입니다", 1), ("5", "Answer: 5。", 1),
    ("5", "答案不是 5", 0), ("5", "The result is `5`.", 1), ("5", "| Total | 5 |", 1),
    ("5", "The answer is 5 (five).", 1),
    ("5", "The answer is 5 — done", 1), ("5", "The answer is about 5", 1), ("5", "answer: ≈ 5", 1),
    ("5", "The answer is approximately 5.", 1), ("10/3", r"\boxed{x = 10/3 \approx 3.33}", 1),
    # spellings of one number
    ("1/2", r"\boxed{\frac12}", 1), ("1/2", r"\boxed{\tfrac12}", 1), ("1/2", r"\boxed{\dfrac{1}{2}}", 1),
    ("1/2", r"\boxed{1/2}", 1), ("1/2", r"\boxed{.5}", 1), ("1/2", r"\boxed{\frac{2}{4}}", 1),
    ("-1/2", r"\boxed{-\frac12}", 1), ("-1/2", r"\boxed{\frac{-1}{2}}", 1), ("-1/2", r"\boxed{\frac{1}{-2}}", 1),
    ("2.5", r"\boxed{2\frac{1}{2}}", 1), ("2.5", r"\boxed{2\frac12}", 1), ("2.5", "The answer is 2 1/2.", 1),
    ("2.5", "2½", 1), ("-2.5", r"\boxed{-2\frac12}", 1), ("2\\frac{1}{2}", r"\boxed{5/2}", 1),
    ("\\frac12", r"\boxed{0.5}", 1), ("1000", r"\boxed{1{,}000}", 1), ("1000", r"\boxed{1\,000}", 1),
    ("1000", r"\boxed{1,000}", 1), ("1000000", r"\boxed{1 000 000}", 1), ("1000", r"\boxed{10,00}", 0),
    ("1000", r"\boxed{10^3}", None), ("1500", r"\boxed{1.5 \times 10^3}", 1), ("-5", r"\boxed{- 5}", 1),
    ("-5", "The answer is \u22125.", 1), ("5", r"\boxed{+5}", 1), ("5", r"\boxed{5.}", 1), ("5", r"\boxed{5.00}", 1),
    ("5", r"\boxed{05}", 1), ("-5", r"-\boxed{5}", 0), ("25", r"\boxed{5}^2", 0),
    # units
    (r"16\text{ cm}^2", r"\boxed{16\text{ cm}^2}", 1), (r"16\text{ cm}^2", r"\boxed{16}", 1),
    (r"5 \mathrm{~cm}", r"\boxed{5 \mathrm{~cm}}", 1), ("5 cm", r"\boxed{5\,\text{cm}}", 1),
    ("5", r"\boxed{5\text{ cm}}", 1), ("5", r"\boxed{5^\circ}", 1), ("90", r"\boxed{90^{\circ}}", 1),
    ("5", r"\boxed{5 \text{ apples}}", 1), ("60", r"\boxed{60\text{ km/h}}", 1), ("18", r"\boxed{\$18}", 1),
    ("18", r"\boxed{18 \text{ dollars}}", 1), ("18.50", r"\boxed{\$18.50}", 1), ("-18", r"\boxed{-\$18}", 1),
    ("5", r"\boxed{5x}", 0), ("5", r"\boxed{5i}", 0),
    # percent
    ("60%", "#### 60", 1), ("60", "#### 60%", 1), ("60", r"\boxed{60\%}", 1), ("60%", r"\boxed{0.6}", 1),
    ("0.6", r"\boxed{60\%}", 1), ("60\\%", r"\boxed{60\%}", 1), ("60", "60 percent", 1), ("0.5", r"\boxed{0.5\%}", 0),
    ("60%", r"\boxed{6}", 0), ("0.6", r"\boxed{60}", 0),
]  # fmt: skip
MATH = [
    ("3, 5", r"\(\boxed{3}\) and \(\boxed{5}\)", 1), ("3, 5", "Thus $x=3$ or $x=5$.", 1), ("12:00", r"\boxed{1:00}", 0),
    ("3:00 PM", r"\boxed{4:00 PM}", 0), (r"\frac{1}{0}", r"\boxed{\frac{2}{0}}", 0), ("16", r"\boxed{16_7}", 0),
    (r"9\pi\text{ cm}^2", r"\boxed{9\pi}", 1), (r"9\pi", r"\boxed{9\pi\text{ cm}^2}", 1),
    (r"\frac{9\sqrt{3}}{2}\text{ cm}", r"\boxed{\frac{9\sqrt{3}}{2}}", 1),
    (r"2\sqrt{5}\text{ m}", r"\boxed{2\sqrt5}", 1), (r"9\pi\text{ cm}^2", r"\boxed{9\pi\text{ m}^2}", 0),
    (r"9\pi", r"\boxed{9}", 0), (r"\sqrt{2}", "It is $\\sqrt2$.", 1),
    (r"\sqrt{2}", "The answer is \\(\\sqrt{2}\\), which is about 1.41.", 1), ("1000", r"\boxed{10^3}", 1),
    ("f''(x)", r"\boxed{f'(x)}", 0), ("f'(2)", r"\boxed{f(2)}", 0), ("y''=-y", r"\boxed{y'=-y}", 0),
    ("A'", r"\boxed{A}", 0), ("f'(x)", r"\boxed{f'(x)}", 1), (r"p\land q", r"\boxed{p\lor q}", 0),
    (r"p\land q", r"\boxed{p \wedge q}", 1), ("A^T", r"\boxed{A}", 0), ("A^TA", r"\boxed{A^2}", 0),
    (r"A^{\top}", r"\boxed{A^T}", 1), ("x^TAx", r"\boxed{x^2A}", 0),
    (r"\vec u\times\vec v", r"\boxed{\vec u\cdot\vec v}", 0),
    (r"\vec{u}\times\vec{v}", r"\boxed{\vec{v}\times\vec{u}}", 0),
    (r"\mathbf{u}\times\mathbf{v}", r"\boxed{\mathbf{v}\times\mathbf{u}}", 0),
    (r"25^\circ C", r"\boxed{25^\circ F}", 0), (r"25^\circ C", r"\boxed{25\text{ K}}", 0),
    (r"25^\circ C", r"\boxed{25}", 1), (r"25^\circ C", r"\boxed{25^{\circ}\text{C}}", 1),
    ("1, 3, 5, ...", r"\boxed{1,3,5}", 0), ("1,3,5", r"\boxed{1, 3, 5, ...}", 0),
    (r"1, 3, 5, \ldots", r"\boxed{1, 3, 5, ...}", 1), ("2", r"\boxed{12 \mod 5}", 1),
    (r"{5 \choose 2}", r"\boxed{10}", 1), ("(1+r)^T", r"\boxed{1+r}", 0), ("x^2+1", "The answer is not $x^2+1$.", 0),
    ("8", r"\boxed{3 + 4 = 8}", 0),
]  # fmt: skip
EXACT = [
    ("Paris", r"\boxed{\text{Paris}}", 1), ("Paris", 'Answer: "Paris"', 1), ("Paris", "Answer: `Paris`", 1),
    ("日本", "Answer: 日本。", 1),
    ("5", r"<think>\boxed{5}</think>The answer is 6", 0), ("5", r"$\boxed{3}$ or $\boxed{5}$", 0),
    ("Paris", r"\fbox{Paris}", 1), ("Paris", "The answer is Paris.", 1), ("3, 5", r"\boxed{3}, \boxed{5}", 1),
]  # fmt: skip
CASES = [
    *((task, *case) for case in BOTH for task in ("numeric", "math")),
    *(("math", *case) for case in MATH),
    *(("exact", *case) for case in EXACT),
]


@pytest.mark.parametrize(("task", "gold", "completion", "right"), CASES)
def test_what_is_paid(task, gold, completion, right):
    grader, problem = get_grader(task), Problem("p", "q", answer=gold, task=task)
    assert grader.fault(problem) is None
    if right is not None:
        assert grader.grade(problem, completion).reward == right
