"""The time that is left is predicted from the recent pace."""

from iel.progress import Progress


def test_the_pace_starts_anew_after_compiling(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("iel.progress.time.monotonic", lambda: clock[0])
    bar = Progress("train", 1000, show=False)
    for seconds, usual, left in (
        (0, False, ""),
        (40, False, ""),
        (50, True, "80 s"),
        (90, False, ""),
        (92, True, "12 s"),
    ):
        clock[0] = float(seconds)
        bar.advance(100 if seconds else 0, usual=usual)
        assert bar.remaining() == left
    assert bar.done == 400
