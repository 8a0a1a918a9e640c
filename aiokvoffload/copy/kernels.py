"""The one kernel of the library: moves tiles between GPU blocks and anywhere else that the GPU can address.

Knows descriptors (see `tiles`) and addresses; knows nothing of streams. Needs Triton, which is optional: nothing but
`tile_kernel` imports this module. With TRITON_INTERPRET=1 it runs on CPU memory.
"""

import triton
import triton.language as tl

NUM_WARPS = 4


@triton.jit(do_not_specialize=["blocks", "table", "tiles_per_block", "first_tile", "count", "to_gpu"])
def move_tiles(
    blocks,
    table,
    tiles_per_block,
    first_tile,
    count,
    to_gpu,
    TILE: tl.constexpr,
    TILES_AT_ONCE: tl.constexpr,
    ELEMENT: tl.constexpr,
    ALIGNMENT: tl.constexpr,
):
    """Copy `count` tiles, counted from `first_tile` of the first block on.

    Args:
        blocks: address of (block id, address of the block's bytes outside), int64, for each block.
        table: address of (address in row 0, row bytes, offset in a block's bytes, size), int64, for each tile of one.
        tiles_per_block: rows of the table.
        first_tile: of the first block, where to begin.
        count: tiles to copy.
        to_gpu: 1 copies into the GPU blocks, 0 out of them.
        TILE: elements of the largest tile, a power of two.
        TILES_AT_ONCE: copied by one program in one go.
        ELEMENT: bytes of an element.
        ALIGNMENT: bytes that all addresses and sizes are multiples of.
    """
    dtype: tl.constexpr = (
        tl.int64 if ELEMENT == 8 else tl.int32 if ELEMENT == 4 else tl.int16 if ELEMENT == 2 else tl.int8
    )
    pointer: tl.constexpr = tl.pointer_type(dtype)
    numbers: tl.constexpr = tl.pointer_type(tl.int64)
    block_ptr = blocks.to(numbers)
    table_ptr = table.to(numbers)
    lane = tl.arange(0, TILES_AT_ONCE)
    offsets = tl.arange(0, TILE)
    for start in range(tl.program_id(0) * TILES_AT_ONCE, count, tl.num_programs(0) * TILES_AT_ONCE):
        tile = first_tile + start + lane
        there = start + lane < count
        block = tile // tiles_per_block
        row = table_ptr + (tile % tiles_per_block) * 4
        block_id = tl.load(block_ptr + block * 2, mask=there, other=0)
        outside = tl.load(block_ptr + block * 2 + 1, mask=there, other=0)
        gpu = tl.load(row, mask=there, other=0) + block_id * tl.load(row + 1, mask=there, other=0)
        outside += tl.load(row + 2, mask=there, other=0)
        size = tl.load(row + 3, mask=there, other=0)
        source = tl.where(to_gpu != 0, outside, gpu)
        target = tl.where(to_gpu != 0, gpu, outside)
        mask = offsets[None, :] * ELEMENT < size[:, None]
        read = source[:, None].to(pointer) + offsets[None, :]
        write = target[:, None].to(pointer) + offsets[None, :]
        # The compiler cannot see it through loaded numbers, and without it takes single elements.
        read = tl.max_contiguous(tl.multiple_of(read, (ALIGNMENT, ALIGNMENT)), (1, TILE))
        write = tl.max_contiguous(tl.multiple_of(write, (ALIGNMENT, ALIGNMENT)), (1, TILE))
        if ALIGNMENT > ELEMENT:
            mask = tl.max_constancy(mask, (1, ALIGNMENT // ELEMENT))
        tl.store(write, tl.load(read, mask=mask), mask=mask)
