"""Bulk bytes between services: one protocol, three stores, and the plane that chooses between them."""

from omnistage.tensors.memory import MemorySpace, MemoryTensorStore
from omnistage.tensors.ownership import default_folder, sweep_folder
from omnistage.tensors.plane import TensorPlane, TensorStats, memory_plane, open_plane
from omnistage.tensors.redis_store import RedisTensorStore
from omnistage.tensors.shm import ShmTensorStore
from omnistage.tensors.store import Array, TensorStore, from_bytes, to_bytes

__all__ = [
    "Array",
    "MemorySpace",
    "MemoryTensorStore",
    "RedisTensorStore",
    "ShmTensorStore",
    "TensorPlane",
    "TensorStats",
    "TensorStore",
    "default_folder",
    "from_bytes",
    "memory_plane",
    "open_plane",
    "sweep_folder",
    "to_bytes",
]
