"""The learning rate against the paper's formula."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from txport.training.run.schedule import SCHEDULES, constant, cooldown, noam


@given(st.integers(1, 10**6), st.integers(1, 20_000), st.sampled_from([64, 256, 512, 1024]), st.floats(0.1, 4))
def test_noam_is_the_formula_of_the_paper(step: int, warmup: int, d_model: int, factor: float) -> None:
    """Vaswani et al. (2017), equation 3, with the factor that implementations put before it."""
    paper = factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
    assert noam(step, factor * (d_model * warmup) ** -0.5, warmup) == pytest.approx(paper, rel=1e-9)


def test_noam_peaks_at_the_end_of_the_warmup() -> None:
    rates = [noam(step, 2e-3, 100) for step in range(1, 1_000)]
    assert max(rates) == rates[99] == 2e-3


def test_a_constant_rate_follows_its_warmup() -> None:
    assert [constant(step, 0.005, 1) for step in (1, 2, 10**6)] == [0.005] * 3
    assert [constant(step, 0.004, 4) for step in range(1, 7)] == pytest.approx([0.001, 0.002, 0.003, *[0.004] * 3])
    assert {"inverse_sqrt": noam, "constant": constant} == SCHEDULES


@pytest.mark.parametrize(
    ("progress", "share", "factor"),
    [(0, 0, 1), (1, 0, 1), (0, 0.2, 1), (0.8, 0.2, 1), (0.9, 0.2, 0.5), (1, 0.2, 0), (1.5, 0.2, 0), (0.5, 1, 0.5)],
)
def test_cooldown(progress: float, share: float, factor: float) -> None:
    assert cooldown(progress, share) == pytest.approx(factor)
