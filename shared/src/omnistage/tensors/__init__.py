"""Bulk bytes between services: one protocol, three stores, and the plane that chooses between them."""

from omnistage.tensors.store import Array, TensorStore, from_bytes, to_bytes

__all__ = ["Array", "TensorStore", "from_bytes", "to_bytes"]
