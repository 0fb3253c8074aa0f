// The eight tile registers of AMX: each at most 16 rows of 64 bytes. No torch.
//
// Loops are written once against the class Tiles. Compiled for AMX it is empty, and its functions are the instructions;
// elsewhere it holds the registers in memory and does what the manual says of each instruction, so that the same loops
// give the same bits on every CPU. A Tiles lives in one call of a loop, on the thread that runs it: it configures the
// registers of that thread, and release() gives them back as they were configured before. No destructor does: exceptions,
// which loops do not throw, would need functions that instruction sets share.
//
//   Tiles tiles({{16, 64}, ...});            // rows and bytes of each register; the instructions work on so many
//   tiles.zero<0>();                         // 16 x 16 accumulators, int32
//   tiles.load<4>(lhs, row_stride);          // rows of bytes
//   tiles.load<6>(rhs, row_stride);          // K groups: each row has four bytes for each of 16 channels
//   tiles.add_products<false, 0, 4, 6>();    // accumulators += LHS * RHS, modulo 2^32; <true, ...> for an int8 LHS
//   tiles.store<0>(accumulators, row_stride);
//   tiles.release();
#pragma once
#include <cstdint>
#include <cstring>

#include "conv/conv_shape.h"
#include "cpu/loops/intrinsics.h"
#include "math/modulo.h"

namespace fxquant {

constexpr int kTiles = 8;
constexpr int64_t kTileRows = 16;
constexpr int64_t kTileBytes = 64;  // of a row

struct TileShape {
  int64_t rows;
  int64_t bytes;
};

namespace FXQ_ISA {
namespace {

#if defined(__AMX_INT8__)
// The operand of ldtilecfg.
struct alignas(64) TileConfiguration {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfiguration) == 64, "as the manual draws it");

// The compiler's functions take the number of a register as a word of the program, so each number has a class.
// They do not say that they read and write memory: FXQ_TILE_MEMORY keeps other accesses on their side of them.
#define FXQ_TILE_MEMORY __asm__ volatile("" ::: "memory")
template <int kTile>
struct TileRegister;
#define FXQ_TILE_REGISTER(tile)                                                                        \
  template <>                                                                                          \
  struct TileRegister<tile> {                                                                          \
    static FXQ_INLINE void zero() { _tile_zero(tile); }                                                \
    static FXQ_INLINE void load(const void* from, int64_t stride) { _tile_loadd(tile, from, stride); } \
    static FXQ_INLINE void store(void* to, int64_t stride) { _tile_stored(tile, to, stride); }         \
  };
FXQ_TILE_REGISTER(0)
FXQ_TILE_REGISTER(1)
FXQ_TILE_REGISTER(2)
FXQ_TILE_REGISTER(3)
FXQ_TILE_REGISTER(4)
FXQ_TILE_REGISTER(5)
FXQ_TILE_REGISTER(6)
FXQ_TILE_REGISTER(7)
#undef FXQ_TILE_REGISTER

template <int kAcc, int kLhs, int kRhs>
struct TileProducts;
#define FXQ_TILE_PRODUCTS(acc, lhs, rhs)                                         \
  template <>                                                                    \
  struct TileProducts<acc, lhs, rhs> {                                           \
    static FXQ_INLINE void add_of_unsigned() { _tile_dpbusd(acc, lhs, rhs); }    \
    static FXQ_INLINE void add_of_signed() { _tile_dpbssd(acc, lhs, rhs); }      \
  };
// Two by two tiles of accumulators, and the pairs of tile_block.h for a K with a tail.
FXQ_TILE_PRODUCTS(0, 4, 6)
FXQ_TILE_PRODUCTS(1, 4, 7)
FXQ_TILE_PRODUCTS(2, 5, 6)
FXQ_TILE_PRODUCTS(3, 5, 7)
FXQ_TILE_PRODUCTS(1, 5, 6)
FXQ_TILE_PRODUCTS(0, 2, 7)
FXQ_TILE_PRODUCTS(1, 3, 7)
#undef FXQ_TILE_PRODUCTS

class Tiles {
 public:
  explicit Tiles(const TileShape (&shapes)[kTiles]) {
    _tile_storeconfig(&before_);
    FXQ_TILE_MEMORY;
    TileConfiguration now{};
    now.palette = 1;
    for (int i = 0; i < kTiles; ++i) {
      now.bytes[i] = static_cast<uint16_t>(shapes[i].bytes);
      now.rows[i] = static_cast<uint8_t>(shapes[i].rows);
    }
    configure(now);
  }
  // Live tiles make each switch of threads dearer, so they are released, unless who called had configured them.
  void release() const {
    if (before_.palette == 0) {
      _tile_release();
    } else {
      configure(before_);
    }
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int kTile>
  FXQ_INLINE void zero() {
    TileRegister<kTile>::zero();
  }
  template <int kTile>
  FXQ_INLINE void load(const void* from, int64_t stride) {
    FXQ_TILE_MEMORY;
    TileRegister<kTile>::load(from, stride);
  }
  template <int kTile>
  FXQ_INLINE void store(void* to, int64_t stride) const {
    FXQ_TILE_MEMORY;
    TileRegister<kTile>::store(to, stride);
    FXQ_TILE_MEMORY;
  }
  template <bool kSigned, int kAcc, int kLhs, int kRhs>
  FXQ_INLINE void add_products() {
    if constexpr (kSigned) {
      TileProducts<kAcc, kLhs, kRhs>::add_of_signed();
    } else {
      TileProducts<kAcc, kLhs, kRhs>::add_of_unsigned();
    }
  }

 private:
  TileConfiguration before_;

  static void configure(const TileConfiguration& to) {
    __asm__ volatile("" ::"r"(&to) : "memory");  // GCC takes ldtilecfg to read the first 8 bytes alone
    _tile_loadconfig(&to);
    FXQ_TILE_MEMORY;
  }
};
#else
class Tiles {
 public:
  explicit Tiles(const TileShape (&shapes)[kTiles]) {
    for (int i = 0; i < kTiles; ++i) {
      const bool exists = shapes[i].rows >= 1 && shapes[i].rows <= kTileRows && shapes[i].bytes >= 4 &&
                          shapes[i].bytes <= kTileBytes && shapes[i].bytes % 4 == 0;
      if (!exists) __builtin_trap();
      shapes_[i] = shapes[i];
    }
    std::memset(registers_, 0, sizeof(registers_));
  }
  void release() const {}
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int kTile>
  void zero() {
    std::memset(registers_[kTile], 0, sizeof(registers_[kTile]));
  }
  template <int kTile>
  void load(const void* from, int64_t stride) {
    zero<kTile>();
    const uint8_t* rows = static_cast<const uint8_t*>(from);
    for (int64_t r = 0; r < shapes_[kTile].rows; ++r) {
      std::memcpy(registers_[kTile][r], rows + r * stride, shapes_[kTile].bytes);
    }
  }
  template <int kTile>
  void store(void* to, int64_t stride) const {
    uint8_t* rows = static_cast<uint8_t*>(to);
    for (int64_t r = 0; r < shapes_[kTile].rows; ++r) {
      std::memcpy(rows + r * stride, registers_[kTile][r], shapes_[kTile].bytes);
    }
  }
  template <bool kSigned, int kAcc, int kLhs, int kRhs>
  void add_products() {
    const TileShape &acc = shapes_[kAcc], &lhs = shapes_[kLhs], &rhs = shapes_[kRhs];
    // The instruction faults where the shapes do not fit each other.
    if (acc.rows != lhs.rows || acc.bytes != rhs.bytes || lhs.bytes != 4 * rhs.rows) __builtin_trap();
    for (int64_t r = 0; r < lhs.rows; ++r) {
      for (int64_t k = 0; k < rhs.rows; ++k) add_k_group<kSigned>(registers_[kLhs][r] + 4 * k, registers_[kRhs][k], r, kAcc);
    }
  }

 private:
  TileShape shapes_[kTiles];
  alignas(64) uint8_t registers_[kTiles][kTileRows][kTileBytes];

  // Adds four bytes times four weights to each of 16 accumulators of a row. Compilers make vectors of 32-bit words, of whose
  // bytes shifts make integers.
  template <bool kSigned>
  void add_k_group(const uint8_t* x, const uint8_t* weights, int64_t row, int acc) {
    const auto value = [x](int i) { return kSigned ? static_cast<int8_t>(x[i]) : static_cast<int32_t>(x[i]); };
    const int32_t x0 = value(0), x1 = value(1), x2 = value(2), x3 = value(3);
    uint32_t words[kTileRows];
    int32_t sums[kTileRows];
    std::memcpy(words, weights, sizeof(words));
    std::memcpy(sums, registers_[acc][row], sizeof(sums));
    for (int c = 0; c < kTileRows; ++c) {
      const int32_t w0 = static_cast<int32_t>(words[c] << 24) >> 24, w1 = static_cast<int32_t>(words[c] << 16) >> 24;
      const int32_t w2 = static_cast<int32_t>(words[c] << 8) >> 24, w3 = static_cast<int32_t>(words[c]) >> 24;
      sums[c] = add_modulo(sums[c], x0 * w0 + x1 * w1 + x2 * w2 + x3 * w3);
    }
    std::memcpy(registers_[acc][row], sums, sizeof(sums));
  }
};
#endif

}  // namespace
}  // namespace FXQ_ISA
}  // namespace fxquant
