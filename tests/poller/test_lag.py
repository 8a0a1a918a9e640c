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
