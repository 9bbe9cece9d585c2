"""Search the nearest points of query points: with a k-d tree on a CPU, with blocks of distances on a GPU.

Axes: B samples, M points, N query points, X coordinates, K neighbours.
"""

from collections import OrderedDict
from functools import reduce
from hashlib import blake2b
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from numpy import ndarray
from scipy.spatial import cKDTree
from torch import Tensor

Points = Float[Tensor, "B M X"]
Queries = Float[Tensor, "B N X"]
Mask = Bool[Tensor, "B M"]  # False: padding, never a neighbour

MAX_DISTANCES = 2**26  # distances in memory at once
MAX_CACHED_BYTES = 2**28


class Neighbours(NamedTuple):
    """Neighbours of every query point, nearest first.

    Args:
        rows: index of each neighbour among the points of its sample; 0 if it does not exist.
        exists: False if the query point has fewer neighbours.
    """

    rows: Int64[Tensor, "B N K"]
    exists: Bool[Tensor, "B N K"]


def find_neighbours(
    points: Points,
    queries: Queries,
    *,
    count: int,
    radius: float | None = None,
    mask: Mask | None = None,
    cache: bool = True,
) -> Neighbours:
    """Find the `count` nearest points within `radius` of each query point.

    A query point that is one of the points is its own first neighbour; ties are broken arbitrarily. The
    result has no gradient. On a CPU a k-d tree per sample takes O((M + N) log M), and the result is cached
    for the next search of the same points. On a GPU and in exported models all distances are computed in
    blocks: O(N · M) work without communication with the host.

    Args:
        points: candidate neighbours.
        queries: query points.
        count: K, the largest number of neighbours.
        radius: largest distance of a neighbour; None: unlimited.
        mask: False at padded points.
        cache: cache the result of a CPU search; False for points that are not searched again.
    """
    samples = points.shape[0]
    points, queries = points.detach(), queries.detach()
    if samples > 1 and mask is None and is_shared(points) and is_shared(queries):
        first_sample = find_neighbours(points[:1], queries[:1], count=count, radius=radius, cache=cache)
        return Neighbours(*(part.expand(samples, -1, -1) for part in first_sample))
    if points.device.type == "cpu" and not torch.compiler.is_compiling():
        return _search_trees(points, queries, count, radius, mask, cache)
    return search_distances(points, queries, count, radius, mask)


def search_distances(
    points: Points, queries: Queries, count: int, radius: float | None = None, mask: Mask | None = None
) -> Neighbours:
    """`find_neighbours` from the distances of all pairs, in at least float32."""
    dtype = torch.promote_types(points.dtype, torch.float32)
    points, queries = points.to(dtype), queries.to(dtype)
    if torch.compiler.is_exporting():  # the number of blocks would fix N
        return _nearest(points, queries, count, radius, mask)
    rows = max(1, MAX_DISTANCES // (points.shape[0] * points.shape[1]))
    blocks = [_nearest(points, block, count, radius, mask) for block in queries.split(rows, dim=1)]
    return Neighbours(*(torch.cat(parts, dim=1) for parts in zip(*blocks, strict=True)))


def _nearest(
    points: Points, queries: Queries, count: int, radius: float | None, mask: Mask | None
) -> Neighbours:
    """Search a block of query points. |x|² + |y|² − 2 x·y would lose small distances to rounding."""
    axes = range(points.shape[-1])
    squares = ((queries[..., axis, None] - points[..., None, :, axis]).square() for axis in axes)
    distance = reduce(torch.add, squares)  # squared
    if mask is not None:
        distance = distance.masked_fill(~mask.unsqueeze(1), torch.inf)
    if radius is not None:
        distance = distance.masked_fill(distance > radius**2, torch.inf)
    distance = torch.nn.functional.pad(distance, (0, count), value=torch.inf)  # if M < count
    nearest, index = distance.topk(count, dim=-1, largest=False)
    exists = nearest.isfinite()
    return Neighbours(torch.where(exists, index, 0), exists)


def is_shared(points: Points) -> bool:
    """Whether all samples are views of one mesh, as in batches of `FieldData.batch`."""
    return not torch.compiler.is_compiling() and points.stride(0) == 0


class _TableCache:
    """LRU cache of neighbour tables, keyed by a hash of the points and settings."""

    def __init__(self, max_bytes: int):
        self.max_bytes = max_bytes
        self._bytes, self._lock = 0, Lock()
        self._tables: OrderedDict[bytes, ndarray] = OrderedDict()

    def get(self, key: bytes) -> ndarray | None:
        with self._lock:
            if key in self._tables:
                self._tables.move_to_end(key)
            return self._tables.get(key)

    def put(self, key: bytes, table: ndarray) -> None:
        with self._lock:
            if key not in self._tables and table.nbytes <= self.max_bytes:
                self._tables[key] = table
                self._bytes += table.nbytes
            while self._bytes > self.max_bytes:
                self._bytes -= self._tables.popitem(last=False)[1].nbytes


_CACHE = _TableCache(MAX_CACHED_BYTES)


def _search_trees(
    points: Points, queries: Queries, count: int, radius: float | None, mask: Mask | None, cache: bool
) -> Neighbours:
    """Search each sample separately: samples recur in other batches, where their tables are cached."""
    same = points.data_ptr() == queries.data_ptr() and points.shape == queries.shape
    tables = []
    for sample in range(len(points)):
        sample_points = points[sample].double().numpy()
        sample_queries = sample_points if same else queries[sample].double().numpy()
        sample_mask = None if mask is None else mask[sample].numpy()
        tables.append(
            _cached_table(sample_points, sample_queries, count, radius, sample_mask)
            if cache
            else _table(sample_points, sample_queries, count, radius, sample_mask)
        )
    table = torch.from_numpy(np.stack(tables)).long()
    return Neighbours(table.clamp(min=0), table >= 0)


def _cached_table(
    points: ndarray, queries: ndarray, count: int, radius: float | None, mask: ndarray | None
) -> ndarray:
    digest = blake2b(repr((points.shape, queries.shape, count, radius)).encode(), digest_size=16)
    for part in (points, mask, None if points is queries else queries):
        digest.update(b"-" if part is None else np.ascontiguousarray(part).data)
    table = _CACHE.get(key := digest.digest())
    if table is None:
        _CACHE.put(key, table := _table(points, queries, count, radius, mask))
    return table


def _table(
    points: ndarray, queries: ndarray, count: int, radius: float | None, mask: ndarray | None
) -> ndarray:
    """Indices (N, K) of the neighbours; −1 if there are fewer."""
    rows = np.arange(len(points)) if mask is None else np.flatnonzero(mask)
    bound = np.inf if radius is None else np.nextafter(radius, np.inf)  # exclusive
    _, found = cKDTree(points[rows]).query(queries, k=range(1, count + 1), distance_upper_bound=bound)
    return np.append(rows, -1)[found].astype(np.int32)
