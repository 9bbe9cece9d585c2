"""Counters of the service in the text format of Prometheus."""

import resource
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
PAGE_SIZE = resource.getpagesize()


class Metrics:
    """Requests by route and status, their times, and the batches of the devices; safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._batches: Counter[str] = Counter()
        self._samples: Counter[str] = Counter()

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a finished request."""
        with self._lock:
            self._requests[route, status] += 1
            self._seconds[route] += seconds  # type: ignore[assignment]
            for bound in BUCKETS:
                self._buckets[route, bound] += seconds <= bound

    def batch(self, device: str, samples: int) -> None:
        """Count a model call."""
        with self._lock:
            self._batches[device] += 1
            self._samples[device] += samples

    def text(self, gauges: Mapping[str, int | float]) -> str:
        """All counters, and the current values `gauges`, with their labels in the name."""
        with self._lock:
            lines = ["# TYPE linearno_requests_total counter"]
            for (route, status), count in sorted(self._requests.items()):
                lines.append(f'linearno_requests_total{{route="{route}",status="{status}"}} {count}')
            lines.append("# TYPE linearno_request_seconds histogram")
            for route, total in sorted(self._seconds.items()):
                count = sum(number for (name, _), number in self._requests.items() if name == route)
                for bound in BUCKETS:
                    label = f'route="{route}",le="{bound:g}"'
                    lines.append(f"linearno_request_seconds_bucket{{{label}}} {self._buckets[route, bound]}")
                lines.append(f'linearno_request_seconds_bucket{{route="{route}",le="+Inf"}} {count}')
                lines.append(f'linearno_request_seconds_sum{{route="{route}"}} {total:.6f}')
                lines.append(f'linearno_request_seconds_count{{route="{route}"}} {count}')
            for name, values in (("model_calls", self._batches), ("samples", self._samples)):
                lines.append(f"# TYPE linearno_{name}_total counter")
                lines += [f'linearno_{name}_total{{device="{key}"}} {n}' for key, n in sorted(values.items())]
        for name, value in gauges.items():
            lines += [f"# TYPE {name.partition('{')[0]} gauge", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def resident_memory() -> int:
    """Bytes of this process in memory; the maximum so far where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE_SIZE
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
