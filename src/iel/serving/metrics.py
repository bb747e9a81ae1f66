"""Counts and times of the server, in the text format that Prometheus reads."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections import Counter

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper ends of the histogram's bins, in seconds."""


class Metrics:
    """What /metrics tells. Routes that do not exist are counted together, so nobody can make it grow."""

    def __init__(self) -> None:
        self.routes: frozenset[str] = frozenset()
        self.started = time.monotonic()
        self.requests: Counter[tuple[str, str]] = Counter()
        self.bins: dict[str, list[int]] = {}
        self.seconds: Counter[str] = Counter()
        self.rows = 0
        self.messages = 0
        self.sockets = 0

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count one request."""
        route = path if path in self.routes else "other"
        self.requests[route, f"{status // 100}xx"] += 1
        self.bins.setdefault(route, [0] * (len(BUCKETS) + 1))[bisect_left(BUCKETS, seconds)] += 1
        self.seconds[route] += seconds  # type: ignore[assignment]

    def text(self) -> str:
        """All of it, for /metrics."""
        lines = ["# TYPE iel_requests_total counter"]
        for (route, kind), count in sorted(self.requests.items()):
            lines.append(f'iel_requests_total{{route="{route}",status="{kind}"}} {count}')
        lines.append("# TYPE iel_request_seconds histogram")
        for route, bins in sorted(self.bins.items()):
            total = 0
            for end, count in zip((*map(str, BUCKETS), "+Inf"), bins, strict=True):
                total += count
                lines.append(f'iel_request_seconds_bucket{{route="{route}",le="{end}"}} {total}')
            lines.append(f'iel_request_seconds_sum{{route="{route}"}} {self.seconds[route]:.6f}')
            lines.append(f'iel_request_seconds_count{{route="{route}"}} {total}')
        for name, kind, value in (
            ("iel_rows_total", "counter", self.rows),
            ("iel_websocket_messages_total", "counter", self.messages),
            ("iel_cpu_seconds_total", "counter", round(time.process_time(), 3)),
            ("iel_websockets", "gauge", self.sockets),
            ("iel_uptime_seconds", "gauge", round(time.monotonic() - self.started, 3)),
            ("iel_memory_bytes", "gauge", memory()),
        ):
            lines += [f"# TYPE {name} {kind}", f"{name} {value}"]
        return "\n".join(lines) + "\n"


def memory() -> int:
    """Bytes of memory this process holds now, 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
