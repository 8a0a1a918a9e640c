import pytest

from aiokvoffload.histogram import Histogram


def test_a_bound_belongs_to_the_class_that_it_ends() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.5):
        histogram.add(value)
    counted = histogram.statistics()
    assert (counted.counts, counted.count, counted.total) == ((2, 2, 1), 5, 7.0)


@pytest.mark.parametrize(("share", "bound"), [(0.4, 1.0), (0.5, 2.0), (0.8, 2.0), (0.81, float("inf"))])
def test_a_quantile_is_the_bound_of_its_class(share: float, bound: float) -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.5):
        histogram.add(value)
    assert histogram.statistics().quantile(share) == bound


def test_without_values_a_quantile_is_zero() -> None:
    assert Histogram().statistics().quantile(0.99) == 0.0
    assert "0 values" in repr(Histogram())


def test_a_snapshot_does_not_change() -> None:
    histogram = Histogram()
    before = histogram.statistics()
    histogram.add(1.0)
    assert (before.count, histogram.statistics().count) == (0, 1)
