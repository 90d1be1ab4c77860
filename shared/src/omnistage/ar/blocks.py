"""Which block of the paged KV cache belongs to whom. Counts and ids only; the bytes are in `kv_cache`.

A full block may be shared: it is found again by the chained digest of all tokens up to its end. A block that nobody
uses keeps its content until it is needed for something else; the least recently used goes first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from omnistage.ar.sequence import Token


def chain_digest(previous: bytes, tokens: Sequence[Token]) -> bytes:
    """Digest of a block whose predecessors have the digest `previous` (the salt, for the first block).

    Cryptographic, since a collision would show one client's context to another.
    """
    digest = hashlib.blake2b(previous, digest_size=16)
    digest.update(repr(tuple(tokens)).encode())
    return digest.digest()


class BlockManager:
    """Hands out blocks, counts their users, and remembers the content of full ones.

    Args:
        num_blocks: size of the pool.
        block_size: tokens per block.
        prefix_cache: whether content is found again.
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_cache: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError("a pool needs at least one block of at least one token")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._users = [0] * num_blocks
        self._digest: list[bytes | None] = [None] * num_blocks
        self._by_digest: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks without a user, with or without remembered content."""
        return len(self._blank) + len(self._idle)

    @property
    def num_cached(self) -> int:
        """Free blocks whose content is remembered."""
        return len(self._idle)

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks `num_tokens` tokens need."""
        return -(-num_tokens // self.block_size)

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """The blocks that hold the longest known prefix of a chain. Takes no reference."""
        found: list[int] = []
        if not self.prefix_cache:
            return found
        for digest in digests:
            block = self._by_digest.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are free, i.e. would leave the free ones when shared."""
        return sum(1 for block in blocks if self._users[block] == 0)

    def share(self, blocks: Iterable[int]) -> None:
        """Add one user to each of the blocks that `find` gave."""
        for block in blocks:
            if self._users[block] == 0:
                del self._idle[block]
            self._users[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks with one user each; content that was remembered longest ago is given up first.

        Raises:
            ValueError: fewer are free. The caller looks at `num_free` first.
        """
        if count > self.num_free:
            raise ValueError(f"{count} blocks asked for, {self.num_free} free")
        taken: list[int] = []
        for _ in range(count):
            if self._blank:
                block = self._blank.pop()
            else:
                block, _ = self._idle.popitem(last=False)
                self._forget(block)
            self._users[block] = 1
            taken.append(block)
        return taken

    def remember(self, block: int, digest: bytes) -> None:
        """Note the content of a used block that is now full. The first block of equal content keeps the digest."""
        if self.prefix_cache and self._digest[block] is None and digest not in self._by_digest:
            self._digest[block] = digest
            self._by_digest[digest] = block

    def release(self, blocks: Sequence[int]) -> None:
        """Take one user from each. Tails become the oldest, so that a prefix outlives what followed it."""
        for block in reversed(blocks):
            users = self._users[block] - 1
            assert users >= 0, "a block was released more often than taken"
            self._users[block] = users
            if users:
                continue
            if self._digest[block] is None:
                self._blank.append(block)
            else:
                self._idle[block] = None

    def disown(self, blocks: Iterable[int]) -> list[int]:
        """Forget the content of those blocks that have one user only, since it may be wrong. Returns these blocks."""
        own = [block for block in blocks if self._users[block] == 1]
        for block in own:
            self._forget(block)
        return own

    def _forget(self, block: int) -> None:
        digest = self._digest[block]
        if digest is not None:
            del self._by_digest[digest]
            self._digest[block] = None
