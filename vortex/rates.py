"""What a machine does, in the units of the cost model."""

from __future__ import annotations

from dataclasses import dataclass

FETCHED_AHEAD = 256.0
"""Elements: rows of A and of C up to this long are fetched ahead by the L1 nests,"""
FETCHED_TILE = 4096.0
"""so many bytes ahead: far enough for DRAM, and less than what a few tall tiles bring into L1."""
MISSES = 24.0
"""Lines that one core can wait for at a time: buffers of the innermost cache for what it misses."""
CROWD = 2.0 * MISSES
"""Lines of C of a next row tile that outermost row tiles ask for all at once with AVX-512; of more, each panel asks for
its share."""
KEPT_TILES, KEPT_ROWS = 4.0, 3.0
"""Row tiles of a panel of a plain B from which on the first copies it for the others, and least rows of these: with
fewer a core stores about as long as it multiplies."""
LEAST_RUN = 4.0
"""Tiles that lie alike and are called as a run: with fewer, what it takes to find it is more than it saves."""


@dataclass(frozen=True)
class Rates:
    """What the machine does, as the cost model sees it: seconds, seconds per byte, bytes, counts; all float32."""

    call: float
    """Seconds of a call that computes nothing."""
    thread_start: float
    """Seconds to hand tasks to waiting threads and to learn that they are done."""
    tile_start: float
    """Seconds to enter and leave one micro-kernel, whatever its size."""
    tile_vector: float
    """Seconds to clear and store one accumulator."""
    tile_enter: float
    """Seconds between one micro-kernel and the next in an L1 nest, whatever their height,"""
    tile_turn: float
    """to begin a row of tiles past all panels,"""
    panel_turn: float
    """or a column of them down a panel,"""
    tile_row: float
    """and for each row: what an address and a prefetch take that do not overlap with the multiply-adds of others."""
    tile_run: float
    """What is left of both among tiles that are a run."""
    nest: float
    """Seconds in which a task gets into its L1 nest,"""
    row_nest: float
    """that of the held or the streamed family."""
    stage_start: float
    """Seconds to begin a block of the CacheBuffer,"""
    copy_row: float
    """to begin one of its rows where they are copied,"""
    turn_start: float
    """and to begin turning the product back over,"""
    turn: float
    """and for each of its elements."""
    copy: float
    """Seconds to copy one element into the CacheBuffer."""
    transpose: float
    """Seconds to transpose one element into the CacheBuffer."""
    lanes: float
    registers: float
    narrow_rows: float
    """Most rows of the register tile of a product that has fewer vectors of columns than the tile: their beginnings, a
    power of two apart, must all stay in one set of the innermost cache."""
    multiply_add: float
    """Seconds per vector multiply-add at full issue."""
    cores: float
    """Of the machine that the library is for: whether k is split is decided for as many threads."""
    latency_issues: float
    """Independent multiply-adds that keep the units busy."""
    dot_rows: float
    """Rows of the tallest dot tile,"""
    dot_columns: float
    """and columns of the widest,"""
    dot_turned: float
    """of a B that has to be turned over for it: none where elements are read in words."""
    l1_bytes: float
    l2_bytes: float
    l2_certain: float
    """Of L2, what finds room there wherever its pages are,"""
    l2_buffer: float
    """and what the CacheBuffer may take up."""
    blocks_beyond: float
    """1 where a packed block of B may be more than that and lie in the cache outside, else 0."""
    l3_bytes: float
    outer_bytes: float
    """of the outermost cache, all of it: of more outputs, whole lines are written past the caches."""
    l1_ways: float
    line_bytes: float
    bytes_b: float
    """Of an element of B in memory."""
    l2_byte: float
    """Seconds per byte that one core reads from L2."""
    l3_byte: float
    l3_byte_shared: float
    """Seconds per byte of the whole device: what each of n active cores sees is at least n times this."""
    dram_byte: float
    dram_byte_shared: float
    l1_span: float
    """Bytes after which addresses fall into the same set of L1 again (sets x line)."""
    split: float
    """Seconds that a vector of an unpacked B costs more where it straddles two lines, and nothing hides it."""
    ahead: float
    """Bytes fetched ahead past each row of a panel: a gift to the next panel if L2 keeps them, else a waste."""
    l3_latency: float
    dram_latency: float
    """Seconds from asking for a line to having it,"""
    in_time: float
    """so many of which hardware is ahead of a tile that takes short rows of A one after the other."""
    window: float
    """Instructions in flight in one core."""
    partial: float
    """How many times its streaming time a partial C costs between two steps of k: latency, not bandwidth."""
    room: float
    """Words of A that are packed for blocks of C whose sums stay in L2 until all of k was added; 0 where none do."""
    streams: float
    """Rows of C that prefetchers follow at a time."""
    unasked: float
    """Share that is seen of waits for rows of A that a tile taller than wide has not asked for ahead."""
    panels_kept: float
    """As many panels of B as L2 must have room for, so that one is there when the tiles of the one before are done."""
    misses: float
    """Lines that one core can wait for at a time,"""
    burst: float
    """and the share of the load of further ones that is seen, if all were asked for at once."""
    leap: float
    """Share of the latency that is seen when a tile of A by columns takes a few elements of many far rows."""
    piece: float
    """Share of the latency that is seen at the start of each piece of a row of A that is read in several;"""
    lone_pieces: float
    """where B is a single panel, share of the stream of those that come from memory; 0 if it is no matter."""
    row_piece: float
    """Share of the latency that each piece of a row of an unpacked B adds to its stream,"""
    row_start: float
    """and which is seen even so;"""
    short_runs: float
    """how much longer than one stream its bytes take;"""
    covered: float
    """share of the arithmetic of a panel's further tiles under which the next panel arrives."""
    overtaken: float
    """Share of its time that a plain B takes longer where L2 has no room for the panel that is asked for ahead."""
    shared_stream: float
    """Share of the time of a B that comes from outside L2 for each row tile that is seen even under arithmetic."""
    turned_leap: float
    """Latencies seen for each line where a turned-over product takes a few elements of each row of B."""
    alone: float
    """Seconds that a row of an unpacked B is waited for in a panel of one vector; see `effects.page_waits`."""
    collided: float
    """Share of the time of lines that push each other out of L1 which is seen even under arithmetic."""
    visit: float
    """Share of the latency that is seen at the start of each piece of a colliding row that is packed."""
    strewn: float
    """Share of the latency that is seen for each line of a C that is written in pieces of its rows."""
    huddled: float
    """How many times its bytes a C of short rows costs more whose rows are all further ones."""
    dot_load: float
    """Multiply-adds in whose time the dot family loads one vector of the short side,"""
    dot_stream: float
    """and one of the long side, which it sees once,"""
    straddled: float
    """and one that lies across two lines once more."""
    page: float
    """Latencies that it waits for at each page of a long row."""
    dot_seen: float
    """Of the time of its loads, what is seen even under arithmetic where several tiles of columns read its rows."""
    dot_reloaded: float
    """Of what columns take to come from L2 for each tile of rows, what is a load beside the rows'."""
    dot_enter: float
    """Seconds between one of its micro-kernels and the next,"""
    fold: float
    """and to add up and store one sum."""
    held_step: float
    """Multiply-adds in whose time the held family does one: what it loads of A keeps it from full issue,"""
    held_narrow: float
    """and does one of half a vector or less."""
    held_row: float
    """Seconds to begin and to store a vector of C,"""
    held_enter: float
    """to get into its kernel,"""
    held_load: float
    """and to load a vector of B;"""
    held_parts: float
    """that a row's last vector takes longer with each step of k where it is stored in parts,"""
    held_left: float
    """and every vector of a row that is left over."""
    held_pieced: float
    """Share of the latency that is seen for each line of A with each step of k but the first,"""
    held_ragged: float
    """for those of C where its rows are short,"""
    held_scattered: float
    """or longer, unless they are one vector."""
    held_apart: float
    """Seconds in which a vector of longer rows is made at least, 0 where that is no matter."""
    held_recurring: float
    """Seconds that it waits for a line of C it was at before, if all rows begin in the same set of L1,"""
    held_torn: float
    """and for a vector of sums that reaches into the next row, which was stored just before,"""
    held_torn_narrow: float
    """if it is a half or a quarter of one."""
    roomy: float
    """1 where multiply-adds leave room for the loads and stores of the held and the streamed family, else 0."""
    streamed_torn: float
    """Seconds for a vector of a plain B that the streamed family reads beside them, across two lines."""
    streamed_broken: float
    """Latencies that it waits for at each piece of a row of a plain B, where a task has a part of the columns,"""
    streamed_broken_row: float
    """and for each further row of A that passes with it;"""
    pieced_stream: float
    """and how much longer all of them take together: in any family those from memory, in the streamed one all."""
    loose_line: float
    """Seconds in which a line of a plain B comes from L2 at the soonest where a panel has part of its rows."""
    crowded_span: float
    """Rows of an operand that is read as it lies, a step of k each, crowd few sets of the caches if they are a multiple
    of so many bytes apart,"""
    row_begin: float
    """Share of the latency that is seen where one of several panels begins a row of an unpacked B."""
    refill: float
    """How much longer a block of the CacheBuffer takes to fill that takes up all of L2, over a small one."""
    line_again: float
    """How many times what a line takes from L2 is seen for each line of A that comes from there again; 0 where it is
    the time itself, for the first few of a row."""
    panel_room: float
    """Elements that L1 has room for of a panel of a plain B which the first of many row tiles keeps there for the
    others, and of their A; 0 if none does."""
    crowded_rows: float
    """and so many of them are still in L2 when the next tile reads them: k is taken in steps of no more,"""
    per_crowded_rows: float
    """of which this is the reciprocal;"""
    crammed_rows: float
    """and so many, if all of them start in one set of L1,"""
    per_crammed_rows: float
    """with its reciprocal."""
    crammed_line: float
    """Seconds until the next line is there of those that all go into one set of L1, 0 where it is no matter."""
    reach: float
    """Bytes of as many pages as a task can come back to and find all their translations again, 0 for any number,"""
    page_bytes: float
    """and of one page."""
    page_line: float
    """Share of the latency that is seen for each line of an A by columns whose rows are pages of their own."""
    written_back: float
    """What lines of C take to go back to where they live, over what they took to come,"""
    written_past: float
    """and whole ones that go past the caches."""
    contended: float
    """Seconds for one of which two cores write a part at the same time."""
    out_bytes: float
    """Of an element of C as it is stored."""
    finish: float
    """Seconds in which a store stage apart from the micro-kernels takes a vector of sums, 0 where there is none."""

    @property
    def pieced(self) -> bool:
        """Whether it is looked at if k should be cut for few rows by a plain B, whose rows are whole then."""
        return self.streamed_broken + self.pieced_stream > 0.0

    @property
    def overlaps(self) -> bool:
        """Whether streams hide behind arithmetic as on a Zen 5: not where pages are small, and where a core starts one
        multiply-add a cycle rows of a large B by tiles would be taken for quicker than rows that stream past."""
        return not (self.reach or self.roomy)

    @property
    def in_words(self) -> bool:
        """Whether elements are read in words, into which every B is packed."""
        return self.dot_turned < 0.5
