"""The latest lags."""

from aiokvoffload.poller.lag import LAG_SAMPLES, LagRecorder


def test_lags_are_kept_up_to_a_bound() -> None:
    """I11."""
    recorder = LagRecorder()
    assert recorder.statistics().samples == 0
    for number in range(LAG_SAMPLES + 100):
        recorder.add(float(number))
    statistics = recorder.statistics()
    assert (statistics.samples, statistics.max_s) == (LAG_SAMPLES, LAG_SAMPLES + 99.0)
    assert 99.0 < statistics.p50_s < statistics.p99_s < statistics.max_s


def test_a_percentile_is_a_lag_that_was_and_so_many_were_no_longer() -> None:
    recorder = LagRecorder()
    for number in (3.0, 1.0, 2.0):
        recorder.add(number)
    assert recorder.statistics().p50_s == 2.0
    assert recorder.statistics().p99_s == recorder.statistics().max_s == 3.0
    for number in range(4, 201):
        recorder.add(float(number))
    assert (recorder.statistics().p50_s, recorder.statistics().p99_s) == (100.0, 198.0)
