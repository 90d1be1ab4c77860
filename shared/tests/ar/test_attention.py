"""Attention over the paged cache: right, and bit for bit the same however tokens are grouped into steps."""

from __future__ import annotations

import pytest
import torch

from omnistage.ar.attention import attend, plan_attention
from omnistage.ar.kv_cache import KVShape, PagedKVCache
from omnistage.ar.linear import MIN_ROWS, DenseProduct, PackedProduct, make_product
from omnistage.ar.scheduler import Row
from omnistage.ar.sequence import Sequence

BLOCK = 16
DIM = 64


class Tokens:
    """Random queries, keys and values of a sequence, with its blocks scattered over the pool."""

    def __init__(self, name: int, length: int, heads: int, kv_heads: int, blocks: list[int]) -> None:
        generator = torch.Generator().manual_seed(name)
        self.query = torch.randn(length, heads, DIM, generator=generator)
        self.keys = torch.randn(length, kv_heads, DIM, generator=generator)
        self.values = torch.randn(length, kv_heads, DIM, generator=generator)
        self.sequence = Sequence(str(name), [0] * length, length, 1, block_table=blocks)


class Bench:
    """A cache and a few sequences in it."""

    def __init__(self, lengths: tuple[int, ...], heads: int, kv_heads: int) -> None:
        self.heads, self.kv_heads = heads, kv_heads
        pool = torch.randperm(200, generator=torch.Generator().manual_seed(1)).tolist()
        self.cache = PagedKVCache(KVShape(1, kv_heads, DIM, 200, BLOCK))
        self.items: list[Tokens] = []
        for name, length in enumerate(lengths):
            count = -(-length // BLOCK)
            self.items.append(Tokens(name, length, heads, kv_heads, pool[:count]))
            pool = pool[count:]

    def step(self, parts: list[tuple[int, int, int]]) -> list[torch.Tensor]:
        """Compute (sequence, start, count) parts in one step; gives each part's output."""
        rows = [Row(self.items[i].sequence, start, count, emits=True) for i, start, count in parts]
        plan = plan_attention(rows, self.cache, share=self.heads // self.kv_heads)

        def joined(name: str) -> torch.Tensor:
            return torch.cat([getattr(self.items[i], name)[start : start + count] for i, start, count in parts])

        self.cache.write(0, plan.write, joined("keys"), joined("values"))
        out = attend(joined("query"), plan, self.cache, 0, scale=DIM**-0.5)
        return list(torch.split(out, [count for _, _, count in parts]))

    def whole(self, index: int) -> torch.Tensor:
        return self.step([(index, 0, len(self.items[index].query))])[0]


def reference(item: Tokens) -> torch.Tensor:
    """Plain attention in float64."""
    share = item.query.shape[1] // item.keys.shape[1]
    query, keys, values = (x.double() for x in (item.query, item.keys, item.values))
    keys, values = keys.repeat_interleave(share, 1), values.repeat_interleave(share, 1)
    scores = torch.einsum("qhd,khd->hqk", query, keys) * DIM**-0.5
    length = len(query)
    scores.masked_fill_(torch.ones(length, length).triu(1).bool(), -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).flatten(1)


LENGTHS = (1, 15, 16, 17, 100, 250, 513)


@pytest.fixture(params=[(9, 3), (4, 4), (8, 1)], ids=["9 over 3", "4 over 4", "8 over 1"])
def bench(request: pytest.FixtureRequest) -> Bench:
    heads, kv_heads = request.param
    return Bench(LENGTHS, heads, kv_heads)


def test_equals_plain_attention(bench: Bench) -> None:
    outputs = bench.step([(index, 0, length) for index, length in enumerate(LENGTHS)])
    for item, out in zip(bench.items, outputs, strict=True):
        assert torch.allclose(out.double(), reference(item), atol=2e-6)


def test_chunks_give_the_same_bits_as_the_whole(bench: Bench) -> None:
    for index, length in enumerate(LENGTHS):
        whole = bench.whole(index)
        for chunk in (1, 7, 64, 200):
            parts = [(index, start, min(chunk, length - start)) for start in range(0, length, chunk)]
            chunked = torch.cat([bench.step([part])[0] for part in parts])
            assert torch.equal(chunked, whole), f"length {length} in chunks of {chunk}"


def test_decoding_beside_others_gives_the_same_bits_as_alone(bench: Bench) -> None:
    for index in range(len(LENGTHS)):
        bench.whole(index)
    last = [(index, length - 1, 1) for index, length in enumerate(LENGTHS)]
    alone = [bench.step([part])[0] for part in last]
    for parts in (last, last[::-1], last[2:5], [*last[:4], (6, 100, 300)]):
        for (index, _, count), out in zip(parts, bench.step(parts), strict=True):
            if count == 1:
                assert torch.equal(out, alone[index])


def test_what_lies_behind_the_own_tokens_does_not_matter(bench: Bench) -> None:
    clean = bench.whole(4)
    last = bench.items[4].sequence.block_table[-1]
    for head in range(bench.kv_heads):
        row = bench.cache.keys[0, head * 201 + last].view(BLOCK, DIM)
        row[100 % BLOCK :] = 1e6
        bench.cache.values[0, head * 201 + last].view(BLOCK, DIM)[100 % BLOCK :] = -1e6
    assert torch.equal(bench.whole(4), clean)


def test_clear_removes_non_finite_numbers(bench: Bench) -> None:
    clean = bench.whole(4)
    table = bench.items[4].sequence.block_table
    index = bench.cache.gather_index(torch.tensor([table]))
    bench.cache.keys[0, index] = torch.nan
    bench.cache.values[0, index] = torch.inf
    bench.cache.clear(table)
    assert torch.equal(bench.whole(4), clean)


def test_a_block_must_fit_vector_lanes() -> None:
    with pytest.raises(ValueError, match="multiple of 16, not 24"):
        PagedKVCache(KVShape(1, 1, 8, 4, 24))


@pytest.mark.parametrize("kind", [DenseProduct, PackedProduct])
@pytest.mark.parametrize(("outputs", "inputs"), [(960, 576), (576, 1536), (3072, 576), (49152, 576), (100, 33)])
def test_products_are_right_and_the_same_for_every_number_of_rows(kind: type, outputs: int, inputs: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, inputs, generator=generator)
    x = torch.randn(257, inputs, generator=generator)
    with torch.inference_mode():
        product = kind(weight)
        first = product(x[:MIN_ROWS])
        assert torch.allclose(first.double(), x[:MIN_ROWS].double() @ weight.double().T, atol=1e-3)
        for rows in (5, 7, 8, 13, 16, 33, 64) + ((128, 257) if outputs < 10000 else ()):
            assert torch.equal(product(x[:rows])[:MIN_ROWS], first), rows


def test_the_fast_product_is_chosen_for_float32_only() -> None:
    assert isinstance(make_product(torch.ones(2, 2)), PackedProduct)
    assert isinstance(make_product(torch.ones(2, 2, dtype=torch.bfloat16)), DenseProduct)
