/* Loops over chains of dependent instructions on registers alone: what a core does while it waits for no operand. The vector code is
 * assembly text, so that it builds whatever the compiler's own flags allow; who calls it knows what may run. */
#ifndef VORTEX_CHAINS_H
#define VORTEX_CHAINS_H

#define REP4(x) x x x x
#define VECTORS \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
  "xmm11", "xmm12"
#define ACC(r, n) "vfmadd231ps %%" r "12, %%" r "12, %%" r n "\n\t"
/* Twelve chains cover latency x issue of every core so far (Haswell: 5 x 2). Zeros throughout: no denormals. */
#define TWELVE_OF(one)                                                                                        \
  one("0") one("1") one("2") one("3") one("4") one("5") one("6") one("7") one("8") one("9") one("10") one("11")
#define ZMM_ACC(n) ACC("zmm", n)
#define YMM_ACC(n) ACC("ymm", n)
#define LOOP(body) "vzeroall\n1:\n\t" body "dec %0\n\tjnz 1b\n\tvzeroupper" : "+r"(n)::VECTORS, "cc"

/* Multiply-adds of vectors of so many floats, 16 or 8: how many were done. */
static inline double multiply_adds(int lanes) {
  long n = 2000;
  if (lanes == 16)
    __asm__ volatile(LOOP(REP4(TWELVE_OF(ZMM_ACC))));
  else
    __asm__ volatile(LOOP(REP4(TWELVE_OF(YMM_ACC))));
  return 2000.0 * 4 * 12;
}

#endif
