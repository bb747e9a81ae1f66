"""`iel bench serving` measures what it says, in small."""

import pytest

from benchmarks.serving import Fuzz, Options, command, model_of


@pytest.mark.long
def test_the_bench_fuzzes_and_measures():
    found = command(Options(json=True, requests=300, clients=3, calls=5))
    fuzz = found["fuzz"]
    assert fuzz["statuses"].keys() == {"2xx", "4xx"} and sum(fuzz["statuses"].values()) == 300
    assert fuzz["alive_afterwards"] and not fuzz["other_than_2xx_4xx"]
    assert found["refused"] == {"foreign Host": 421, "foreign Origin": 403, "file of the machine": 404, "own": 200}
    for name in ("one_client", "3_clients", "websocket"):
        assert 0 < found[name]["p50_ms"] <= found[name]["p99_ms"] and 0 < found[name]["cpu_ratio_to_bare"] < 1


def test_fuzzed_requests_follow_from_the_seed():
    served = model_of(None)
    one, same, other = ([fuzz.request() for fuzz in [Fuzz(seed, served, 1)] for _ in range(500)] for seed in (3, 3, 4))
    assert one == same != other
    for word in (b"NaN", b"evil.example", b"/etc/passwd", b"Origin: null", b"text/plain"):
        assert any(word in request for request in one), word
