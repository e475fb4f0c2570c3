"""What the cost model assumes of every device, since no spec and no measurement says it: fitted constants."""

from __future__ import annotations

from dataclasses import dataclass

from vortex.rates import MISSES


@dataclass(frozen=True)
class Effects:
    """Fitted on one machine (Zen 5) against several thousand timed (shape, strategy) pairs, those of the dot and the
    held family in units that also fit a second one (Zen 4), those of small pages on a third (Granite Rapids), and used
    for every device: anywhere else they are estimates. Two were not fitted: `window` is the Zen 5's reorder buffer,
    `split_cycles` an estimate.
    """

    resident_share: float = 0.75
    """Share of the second cache that a block may stay in: the rest is swept by what streams past it."""
    scattered_share: float = 0.5
    """The same where pages are small: which sets of it a block falls in is chance, and those of 0.75 crowd some
    (Granite Rapids: 192 columns of 2048 went at 0.9 times the rate of 128)."""
    tile_share: float = 0.5
    """The same under tiles of AMX, past which as much streams in a fifth of the time (Granite Rapids: 1024 rows of 384
    words took 1.2 times what half as many took)."""
    outer_share: float = 0.5
    """Share of the outermost cache that operands may count on: the rest belongs to what else runs on the socket, and
    outputs of 17 MB do not stay in 32 MB (Zen 4)."""
    outer_core_bytes: int = 1 << 25
    """Of the outermost cache for each core, at most: no processor has more. A guest with two cores is told of 480 MB on
    a Granite Rapids, and at times finds 67 MB there and at times does not (32x4096x4096 8 ms or 19)."""
    partial: float = 2.0
    """A partial C between two steps of k, over the time its bytes take in a stream: each tile waits for its lines
    (Granite Rapids: of 44 products by 54 plans each those with 128 steps of k took 0.96 of what was expected of them at
    4 beside those with 512; Zen 5, 20 transformers' products: 0.93 at 4 beside those with all of k, 0.96 at 2)."""
    kept_partial: float = 0.7
    """The same of one that stays in L2, from which tiles of AMX load it."""
    l3_latency_s: float = 60e-9
    dram_latency_s: float = 300e-9
    """Seconds until a line that no prefetcher asked for is there."""
    window: float = 448.0
    """Instructions in flight in one core: over how many of them such a wait is spread."""
    split_cycles: float = 0.25
    """Cycles that a vector of an unpacked B costs more where it straddles two lines, and nothing hides it."""
    ahead_bytes: float = 128.0
    """Bytes that prefetchers fetch past the end of each row of a panel: three lines."""
    streams: float = 8.0
    """Rows of C that prefetchers follow at a time."""
    unasked: float = 0.06
    """Share seen of the waits for rows of A that a tall tile has not asked for, where pages are large and loads have no
    room beside multiply-adds (Zen 5, 30 x 16 past 160 MB of A, 12 and 16 columns and k of 20 to 1030: 0 to 0.09 of
    them; rows beyond those that prefetchers follow are not waited for at all). Elsewhere all is charged, unmeasured."""
    lone_pieces: float = 0.7
    """Share of the stream of A that such a core sees beside arithmetic where rows come from memory in pieces and B is a
    single panel: no tile asks for the next one's while a step of k ends (Zen 5, 160 MB, k of 602 to 4096 in two to
    eight steps: 0.5 to 0.9 of what A takes alone by 12 and 16 columns, however many steps there are, and 0.4 to 0.6 by
    32 and 48). Out of the outermost cache it sees none of it."""
    panels_kept: float = 2.0
    """Panels of B that L2 must have room for: the one that is multiplied and the next,"""
    scattered_panels: float = 4.0
    """and where pages are small, since some crowd (Granite Rapids, packed: 32x4096x9216 21.1 to 19.3 ms, 1024x3000x2048
    69.7 to 67.5 by panels of 256 KiB, of which 4 make half of L2)."""
    misses: float = MISSES
    """Lines that one core can wait for at a time,"""
    burst: float = 0.7
    """and the share of the load of further ones that is seen, if all were asked for at once."""
    leap: float = 0.08
    """Share of the latency that is seen when a tile of A by columns takes a few elements of many far rows."""
    piece: float = 0.2
    """Share of the latency that is seen at the start of each piece of a row of A that is read in several;"""
    narrow_piece: float = 0.4
    """on cores with AVX2 alone (Zen 2: 121 products of up to 400 MFLOP by 113 plans)."""
    row_piece: float = 0.0027
    """Share of the latency that each piece of a row of an unpacked B adds to its stream,"""
    scattered_row_piece: float = 0.014
    """(where pages are small: 32 x 9216 x 4096 out of memory takes 33.6 ms in pieces of 128 bytes, and 25.2 in those of
    256, on a Granite Rapids)"""
    row_start: float = 0.0014
    """and which is seen even so;"""
    short_runs: float = 0.44
    """how much longer than one stream its bytes take;"""
    covered: float = 0.37
    """share of the arithmetic of a panel's further tiles under which the next panel arrives: of none where nobody asks
    for it, in nests of words other than tiles (Zen 5: 200 rows by 4096 x 4096, bfloat16, 14.7 ms, which 12.7 had been
    expected of). To ask for a share of it before each tile takes 0.99 to 1.11 times as long: too many lines at once."""
    overtaken: float = 1.0
    """Share of its time that a plain B takes longer where L2 has no room for the panel that is asked for ahead."""
    shared_stream: float = 0.4
    """Share of the time of a B that comes from outside L2 for each row tile that is seen even under arithmetic: other
    threads, and what else runs on the socket, read from there too."""
    turned_leap: float = 0.5
    """Latencies seen for each line where a turned-over product takes a few elements of each row of B: the multiply-adds
    that wait for them fill a scheduler, and that is less than the window."""
    alone: float = 3.0
    """Multiply-adds in whose time a vector of an unpacked B is waited for that is its panel's only one of a row; where
    a panel has the two vectors of a line, a quarter of it each row."""
    crowded_places: int = 4
    """Places within the span of L1's sets that rows start in, at most, where they crowd the caches,"""
    crowded_row_bytes: int = 2048
    """and bytes of L2 for each row that is still there when the next tile reads it, however wide a tile is."""
    crammed_cycles: float = 10.0
    """Cycles for each line that comes from L2 into the set of L1 that all others go into too (Zen 3: 32 to 512 rows 4,
    8, 12 or 16 KiB apart take 3.1 to 3.5 ns a line, and 64 bytes further apart 0.95). Counted where a vector is half a
    line: by the races of a Zen 4 and a Zen 5 whole ones have arithmetic enough for it."""
    scattered_row_bytes: int = 8192
    """The same where pages are small: which sets of L2 each falls in is chance."""
    crammed_row_bytes: int = 16384
    """The same of rows that all start in one set of L1 (Granite Rapids, 14 x 32 by 2048 columns as they lie: 174
    GFLOP/s with 128 steps of k, 109 with 256; by 768 columns 256 are as good)."""
    refill: float = 0.4
    """How much longer a block of the CacheBuffer takes to fill that takes up all of L2, over a small one: what it takes
    the place of is written back (Granite Rapids, 768 x 768 in a loop of C: 90 us by blocks of 256 to 400 KB, 124 by
    790, 212 by 1.5 MB). Counted where pages are small: other cores were not asked."""
    kept_share: float = 0.85
    """Share of L1 that a panel of a plain B and two tiles of A take up, where the first row tile keeps the panel for
    the others. Where pages are small: elsewhere it was not tried. Granite Rapids, 9 x 48: 64 x 4096 x 1024 goes at 156,
    165, 172, 175, 165 and 155 GFLOP/s with 64, 128, 192, 256, 384 and 512 steps of k, read as it lies at 153; 187 x 768
    x 768 at 177, 188, 190, 188, 190 and 188, read as it lies at 181."""
    row_begin: float = 0.03
    """Share of the latency that is seen where a panel begins a row of a plain B, if pages are small and few rows on
    each: by 55 products of 29 to 435 rows of a Granite Rapids, ten plans each. Panels of 32 columns take 4 to 10 %
    longer than those of 48 to 80."""
    line_again: float = 0.75
    """How many times what a line takes from L2 is seen for each line of A that a row tile reads from there, where pages
    are small: for all, not the first few alone, and where row tiles are outermost for as long as a panel of B passes in
    between. Granite Rapids, 512 steps of k out of L2: tiles of 30 x 16 go at 0.79 of their rate out of L1, of 14 x 32
    at 0.87, of 9 x 48 and 5 x 80, which have fewer rows for as many multiply-adds, at 0.92. Emerald Rapids, 110
    products of transformers by a transposed or packed B: the choice is 0.970 of the best at 1.5, which has packed ones
    made by outermost row tiles or by a packed A, 0.984 at 1, 0.993 here and 0.986 at 0.5; that of the Granite Rapids is
    the same at all four."""
    sent_back: float = 0.4
    """What lines of C take to go back, over what they took to come: they go while others come (Zen 5: one core reads
    128 MB at 47 GB/s and writes them, brought and sent back, at 40, two at 56 and 40);"""
    scattered_sent_back: float = 0.1
    """where pages are small, a core waits for latencies rather than for bandwidth, and for none of lines that go
    (Granite Rapids: C of 13 MB at 44 GB/s both ways, loads at 24)."""
    sent_past: float = 0.5
    """What whole lines take there that go past the caches, which do not come (1888584 x 16 x 16 12 ms of A and C, loads
    at 15 GB/s)."""
    contended_s: float = 4e-9
    """Seconds for a line of C that two cores write parts of: 10 to 17 ns while they are at the same rows, as halves of
    29 columns are on a Zen 5, and none where one of them is ahead."""
    handed_s: float = 2.5e-7
    """What a job takes beyond what an empty one was measured to take. Hosts move virtual cores about: two of a Zen 5
    take 0.22 us for an empty job, and products of up to 10 us 0.15 to 0.35 more than half their time, or 0.76 and 1.0,
    for eight seconds of fifty. The choice among these is 0.961 of the best near and 0.900 far at 0.37 us, 0.957 and
    0.932 at 0.47, 0.934 and 0.979 at 0.76."""
    reach_share: float = 0.5
    """Of the translations that a core keeps, for the rows of one operand,"""
    page_line: float = 0.13
    """and share of the latency that is seen for each line of an A by columns, where pages are small."""
    scattered_collided: float = 0.15
    """Share of the time of lines that push each other out of L1 which is seen even under arithmetic, where pages are
    small (Granite Rapids: tiles of 14 rows of A 4 KiB apart go at 182 GFLOP/s, of 9 at 195, and both at 192 to 198
    where rows are 64 bytes further apart). None elsewhere: a Zen 5 loses nothing by 14 such rows."""
    visit: float = 0.1
    """Share of the latency that is seen at the start of each piece of a colliding row that is packed,"""
    narrow_visit: float = 0.25
    """where a vector is half a line (Zen 2: 69 ns for a piece of rows 16 KiB apart, 104 of those 36 KiB apart, of 67
    and 151 MB)."""
    strewn: float = 0.002
    """Share of the latency that is seen for each line of a C that is written in pieces of its rows, by recorded races
    of a Zen 5 (at none the choice is worse, at 0.004 predictions are);"""
    roomy_strewn: float = 0.004
    """where a core starts one multiply-add a cycle, by those of a Zen 4;"""
    scattered_strewn: float = 0.03
    """where pages are small (Granite Rapids, packed: 5355 x 3970 x 59 takes 38 ms in columns of 64, 15 row by row; an
    Emerald Rapids, 2 to 40 MB of C and a k of 3 to 64: 3.0 ns a line more than row by row, 1.1 to 2.1 behind 24 steps
    of k and more)."""
    huddled: float = 0.7
    """How many times its bytes a C of short rows costs more whose rows are all further ones."""
    dot_load: float = 0.8
    """Multiply-adds in whose time the dot family loads one vector of the short side,"""
    dot_line_cycles: float = 2.0
    """and cycles for each line of the long side, which comes from outside L1 (Zen 2: 1 x 1024 x 1024 by a transposed B
    54 us, where as many for half a line said 97);"""
    straddled: float = 0.37
    """and one that lies across two lines once more."""
    page: float = 0.2
    """Latencies that the dot family waits for at each page of a long row that passes alone; none where a line is two
    vectors (Zen 2: 1 x 1024 x 4096 by a transposed B 0.50 ms, as memory gives it; the waits would be another 0.08)."""
    dot_seen: float = 0.7
    """Of the time of its loads, what is seen even under arithmetic where several tiles of columns read the long side
    and pages are small (Granite Rapids, seconds beyond arithmetic over those of loads: 0.6 to 1.3 for 16 columns, 0.45
    to 0.7 for 22, 0.55 to 1.2 for 32)."""
    narrow_dot_reloaded: float = 0.5
    """Of what columns take to come from L2 for each tile of rows, what is a load beside the rows' where a line is two
    vectors (Zen 2, 3 to 16 rows by a transposed B of up to 64 MB: predictions scatter by 10 %, with all by 12)."""
    dot_enter_cycles: float = 1.0
    """Cycles between one of its micro-kernels and the next,"""
    fold_cycles: float = 2.5
    """and in which it adds up and stores one of its sums,"""
    fold_roomy_cycles: float = 3.5
    """on a core that starts one multiply-add in a cycle (Zen 4: 2708 x 7 x 16 22 us, x 64 38),"""
    narrow_fold_cycles: float = 4.3
    """where a line is two vectors (Zen 2, 4000 rows by 2 to 4 columns and a k of 8 to 40)."""
    held_step_cycles: float = 0.575
    """Cycles in which the held family does one multiply-add, at best."""
    held_row_cycles: float = 2.0
    """Cycles in which it begins and stores a vector of C,"""
    held_roomy_row_cycles: float = 3.5
    """beside multiply-adds of which a core starts one in a cycle, as a Zen 4 does,"""
    held_enter_cycles: float = 30.0
    """gets into its kernel,"""
    held_load_cycles: float = 1.0
    """and loads a vector of B."""
    held_scattered: float = 0.003
    """Share of the latency that is seen for each line of a C of more than three vectors; nothing of shorter ones, whose
    lines are asked for, nor of A, which prefetchers keep up with (Zen 4: 334863 x 16 x 16 in 1.7 ms, 2.0 by such a
    share; 1710902 x 2 x 8 in 3.0 and 4.0. Granite Rapids, 224 products of 2 to 4000 columns and k of 3 to 32, C in L2
    and beyond, and 92 of races: 15 % off in the mean so, 31 by what was seen while none were). Nor of longer ones on a
    Zen 4, since those come into L2 a block before (56944 x 121 x 8 1.4 ms, 1.5 so and 1.7 by such a share)."""
    held_parts_cycles: float = 2.2
    """Cycles that a row's last vector takes longer with each step of k, where vectors have no masks and it is neither
    whole nor half (Zen 2, 3000 rows by a k of 2, 5, 8 and 16: by 5 and 6 columns 2.6 a step, 7 2.1, 3 1.4, 10 2.0),"""
    held_left_cycles: float = 12.0
    """and there every vector of a row that is left over (12 x 8000 by a k of 1 and 4 30 and 23 for two such rows)."""
    held_pieced: float = 0.004
    """More with each further step of k, which takes a piece of every row: no prefetcher follows those past L3 (Zen 4,
    16 columns, ns a row: 89 in four steps 55 to 61 out of memory and 25 from L3, 64 in three 27 and 18),"""
    held_asked_pieced: float = 0.001
    """of a core that does (Zen 5: in the median of 198 products 1.09 times what they take, k of 64 in three steps by 2,
    22 and 64 columns 0.87, 1.08 and 1.2 times)."""
    held_roomy_ragged: float = 0.001
    """For those of a C of up to three vectors that are no whole one: a store reaches into the next line (Zen 4: 1430124
    x 14 x 6 in 4.0 ms, 410236 x 22 x 16 in 3.7)."""
    held_apart_cycles: float = 5.0
    """Cycles that a vector of longer rows takes at least where pages are small (Granite Rapids, 108 to 4602 columns and
    k of 1 to 3, C in L2: 1.3 to 2.1 ns)."""
    held_recurring_cycles: float = 24.0
    """Cycles for a line of C that it comes back to, half a line at a time or for more steps of k, where all rows begin
    in the same set: on a Zen 3 29 to 31 if they are 4 KiB apart, 20 to 23 for each half of them if 2 KiB."""
    held_torn_cycles: float = 8.2
    """Cycles for a vector of sums that reaches into the next row,"""
    held_torn_narrow_cycles: float = 13.0
    """for a half or a quarter of one (Zen 4: 2708 rows by a k of 32 to 80, 2.1 to 2.3 ns in each further step of k by 9
    to 15 columns, 3.0 to 4.2 by 2, 3, 5, 6 and 7, 0.0 to 0.4 by 4, 8 and 16),"""
    streamed_torn_cycles: float = 0.6
    """and of the streamed family for one of a plain B. Both of such a core: a Zen 3 and a Zen 5 have neither."""
    streamed_broken: float = 2.0
    """Latencies that it waits for at each piece of a row of a plain B where several tasks have parts of its columns, if
    pages are small (Granite Rapids, 2 threads: 4 x 1024 x 1000 137 us by two halves of the rows, 83 by tiles)."""
    roomy_broken: float = 0.12
    """The same with large pages of a core that starts one multiply-add a cycle,"""
    roomy_broken_row: float = 0.19
    """and for each further row of A that passes with it (Zen 4, 2 threads, halves of the columns against halves of k:
    1 x 512 x 2048 37 us and 30, 2 x 512 x 2048 111 and 37, 4 x 1536 x 2048 270 and 140, out of memory 1 x 1024 x 16384
    1.76 ms and 1.19, 4 x 1024 x 16384 5.5 and 1.9). A Zen 3 has none. All three were fitted while tasks still shared
    lines of C, which cost as much on a Zen 5 (execute.c)."""
    pieced_stream: float = 0.15
    """Share of its stream that such pieces take longer on other cores with large pages, where vectors are lines: two of
    a Zen 5 that read halves of the same rows get less than two that read rows of their own, however long the pieces are
    (1 to 4 rows by 256 to 16000 columns and a k of 500 to 9000, out of L3 and memory: 0.07 to 0.4, in the median
    0.17; 1 x 1024 x 1000 31 us so and 24 by halves of k, 4 x 4096 x 4096 1.32 ms and 1.11)."""
    loose_line_cycles: float = 1.9
    """Cycles in which a line of a plain B comes from L2 at the soonest where a panel has part of its rows: hardware
    does not always follow pieces of rows. A Zen 5 does 3 x 448 x 300 by 14 x 32 in 5.0 us or in 7.4, by 3 x 128 in 4.8
    or 5.7, for hundreds of calls of one loop at a time, where row by row it takes 4.7; this is between the two. Other
    cores were not asked."""
    finish_cycles: float = 3.0
    """Cycles in which a store stage apart from the micro-kernels takes a vector of sums: it reads, converts and stores
    (Zen 5, bfloat16: 1.5 to 4.7 for products of a k of 16 to 32)."""
    tile_enter_cycles: float = 12.0
    """Cycles between one micro-kernel and the next in an L1 nest,"""
    panel_turn_cycles: float = 18.0
    """to begin a panel where those are outermost (Zen 5, ns of one beside a single row of tiles: 2 x 5109 x 2 5.0, 1 x
    2944 x 1 4.5, 2 x 1157 x 4 4.0; the recorded choices of five cores gain 0.0 to 0.4 % by it),"""
    tile_turn_cycles: float = 6.0
    """to begin a row of tiles where those are outermost (Zen 5: 334863 x 22 x 8 1.06 ms so, 0.98 by one column of
    them),"""
    tile_row_cycles: float = 2.6
    """and for each of its rows."""
    narrow_tile_run: float = 0.1
    """What is left of both among tiles that lie alike (a Zen 2, 143 x 847 x 7: 31 ns a tile of 6 x 16, where all of it
    says 43, and 15 are arithmetic), where a micro-kernel's start was measured, which has some of it: 59 cycles there
    of this one, 36 computed. What is left with AVX-512 was not measured."""
    amx_enter_cycles: float = 60.0
    """Both of a micro-kernel of AMX, whatever its height."""
    nest_s: float = 1.3e-7
    """Seconds in which a task gets into its L1 nest,"""
    row_nest_s: float = 8e-8
    """into one of rows that pass or stream, which divides nothing among tiles (Zen 4, ns of a call: 1 x 16 x 16 319 by
    rows that stream, 332 by rows that pass, 389 by tiles; 1 x 80 x 10 337 and 357 by the first and the last)."""
    stage_start_s: float = 1.5e-8
    """Seconds to begin a block of the CacheBuffer,"""
    copy_row_cycles: float = 8.0
    """to begin one of its rows where they are copied,"""
    turn_start_s: float = 4.4e-8
    """and to begin turning the product back over;"""
    turned: float = 3.0
    """over transposing its elements in L1, what all of that takes: sums come from L2 and go where other operands are
    (Zen 5, B transposed: beside strategies that pack it, 290 x 4096 x 1024, 476 x 1024 x 1024 and 414 x 3072 x 768 took
    0.2 to 0.35 ns an element longer than expected, and transposing takes 0.07);"""
    scattered_turned: float = 7.5
    """where pages are small: to turn them back takes twice as long, the rest is seen while sums are made (Granite
    Rapids, B transposed: 32 x 1024 x 1000 60 us more than expected, 228 x 3072 x 768 600; so priced the choice among 49
    strategies is 0.994 of the best for 173 products, 0.99 else)."""
    outer_fill: float = 0.75
    """Seconds to stream from the outermost cache under arithmetic, over those at its declared bandwidth;"""
    scattered_outer_fill: float = 0.9
    """where pages are small, nearly all of them (Granite Rapids: one row by 2.4 to 67 MB at 24 to 28 GB/s, where the
    probe finds 28);"""
    narrow_outer_fill: float = 1.0
    """where a vector is half a line, all (Zen 2, a neighbour at work: the choice among 160 races of up to 8 GFLOP is
    0.985 of the best at 0.75, 0.987 at 1)."""
    fill: float = 0.875
    """Seconds to bring a line from L2 to L1 under arithmetic, over those of a stream at L2's declared bandwidth."""
    tile_fill: float = 2.0
    """The same under tiles of AMX: lines of A and of B are both on their way all the time."""
    call_s: float = 2e-7
    """Seconds of one call in native code: door checks, selection and task set-up;"""
    narrow_call_s: float = 3.3e-7
    """on cores with AVX2 alone (Zen 2, Zen 3)."""


EFFECTS = Effects()
