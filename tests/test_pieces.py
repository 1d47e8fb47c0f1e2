"""Work on pieces of the joined rows: every piece once, results in order, errors told."""

from __future__ import annotations

import threading

import pytest

from tablepuppet.pieces import on_all_cores, over_pieces, pieces


@pytest.mark.parametrize(("rows", "width", "size"), [(0, 1, 4), (1, 1, 4), (9, 1, 4), (9, 3, 4), (9, 100, 4)])
def test_pieces_cover_all_rows_once(rows: int, width: int, size: int) -> None:
    """The slices are the rows in order, none empty, and each holds a row at least however wide it is."""
    found = pieces(rows, width, size)
    assert [row for part in found for row in range(part.start, part.stop)] == list(range(rows))
    assert all(1 <= part.stop - part.start <= max(1, size // width) for part in found)


def test_results_come_in_order() -> None:
    """Whichever thread takes a piece, what it made stands where the piece does."""
    assert on_all_cores(lambda item: item * item, range(1000)) == [item * item for item in range(1000)]
    assert over_pieces(lambda part: part.start, 3) == [(slice(0, 3), 0)]
    assert over_pieces(lambda part: part.start, 0) == []


def test_errors_of_any_thread_are_raised() -> None:
    """A piece that fails fails the whole, also on another thread than the one that asked."""
    asked = threading.get_ident()

    def fail(item: int, here: bool) -> None:
        if (threading.get_ident() == asked) == here and item > 10:
            raise ValueError("a piece failed")
        threading.Event().wait(0.001)

    for here in (True, False):
        with pytest.raises(ValueError, match="a piece failed"):
            on_all_cores(lambda item, here=here: fail(item, here), range(100))  # type: ignore[misc]
