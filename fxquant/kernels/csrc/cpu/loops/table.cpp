#include "table.h"

#include "blocks.h"
#include "intrinsics.h"

namespace fxquant {
namespace FXQ_ISA {
namespace {

void look_up(const uint8_t* FXQ_RESTRICT x, const uint8_t* FXQ_RESTRICT table, uint8_t* FXQ_RESTRICT y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = table[x[i]];
}

#if defined(__AVX512BW__)
// The table in four registers, 64 answers at once. Most CPUs with AVX-512 have the byte permutation (VBMI), not all.
__attribute__((target("avx512vbmi"))) void look_up_vbmi(const uint8_t* x, const uint8_t* table, uint8_t* y,
                                                        int64_t count) {
  const __m512i t0 = _mm512_loadu_si512(table);
  const __m512i t1 = _mm512_loadu_si512(table + 64);
  const __m512i t2 = _mm512_loadu_si512(table + 128);
  const __m512i t3 = _mm512_loadu_si512(table + 192);
  for (int64_t i = 0; i < count; i += 64) {
    const __mmask64 some = count - i < 64 ? (__mmask64{1} << (count - i)) - 1 : ~__mmask64{0};
    const __m512i bytes = _mm512_maskz_loadu_epi8(some, x + i);
    const __m512i low = _mm512_permutex2var_epi8(t0, bytes, t1);   // by the lower 7 bits
    const __m512i high = _mm512_permutex2var_epi8(t2, bytes, t3);  // for bytes from 128 on
    _mm512_mask_storeu_epi8(y + i, some, _mm512_mask_blend_epi8(_mm512_movepi8_mask(bytes), low, high));
  }
}
#endif

}  // namespace

void table_loop(const TableArgs& args, int64_t begin, int64_t end) {
#if defined(__AVX512BW__)
  if (__builtin_cpu_supports("avx512vbmi")) {
    look_up_vbmi(args.x + begin, args.table, args.y + begin, end - begin);
    return;
  }
#endif
  look_up(args.x + begin, args.table, args.y + begin, end - begin);
}

}  // namespace FXQ_ISA
}  // namespace fxquant
