"""Bounds of rows hold for any numbers, and sums of rows differ by no more than one row's bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.prep.encode.encoded_table import EncodedTable
from tablepuppet.privacy import clip
from tablepuppet.privacy.noise import MOST_STEPS, gaussian_grid, gaussian_sigma, summed_steps

ANY = st.floats(width=64) | st.sampled_from([5e-324, 1e-168, 1e170, 1.7e308, np.inf, np.nan])


@given(st.lists(st.tuples(ANY, ANY), min_size=1, max_size=5), st.floats(1e-60, 1e60), st.floats(0.0, 1e300))
def test_no_row_is_longer_than_its_bound(rows: list[tuple[float, float]], bound: float, times: float) -> None:
    """Whatever it holds; a row that is not finite becomes zero, one within the bound stays as it is."""
    values = np.array(rows)
    found = clip.clipped(values, bound, times)
    assert np.isfinite(found).all()
    with np.errstate(all="ignore"):
        long = np.array([np.hypot(*row) for row in found]) * times
        was = np.array([np.hypot(*row) for row in values]) * times
    assert (long <= bound * (1 + 1e-8)).all()
    np.testing.assert_array_equal(found[was <= bound * 0.999], values[was <= bound * 0.999])


@pytest.mark.parametrize("size", [1e-320, 1e-170, 1.0, 1e170, 1e300])
def test_lengths_neither_vanish_nor_overflow(size: float) -> None:
    """Also where squares do."""
    rows = np.array([[3.0, 4.0], [0.0, 0.0]]) * size
    np.testing.assert_allclose(clip.lengths_of(rows), [5 * size, 0.0], rtol=1e-3)
    table = EncodedTable(rows, (np.array([-1, 0], np.int32),), (2,))
    np.testing.assert_allclose(table.norms(), [5 * size, 1.0], rtol=1e-3)


@given(st.lists(ANY, min_size=1, max_size=4), st.lists(ANY, min_size=1, max_size=4))
def test_any_sum_has_steps(one: list[float], other: list[float]) -> None:
    """Sums that do not fit stop at the largest that does, and bring no two further apart than their parts are."""
    size = min(len(one), len(other))
    parts = [np.array(one[:size]), np.array(other[:size])]
    total = summed_steps(parts, (size,), 1.0)
    assert (np.abs(total) <= MOST_STEPS).all()
    alone = summed_steps(parts[1:], (size,), 1.0)
    first = summed_steps(parts[:1], (size,), 1.0)
    assert (np.abs(total.astype(object) - alone.astype(object)) <= np.abs(first.astype(object))).all()


@pytest.mark.parametrize("multiplier", [1e-6, 1e-3, 1.0, 1e4])
def test_many_rows_fit_the_grid(multiplier: float) -> None:
    """2^30 rows at their bound are added up without a step lost, however small the noise is."""
    step = gaussian_grid(gaussian_sigma(multiplier, 1.0, 10), 1.0)
    total = summed_steps([np.array([2.0**30])], (1,), step)
    assert total[0] * step == 2.0**30


def test_blocks_cover_all_rows_once() -> None:
    """Fewer rows at a time where rows are wide."""
    for rows, width in ((0, 1), (1, 1), (clip.BLOCK + 1, 1), (50, clip.NUMBERS), (10, 10 * clip.NUMBERS)):
        places = [place for block in clip.blocks(rows, width) for place in range(rows)[block]]
        assert places == list(range(rows))
