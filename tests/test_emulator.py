"""The emulated GPU: what it computes, and that it punishes what a GPU would."""

from __future__ import annotations

import numpy as np
import pytest
from emulator import TIMINGS, EmulationError, TensorMap, Workspace, run
from emulator.ptx import UnknownInstructionError
from emulator.translation import translate_source

HEAD = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void __launch_bounds__(128) """

COPY = (
    HEAD
    + """k(const float* from, float* to, int n) {
  extern __shared__ __align__(16) unsigned char memory[];
  float* tile = (float*)memory;
  int i = blockIdx.x * 128 + threadIdx.x;
  unsigned at = __cvta_generic_to_shared(tile + threadIdx.x);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(at), "l"(from + i), "r"(i < n ? 4 : 0) : "memory");
  asm volatile("cp.async.commit_group;");
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  if (i < n) to[i] = tile[127 - threadIdx.x];
}"""
)


def copy(source: str, timing: str, n: int = 300) -> np.ndarray:
    given, got = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
    run(source, "k", (-(-n // 128),), (128,), 512, [given, got, n], timing=timing)
    return got


def reversed_blocks(n: int = 300) -> np.ndarray:
    padded = np.zeros(-(-n // 128) * 128, np.float32)
    padded[:n] = np.arange(n)
    return padded.reshape(-1, 128)[:, ::-1].reshape(-1)[:n]


class TestCopies:
    @pytest.mark.parametrize("timing", TIMINGS)
    def test_a_right_kernel_is_right(self, timing: str):
        assert (copy(COPY, timing) == reversed_blocks()).all()

    def test_zeros_are_written_where_nothing_is_read(self):
        source = COPY.replace("if (i < n) to[i]", "to[i]")
        given, got = np.arange(300, dtype=np.float32), np.zeros(384, np.float32)
        run(source, "k", (3,), (128,), 512, [given, got, 300], timing="lazy")
        assert (got[256 : 256 + 84] == 0).all() and not np.isnan(got).any()

    @pytest.mark.parametrize(
        ("lost", "timings"),
        [
            ("  __syncthreads();\n", TIMINGS),
            ('  asm volatile("cp.async.wait_group 0;" ::: "memory");\n', ("lazy", "random")),
        ],
    )
    def test_lost_synchronization_shows(self, lost: str, timings: tuple[str, ...]):
        assert lost in COPY
        for timing in timings:
            assert not np.array_equal(copy(COPY.replace(lost, ""), timing), reversed_blocks())

    @pytest.mark.parametrize("timing", TIMINGS)
    def test_reading_past_an_operand_is_an_error(self, timing: str):
        if timing == "lazy":  # operands begin behind a page then
            with pytest.raises(EmulationError, match=r"before operand 0"):
                copy(COPY.replace("from + i)", "from + i - 1)"), timing)
        else:
            with pytest.raises(EmulationError, match=r"after the end of operand 0"):
                for seed in range(8):  # of the two ends one is chosen by the seed
                    given, got = np.zeros(300, np.float32), np.zeros(300, np.float32)
                    source = COPY.replace("i < n ? 4 : 0", "4")
                    run(source, "k", (3,), (128,), 512, [given, got, 300], timing=timing, seed=seed)

    def test_too_little_shared_memory_is_an_error(self):
        with pytest.raises(EmulationError, match="outside shared memory"):
            run(COPY, "k", (1,), (128,), 496, [np.zeros(128, np.float32), np.zeros(128, np.float32), 128])

    def test_too_many_threads_are_an_error(self):
        with pytest.raises(EmulationError, match="bounded to 128"):
            run(COPY, "k", (1,), (256,), 1024, [np.zeros(256, np.float32), np.zeros(256, np.float32), 256])


class TestMemory:
    def store(self, body: str, operand: np.ndarray, timing: str = "eager", alignment: int = 0) -> None:
        kernel = HEAD + "k(float* to, int n) { " + body + " }"
        run(kernel, "k", (1,), (32,), 0, [operand, operand.size], timing=timing, alignment=alignment)

    def test_a_misplaced_vector_traps(self):
        with pytest.raises(EmulationError, match="misaligned"):
            self.store("*(float4*)(to + 1) = make_float4(0, 0, 0, 0);", np.zeros(64, np.float32))

    def test_alignment_is_what_was_asked_for_and_no_more(self):
        body = "if (threadIdx.x == 0) *(float4*)to = make_float4(1, 2, 3, 4);"
        self.store(body, np.zeros(64, np.float32), "lazy", alignment=16)
        with pytest.raises(EmulationError, match="misaligned"):
            self.store(body, np.zeros(64, np.float32), "lazy", alignment=8)

    def test_a_workspace_is_aligned_whatever_the_operands_are(self):
        body = HEAD + "k(float* to, short* odd) { *(float4*)to = make_float4(1, 2, 3, 4); odd[threadIdx.x] = 1; }"
        lent, odd = np.zeros(64, np.float32), np.zeros(64, np.int16)
        run(body, "k", (1,), (32,), 0, [Workspace(lent), odd], timing="lazy", alignment=2)
        assert lent[:4].tolist() == [1, 2, 3, 4] and odd[:32].all()

    def test_a_write_between_rows_is_an_error(self):
        operand = np.zeros((4, 8), np.float32)[:, :6]
        self.store("to[8 * (threadIdx.x / 8)] = 1.0f;", operand)
        assert (operand[:, 0] == 1).all()
        with pytest.raises(EmulationError, match="between the rows"):
            self.store("to[threadIdx.x % 30] = 1.0f;", operand)

    def test_a_write_to_a_constant_operand_is_an_error(self):
        operand = np.zeros(64, np.float32)
        operand.flags.writeable = False
        with pytest.raises(EmulationError, match="only be read"):
            self.store("to[threadIdx.x] = 1.0f;", operand)

    def test_a_write_into_the_rest_of_the_page_is_found(self):
        with pytest.raises(EmulationError, match="beside operand 0"):
            self.store("to[-1] = 1.0f;", np.zeros(64, np.float32))

    def test_the_thread_is_named(self):
        with pytest.raises(EmulationError, match=r"thread \(7, 0, 0\) of block \(0, 0, 0\)"):
            self.store("if (threadIdx.x == 7) to[n] = 1.0f;", np.zeros(64, np.float32))

    def test_after_a_fault_the_next_run_works(self):
        with pytest.raises(EmulationError):
            self.store("to[n] = 1.0f;", np.zeros(64, np.float32))
        assert (copy(COPY, "eager") == reversed_blocks()).all()


class TestWarps:
    def lanes(self, body: str) -> np.ndarray:
        got = np.zeros(32, np.float32)
        run(HEAD + "k(float* to) { float x = threadIdx.x; " + body + " }", "k", (1,), (32,), 0, [got])
        return got

    def test_shuffles(self):
        lane = np.arange(32, dtype=np.float32)
        whole = "0xffffffffu"
        assert (self.lanes(f"to[threadIdx.x] = __shfl_sync({whole}, x, 5);") == 5).all()
        assert (self.lanes(f"to[threadIdx.x] = __shfl_xor_sync({whole}, x, 3);") == (np.arange(32) ^ 3)).all()
        down = self.lanes(f"to[threadIdx.x] = __shfl_down_sync({whole}, x, 4);")
        assert (down == np.where(lane < 28, lane + 4, lane)).all()
        up = self.lanes(f"to[threadIdx.x] = __shfl_up_sync({whole}, x, 4, 16);")
        assert (up == np.where(lane % 16 < 4, lane, lane - 4)).all()

    def test_a_warp_reduction(self):
        body = "for (int d = 16; d; d /= 2) x += __shfl_xor_sync(__activemask(), x, d); to[threadIdx.x] = x;"
        assert (self.lanes(body) == 496).all()

    def test_a_warp_that_diverges_is_an_error(self):
        with pytest.raises(EmulationError, match="deadlock"):
            self.lanes("if (threadIdx.x < 16) x = __shfl_sync(0xffffffffu, x, 0); to[threadIdx.x] = x;")

    def test_a_divergent_barrier_is_an_error(self):
        with pytest.raises(EmulationError, match="deadlock"):
            self.lanes("if (threadIdx.x < 16) __syncthreads(); to[threadIdx.x] = x;")


LDMATRIX = (
    HEAD
    + """k(const unsigned short* from, unsigned short* to, int row) {
  __shared__ __align__(16) unsigned short tile[2048];
  for (int i = threadIdx.x; i < 2048; i += 32) tile[i] = from[i];
  __syncthreads();
  unsigned r[4];
  unsigned at = __cvta_generic_to_shared(tile + (threadIdx.x % 8) * row + threadIdx.x / 8 * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4TRANS.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
  for (int m = 0; m < 4; ++m) {
    to[m * 64 + threadIdx.x * 2] = r[m] & 0xffff;
    to[m * 64 + threadIdx.x * 2 + 1] = r[m] >> 16;
  }
}"""
)


class TestMatrices:
    @pytest.mark.parametrize("trans", [False, True])
    def test_ldmatrix(self, trans: bool):
        given, got = np.arange(2048, dtype=np.uint16), np.zeros((4, 8, 8), np.uint16)
        source = LDMATRIX.replace("unsigned short tile", "ushort tile").replace("ushort", "uint16_t")
        counted = run(source.replace("TRANS", ".trans" * trans), "k", (1,), (32,), 0, [given, got, 64])
        for m in range(4):
            tile = given.reshape(32, 64)[:8, 8 * m : 8 * m + 8]
            assert (got[m] == (tile.T if trans else tile)).all()
        assert counted.ldmatrix == 1 and counted.ldmatrix_conflicts == 4 * 7

    @pytest.mark.parametrize(("row", "conflicts"), [(64, 7), (32, 3), (8, 0), (72, 0)])
    def test_bank_conflicts(self, row: int, conflicts: int):
        source = LDMATRIX.replace("unsigned short tile", "uint16_t tile").replace("TRANS", "")
        given, got = np.zeros(2048, np.uint16), np.zeros(256, np.uint16)
        counted = run(source, "k", (1,), (32,), 0, [given, got, row])
        assert counted.ldmatrix_conflicts == 4 * conflicts

    @pytest.mark.parametrize(
        ("kind", "depth", "dtype"),
        [
            ("f16", 16, "f16"),
            ("f16", 8, "f16"),
            ("bf16", 16, "bf16"),
            ("bf16", 8, "bf16"),
            ("tf32", 8, "tf32"),
            ("tf32", 4, "tf32"),
        ],
    )
    def test_mma(self, kind: str, depth: int, dtype: str):
        """Fragments are filled as the PTX manual has them, so that only their meaning is under test."""
        half = 4 if kind == "tf32" else 8
        a_words, b_words = depth // half * 2, depth // half
        if kind == "tf32":
            load_a = "__float_as_uint(a[(g + 8 * (r % 2)) * D + t + 4 * (r / 2)])"
            load_b = "__float_as_uint(b[(t + 4 * r) * 8 + g])"
        else:
            pack = {"f16": "__half(%s).raw", "bf16": "__nv_bfloat16(%s).raw"}[kind]
            a0, a1 = (f"a[(g + 8 * (r % 2)) * D + 2 * t + {i} + 8 * (r / 2)]" for i in (0, 1))
            b0, b1 = (f"b[(2 * t + {i} + 8 * r) * 8 + g]" for i in (0, 1))
            load_a = f"{pack % a0} | (unsigned){pack % a1} << 16"
            load_b = f"{pack % b0} | (unsigned){pack % b1} << 16"
        registers = ", ".join(f'"r"(x[{i}])' for i in range(a_words)) + ", "
        registers += ", ".join(f'"r"(y[{i}])' for i in range(b_words))
        text = ", ".join(f"%{4 + i}" for i in range(a_words)), ", ".join(f"%{4 + a_words + i}" for i in range(b_words))
        source = HEAD + (
            f"k(const float* a, const float* b, float* c) {{ const int D = {depth}; unsigned x[4], y[2]; float d[4];\n"
            "int g = threadIdx.x / 4, t = threadIdx.x % 4;\n"
            f"for (int r = 0; r < {a_words}; ++r) x[r] = {load_a};\n"
            f"for (int r = 0; r < {b_words}; ++r) y[r] = {load_b};\n"
            "for (int i = 0; i < 4; ++i) d[i] = c[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2];\n"
            f'asm volatile("mma.sync.aligned.m16n8k{depth}.row.col.f32.{dtype}.{dtype}.f32 "\n'
            f'  "{{%0, %1, %2, %3}}, {{{text[0]}}}, {{{text[1]}}}, {{%0, %1, %2, %3}};"\n'
            f'  : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : {registers});\n'
            "for (int i = 0; i < 4; ++i) c[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = d[i]; }"
        )
        random = np.random.default_rng(0)
        a, b, c = (random.integers(-8, 9, shape).astype(np.float32) for shape in ((16, depth), (depth, 8), (16, 8)))
        expected = a @ b + c
        run(source, "k", (1,), (32,), 0, [a, b, c])
        assert (c == expected).all()


class TestRounding:
    def test_half_and_bfloat16_round_to_nearest_even(self):
        import ml_dtypes

        values = np.random.default_rng(0).standard_normal(128).astype(np.float32)
        values[:4] = [1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8]  # halfway between neighbours
        half, brain = np.zeros(128, np.float16), np.zeros(128, ml_dtypes.bfloat16)
        source = HEAD + "k(const float* x, half* h, nv_bfloat16* b) { h[threadIdx.x] = __float2half(x[threadIdx.x]); "
        source += "b[threadIdx.x] = __float2bfloat16(x[threadIdx.x]); }"
        run(source, "k", (1,), (128,), 0, [values, half, brain])
        assert (half == values.astype(np.float16)).all() and (brain == values.astype(ml_dtypes.bfloat16)).all()


class TestTranslation:
    def test_an_unknown_instruction_is_refused(self):
        with pytest.raises(UnknownInstructionError, match=r"popc\.b32"):
            translate_source(HEAD + 'k(int* x) { asm("popc.b32 %0, %0;" : "+r"(x[0])); }')

    def test_a_copy_that_no_gpu_has_is_refused(self):
        with pytest.raises(UnknownInstructionError, match=r"cp\.async\.cg of 8"):
            translate_source(
                COPY.replace("cp.async.ca.shared.global [%0], [%1], 4, %2", "cp.async.cg.shared.global [%0], [%1], 8")
            )

    def test_predicates_and_scopes(self):
        source = HEAD + 'k(float* to) { asm volatile("{\\n .reg .pred p;\\n setp.eq.u32 p, %1, 1;\\n"'
        source += '" @p st.global.f32 [%0], %2;\\n @!p st.global.f32 [%0], %3;\\n}\\n"'
        source += ' :: "l"(to + threadIdx.x), "r"((int)threadIdx.x % 2), "f"(1.0f), "f"(2.0f)); }'
        got = np.zeros(32, np.float32)
        run(source, "k", (1,), (32,), 0, [got])
        assert (got == np.where(np.arange(32) % 2 == 1, 1, 2)).all()


# One 64 x 32 product over one k tile of 64: a producer warp asks for both tiles, a warpgroup multiplies.
WGMMA = (
    '#include <cuda.h>\nextern "C" __global__ void __launch_bounds__(160) '
    + """k(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* c) {
  extern __shared__ __align__(1024) unsigned char memory[];
  unsigned base = __cvta_generic_to_shared(memory), full = base + 12288;
  float d[16];
  for (int i = 0; i < 16; ++i) d[i] = -1.0f;
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(full));
  __syncthreads();
  if (threadIdx.x == 128) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(full), "r"(BYTES));
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 :: "r"(base), "l"(&a), "r"(0), "r"(0), "r"(full) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 :: "r"(base + 8192), "l"(&b), "r"(0), "r"(0), "r"(full) : "memory");
  }
  if (threadIdx.x < 128) {
    asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; "
                 "@p bra DONE; bra AGAIN; DONE: }" :: "r"(full), "r"(0) : "memory");
    asm volatile("wgmma.fence.sync.aligned;");
    for (int k = 0; k < 4; ++k) {
      unsigned long long da = ((base + A_STEP * k) >> 4) | (unsigned long long)(1024 >> 4) << 32 | 1ull << 62;
      unsigned long long db = ((base + 8192 + B_STEP * k) >> 4) | (unsigned long long)(1024 >> 4) << 32 | 1ull << 62;
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.TYPE.TYPE "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, A_MAJOR, B_MAJOR; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
        : "l"(da), "l"(db), "r"(k));
    }
    asm volatile("wgmma.commit_group.sync.aligned;");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    for (int i = 0; i < 16; ++i) c[(row + i / 2 % 2 * 8) * 32 + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = d[i];
  }
}"""
)


def wgmma(source: str, dtype: str, a_transposed: bool, b_transposed: bool, timing: str, bytes_expected: int = 12288):
    """The product of the kernel and NumPy's. Columns of B that it takes from rows of 64 are the first 32."""
    import ml_dtypes

    element = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}[dtype]
    random = np.random.default_rng(0)
    a, b = random.integers(-4, 5, (64, 64)), random.integers(-4, 5, (64, 32))
    text = source.replace("TYPE", dtype).replace("BYTES", str(bytes_expected + 4096 * b_transposed))
    text = text.replace("A_MAJOR", str(int(a_transposed))).replace("B_MAJOR", str(int(b_transposed)))
    text = text.replace("A_STEP", "2048" if a_transposed else "32").replace("B_STEP", "2048" if b_transposed else "32")
    text = text.replace("12288,", "16384,").replace("+ 12288", "+ 16384")
    given_a = np.ascontiguousarray((a.T if a_transposed else a).astype(element))
    given_b = np.ascontiguousarray((b if b_transposed else b.T).astype(element))
    box_b = (64, 64) if b_transposed else (64, 32)  # past column 32 there are zeros
    c = np.zeros((64, 32), np.float32)
    run(text, "k", (1,), (160,), 16392, [TensorMap(given_a, (64, 64)), TensorMap(given_b, box_b), c], timing=timing)
    return c, a @ b


class TestHopper:
    @pytest.mark.parametrize("timing", TIMINGS)
    @pytest.mark.parametrize(
        ("a_transposed", "b_transposed"), [(False, False), (True, False), (False, True), (True, True)]
    )
    def test_wgmma_of_tensor_copies(self, timing: str, a_transposed: bool, b_transposed: bool):
        got, expected = wgmma(WGMMA, "f16", a_transposed, b_transposed, timing)
        assert (got == expected).all()

    def test_bfloat16(self):
        got, expected = wgmma(WGMMA, "bf16", False, False, "random")
        assert (got == expected).all()

    def test_not_waiting_for_the_copy_shows(self):
        waiting = WGMMA[
            WGMMA.index('    asm volatile("{ .reg .pred p; AGAIN') : WGMMA.index('    asm volatile("wgmma.fence')
        ]
        got, expected = wgmma(WGMMA.replace(waiting, ""), "f16", False, False, "lazy")
        assert not np.array_equal(got, expected)

    def test_not_waiting_for_the_product_shows(self):
        late = WGMMA.replace('asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");', "")
        got, expected = wgmma(late, "f16", False, False, "lazy")
        assert not np.array_equal(got, expected)

    def test_a_missing_fence_is_an_error(self):
        with pytest.raises(EmulationError, match=r"without wgmma\.fence"):
            wgmma(WGMMA.replace('asm volatile("wgmma.fence.sync.aligned;");', ""), "f16", False, False, "eager")

    def test_wrong_bytes_deadlock(self):
        with pytest.raises(EmulationError, match="deadlock"):
            wgmma(WGMMA, "f16", False, False, "eager", bytes_expected=12290)

    def test_a_pattern_needs_its_alignment(self):
        with pytest.raises(EmulationError, match="multiple of 1024"):
            wgmma(WGMMA.replace("__align__(1024)", "__align__(128)"), "f16", False, False, "eager")


STRIDED = (
    HEAD
    + """k(float* to, int stride) {
  extern __shared__ __align__(16) unsigned char memory[];
  TYPE* tile = (TYPE*)memory;
  tile[threadIdx.x * stride] = *((const TYPE*)to + threadIdx.x);
  __syncwarp();
  *((TYPE*)to + threadIdx.x) = tile[threadIdx.x * stride];
}"""
)


class TestTrace:
    @pytest.mark.parametrize(
        ("kind", "stride", "conflicts"),
        [
            *[("float", 1, 0), ("float", 2, 1), ("float", 32, 31), ("float", 33, 0), ("float", 0, 0)],
            *[("float2", 1, 0), ("float2", 2, 1), ("float4", 1, 0), ("float4", 2, 1), ("float4", 8, 7)],
        ],
    )
    def test_bank_conflicts_of_loads_and_stores(self, kind: str, stride: int, conflicts: int):
        """A vector of 8 or 16 bytes goes in two or four wavefronts anyway; a word that many lanes read goes once."""
        got, wavefronts = np.zeros(128, np.float32), {"float": 1, "float2": 2, "float4": 4}[kind]
        source = STRIDED.replace("TYPE", kind)
        shared = 31 * 16 * max(stride, 1) + 16
        if stride == 0:  # one lane writes what all read
            source = source.replace("  tile[threadIdx", "  if (threadIdx.x == 0) tile[threadIdx")
        counted = run(source, "k", (1,), (32,), shared, [got, stride], traced=True)
        assert counted.shared_accesses == 2 * wavefronts
        assert counted.shared_conflicts == 2 * wavefronts * conflicts

    def test_a_right_kernel_has_no_race(self):
        given, got = np.arange(300, dtype=np.float32), np.zeros(300, np.float32)
        counted = run(COPY, "k", (3,), (128,), 512, [given, got, 300], timing="eager", traced=True)
        assert (got == reversed_blocks()).all() and counted.shared_conflicts == 0 and counted.shared_accesses > 0

    @pytest.mark.parametrize(
        ("lost", "told"),
        [
            ("  __syncthreads();\n", "a race in shared memory"),
            ('  asm volatile("cp.async.wait_group 0;" ::: "memory");\n', "a copy is on its way"),
        ],
    )
    def test_a_race_is_an_error_even_where_the_result_is_right(self, lost: str, told: str):
        """Eager copies and threads in order: the numbers may well be right."""
        given, got = np.arange(300, dtype=np.float32), np.zeros(300, np.float32)
        with pytest.raises(EmulationError, match=told):
            run(COPY.replace(lost, ""), "k", (3,), (128,), 512, [given, got, 300], timing="eager", traced=True)

    def test_overwriting_what_others_may_still_read_is_a_race(self):
        again = COPY.replace(
            "if (i < n) to[i]", "float x = tile[127 - threadIdx.x]; tile[threadIdx.x] = x; if (i < n) to[i]"
        )
        given, got = np.arange(300, dtype=np.float32), np.zeros(300, np.float32)
        with pytest.raises(EmulationError, match=r"a write after a read|a read after a write"):
            run(again, "k", (3,), (128,), 512, [given, got, 300], timing="eager", traced=True)

    def test_a_warp_barrier_orders_its_warp_only(self):
        body = "tile[threadIdx.x] = 1.0f; __syncwarp(); to[threadIdx.x] = tile[threadIdx.x ^ FLIP];"
        source = HEAD + "k(float* to) { __shared__ float tile[64]; " + body + " }"
        run(source.replace("FLIP", "1"), "k", (1,), (64,), 0, [np.zeros(64, np.float32)], traced=True)
        with pytest.raises(EmulationError, match="a race"):
            run(source.replace("FLIP", "32"), "k", (1,), (64,), 0, [np.zeros(64, np.float32)], traced=True)
