"""The block manager: who owns what, what is found again, what is given up first."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from omnistage.ar.blocks import BlockManager, chain_digest


def chain(*contents: tuple[int, ...]) -> list[bytes]:
    digests: list[bytes] = []
    for tokens in contents:
        digests.append(chain_digest(digests[-1] if digests else b"", tokens))
    return digests


def test_a_digest_depends_on_everything_before_it() -> None:
    assert chain((1, 2), (3, 4)) == chain((1, 2), (3, 4))
    assert chain((1, 2), (3, 4))[1] != chain((9, 2), (3, 4))[1]
    assert chain_digest(b"", [1, 23]) != chain_digest(b"", [12, 3])
    assert chain_digest(b"salt", [1]) != chain_digest(b"", [1])
    assert chain_digest(b"", [(1, 2)]) != chain_digest(b"", [1, 2])


def test_the_pool_gives_no_more_than_it_has() -> None:
    blocks = BlockManager(3, 4)
    assert sorted(blocks.allocate(3)) == [0, 1, 2]
    with pytest.raises(ValueError, match="0 free"):
        blocks.allocate(1)


@pytest.mark.parametrize(("tokens", "count"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_blocks_for(tokens: int, count: int) -> None:
    assert BlockManager(8, 4).blocks_for(tokens) == count


def test_a_released_block_is_found_until_it_is_needed() -> None:
    blocks = BlockManager(2, 4)
    first, second = chain((1,), (2,))
    taken = blocks.allocate(2)
    blocks.remember(taken[0], first)
    blocks.remember(taken[1], second)
    blocks.release(taken)
    assert blocks.num_free == 2
    assert blocks.find([first, second]) == taken
    blocks.allocate(1)
    assert blocks.find([first, second]) == taken[:1], "the tail of a prefix goes first"


def test_the_least_recently_used_content_goes_first() -> None:
    blocks = BlockManager(2, 4)
    old, new = chain((1,))[0], chain((2,))[0]
    for digest in (old, new):
        (block,) = blocks.allocate(1)
        blocks.remember(block, digest)
        blocks.release([block])
    (again,) = blocks.find([old])
    blocks.share([again])
    blocks.release([again])
    blocks.allocate(1)
    assert blocks.find([old]) == [again]
    assert blocks.find([new]) == []


def test_a_shared_block_is_free_only_after_its_last_user() -> None:
    blocks = BlockManager(1, 4)
    (digest,) = chain((1,))
    taken = blocks.allocate(1)
    blocks.remember(taken[0], digest)
    blocks.share(taken)
    blocks.release(taken)
    assert blocks.num_free == 0
    blocks.release(taken)
    assert blocks.num_free == 1


def test_disown_forgets_only_what_nobody_else_uses() -> None:
    blocks = BlockManager(2, 4)
    shared, own = chain((1,), (2,))
    taken = blocks.allocate(2)
    blocks.remember(taken[0], shared)
    blocks.remember(taken[1], own)
    blocks.share(taken[:1])
    assert blocks.disown(taken) == taken[1:]
    assert blocks.find([shared, own]) == taken[:1]


def test_without_a_prefix_cache_nothing_is_found() -> None:
    blocks = BlockManager(2, 4, prefix_cache=False)
    (digest,) = chain((1,))
    taken = blocks.allocate(1)
    blocks.remember(taken[0], digest)
    assert blocks.find([digest]) == []


class Pool(RuleBasedStateMachine):
    """Random use of a pool against a plain count of users per block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockManager(6, 4)
        self.tables: list[list[int]] = []
        self.content: dict[bytes, int] = {}

    @rule(count=st.integers(1, 3))
    def allocate(self, count: int) -> None:
        if count > self.blocks.num_free:
            with pytest.raises(ValueError, match="free"):
                self.blocks.allocate(count)
            return
        taken = self.blocks.allocate(count)
        users = Counter(block for table in self.tables for block in table)
        assert len(set(taken)) == count
        assert not any(users[block] for block in taken), "a block in use was handed out"
        self.content = {digest: block for digest, block in self.content.items() if block not in taken}
        self.tables.append(taken)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), name=st.integers(0, 5))
    def remember(self, data: st.DataObject, name: int) -> None:
        block = data.draw(st.sampled_from([block for table in self.tables for block in table]))
        digest = bytes([name])
        if digest not in self.content and block not in self.content.values():
            self.content[digest] = block
        self.blocks.remember(block, digest)

    @rule(name=st.integers(0, 5))
    def share(self, name: int) -> None:
        found = self.blocks.find([bytes([name])])
        assert found == ([self.content[bytes([name])]] if bytes([name]) in self.content else [])
        if found:
            self.blocks.share(found)
            self.tables.append(found)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        self.tables.remove(table)
        self.blocks.release(table)

    @invariant()
    def counts_agree(self) -> None:
        used = {block for table in self.tables for block in table}
        assert self.blocks.num_free == 6 - len(used)
        assert self.blocks.num_cached == len({b for b in self.content.values() if b not in used})


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
