"""What a step of GRPO is worth, without a model: from the solve rates of problems, the group size and the rate alone.

`signal` is one group: how hard it pushes. `exchange` is one problem by itself: how the group size and the number of
steps buy each other, and what many problems that share features do, in expectation. `runs` is a stochastic model of
whole runs, and `forecast` asks it for n*(C). It needs none of the training rooms.
"""

from isocompute_jax.allocation.estimator import group_signals as group_signals
from isocompute_jax.theory.exchange import Rule as Rule
from isocompute_jax.theory.exchange import even_kernel as even_kernel
from isocompute_jax.theory.exchange import evenness as evenness
from isocompute_jax.theory.exchange import late_constant as late_constant
from isocompute_jax.theory.exchange import solve_rates as solve_rates
from isocompute_jax.theory.exchange import suboptimality as suboptimality
from isocompute_jax.theory.forecast import ExpectedCurves as ExpectedCurves
from isocompute_jax.theory.forecast import Question as Question
from isocompute_jax.theory.forecast import forecast as forecast
from isocompute_jax.theory.forecast import question_about as question_about
from isocompute_jax.theory.pass_rates import MEASURED as MEASURED
from isocompute_jax.theory.pass_rates import read_pass_rates as read_pass_rates
from isocompute_jax.theory.pass_rates import smoothed as smoothed
from isocompute_jax.theory.runs import Constants as Constants
from isocompute_jax.theory.signal import log_share_of_groups as log_share_of_groups
from isocompute_jax.theory.signal import signal_moments as signal_moments
