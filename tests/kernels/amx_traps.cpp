// Runs the loops that are compiled for AMX on any CPU with AVX-512 VNNI, and compares them with those on emulated tiles.
//
// A CPU without AMX raises SIGILL at each of its instructions. The handler decodes the instruction, does what the manual
// says of it, faults included, and goes on behind it. A CPU with AMX runs the instructions.
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "conv/cpu/loops/conv2d_tiles.h"
#include "matmul/cpu/loops/matmul_tiles.h"

namespace {

struct Registers {
  uint8_t configuration[64];
  uint8_t tiles[8][16][64];
} registers;
int64_t products = 0;  // instructions that were emulated

int rows_of(int tile) { return registers.configuration[48 + tile]; }
int bytes_of(int tile) { return registers.configuration[16 + 2 * tile]; }

[[noreturn]] void fail(const char* what) {
  std::printf("the CPU would fault: %s\n", what);
  std::fflush(stdout);
  std::_Exit(1);
}
void check(bool right, const char* what) {
  if (!right) fail(what);
}

void configure(const uint8_t* from) {
  std::memcpy(registers.configuration, from, 64);
  check(from[0] <= 1 && from[1] == 0, "palette or start row");
  for (int i = 2; i < 16; ++i) check(from[i] == 0, "reserved bytes");
  for (int tile = 0; tile < 8; ++tile) {
    check(rows_of(tile) <= 16 && bytes_of(tile) <= 64 && from[17 + 2 * tile] == 0, "shape of a tile");
    check((rows_of(tile) == 0) == (bytes_of(tile) == 0), "a tile without rows or without bytes");
  }
  for (int i = 32; i < 48; ++i) check(from[i] == 0, "bytes of a tile that does not exist");
  for (int i = 56; i < 64; ++i) check(from[i] == 0, "rows of a tile that does not exist");
  std::memset(registers.tiles, 0, sizeof(registers.tiles));
}

void add_products(int to, int a, int b, bool a_signed, bool b_signed) {
  check(a != b && a != to && b != to, "operands that are one tile");
  check(rows_of(to) == rows_of(a) && bytes_of(to) == bytes_of(b) && bytes_of(a) == 4 * rows_of(b), "shapes of a product");
  for (int m = 0; m < rows_of(to); ++m) {
    for (int k = 0; k < bytes_of(a); ++k) {
      const uint8_t byte = registers.tiles[a][m][k];
      const uint32_t x = a_signed ? static_cast<uint32_t>(static_cast<int8_t>(byte)) : byte;
      for (int n = 0; n < bytes_of(to) / 4; ++n) {
        const uint8_t other = registers.tiles[b][k / 4][4 * n + k % 4];
        uint32_t sum;
        std::memcpy(&sum, registers.tiles[to][m] + 4 * n, 4);
        sum += x * (b_signed ? static_cast<uint32_t>(static_cast<int8_t>(other)) : other);
        std::memcpy(registers.tiles[to][m] + 4 * n, &sum, 4);
      }
    }
  }
  ++products;
}

// The operands of an instruction: registers by number, or an address, of which the index is the stride of rows.
struct Operands {
  int length, mod, reg, rm;
  uint64_t address = 0, stride = 0;
};

Operands decode(const uint8_t* code, const greg_t* general) {
  constexpr int kNumbers[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  const int reg_high = code[1] & 0x80 ? 0 : 8, index_high = code[1] & 0x40 ? 0 : 8, base_high = code[1] & 0x20 ? 0 : 8;
  const int modrm = code[4];
  Operands o{5, modrm >> 6, (modrm >> 3 & 7) | reg_high, (modrm & 7) | base_high};
  if (o.mod == 3) return o;
  const auto displacement = [&](int at) {
    int32_t value;
    std::memcpy(&value, code + at, 4);
    o.length += 4;
    return static_cast<int64_t>(value);
  };
  const bool has_sib = (modrm & 7) == 4;
  if (has_sib) {
    const int sib = code[o.length++];
    const int index = (sib >> 3 & 7) | index_high;
    if (index != 4) o.stride = static_cast<uint64_t>(general[kNumbers[index]]) << (sib >> 6);
    if ((sib & 7) == 5 && o.mod == 0) {
      o.address = static_cast<uint64_t>(displacement(o.length));
    } else {
      o.address = static_cast<uint64_t>(general[kNumbers[(sib & 7) | base_high]]);
    }
  } else if ((modrm & 7) == 5 && o.mod == 0) {
    const int64_t distance = displacement(o.length);
    o.address = reinterpret_cast<uint64_t>(code) + o.length + distance;
  } else {
    o.address = static_cast<uint64_t>(general[kNumbers[o.rm]]);
  }
  if (o.mod == 1) o.address += static_cast<int64_t>(static_cast<int8_t>(code[o.length++]));
  if (o.mod == 2) o.address += displacement(o.length);
  return o;
}

void emulate(int, siginfo_t*, void* context) {
  greg_t* general = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const uint8_t* code = reinterpret_cast<const uint8_t*>(general[REG_RIP]);
  const bool is_vex = code[0] == 0xc4 && (code[1] & 31) == 2 && (code[2] & 0x84) == 0;
  if (!is_vex) fail("no instruction of AMX");
  const int prefix = code[2] & 3, third = ~(code[2] >> 3) & 15;
  enum { kNone = 0, k66 = 1, kF3 = 2, kF2 = 3 };
  const Operands o = decode(code, general);
  uint8_t* memory = reinterpret_cast<uint8_t*>(o.address);
  const auto tile_exists = [&] { check(registers.configuration[0] == 1 && rows_of(o.reg) > 0, "tiles are not configured"); };
  if (code[3] == 0x49 && o.mod != 3 && prefix == kNone) {
    configure(memory);
  } else if (code[3] == 0x49 && o.mod != 3 && prefix == k66) {
    std::memcpy(memory, registers.configuration, 64);
  } else if (code[3] == 0x49 && prefix == kNone) {
    std::memset(&registers, 0, sizeof(registers));
  } else if (code[3] == 0x49 && prefix == kF2) {
    tile_exists();
    std::memset(registers.tiles[o.reg], 0, 1024);
  } else if (code[3] == 0x4b && prefix == kF2) {
    tile_exists();
    std::memset(registers.tiles[o.reg], 0, 1024);
    for (int r = 0; r < rows_of(o.reg); ++r) std::memcpy(registers.tiles[o.reg][r], memory + r * o.stride, bytes_of(o.reg));
  } else if (code[3] == 0x4b && prefix == kF3) {
    tile_exists();
    for (int r = 0; r < rows_of(o.reg); ++r) std::memcpy(memory + r * o.stride, registers.tiles[o.reg][r], bytes_of(o.reg));
  } else if (code[3] == 0x5e) {
    tile_exists();
    add_products(o.reg, o.rm, third, prefix == kF2 || prefix == kF3, prefix == kF2 || prefix == k66);
  } else {
    fail("an unknown instruction of AMX");
  }
  general[REG_RIP] += o.length;
}

struct alignas(64) Configuration {
  uint8_t bytes[64];
};

Configuration configuration_now() {
  Configuration now{};
  __asm__ volatile("sttilecfg %0" : "=m"(now));
  return now;
}

std::mt19937 random_bits(1);

template <typename T>
std::vector<T> random_values(int64_t count) {
  std::vector<T> values(count);
  for (T& each : values) each = static_cast<T>(static_cast<int32_t>(random_bits() % 256) - 128);
  return values;
}

// How many results differ between the two versions of a loop; and whether tiles stay as they were configured.
template <typename Args, typename Loop>
int64_t differences(const Args& args, int64_t tasks, Loop amx, Loop emulated, std::vector<float>& y) {
  const Configuration before = configuration_now();
  std::vector<uint8_t> scratch(args.scratch() + 1);
  emulated(args, 0, tasks, scratch.data());
  const std::vector<float> want = y;
  std::fill(y.begin(), y.end(), -1.0f);
  std::fill(scratch.begin(), scratch.end(), uint8_t{0});
  amx(args, 0, tasks, scratch.data());
  const Configuration after = configuration_now();
  int64_t different = std::memcmp(&before, &after, sizeof(before)) != 0;
  for (size_t i = 0; i < y.size(); ++i) different += y[i] != want[i];
  return different;
}

int64_t check_conv(const fxquant::ConvShape& s, bool is_signed) {
  const auto x = random_values<uint8_t>(s.batch * s.planes * s.height * s.width * s.in_channels);
  const auto weight = random_values<int8_t>(s.group_bundles() * s.panels() * s.panel_bytes());
  const auto correction = random_values<int32_t>(s.channels);
  const auto bias = random_values<float>(s.channels);
  const std::vector<float> scale(s.channels, 1.0f);
  const std::vector<uint8_t> padding(s.in_channels, 7);
  std::vector<float> y(s.out_pixels() * s.channels);
  const fxquant::ConvArgs args{s,           x.data(), s.in_channels, is_signed, padding.data(), weight.data(), correction.data(),
                               scale.data(), bias.data(), nullptr, false, 1.0f, 0, nullptr, y.data(), {}};
  const fxquant::TileConvArgs tiles(args, 1);
  return differences(tiles, tiles.tasks(), fxquant::amx::conv_tiles_loop, fxquant::avx512_vnni::conv_tiles_loop, y);
}

int64_t check_matmul(int64_t rows, int64_t k_size, int64_t columns, bool is_signed) {
  const int64_t padded = fxquant::tile_padded_k(k_size), panels = (columns + 15) / 16;
  const auto a = random_values<uint8_t>(rows * k_size);
  const auto b = random_values<int8_t>(panels * 16 * padded);
  const auto column_terms = random_values<int32_t>(panels * 16);
  std::vector<float> y(rows * columns);
  const fxquant::Batches one{};
  const fxquant::MatmulArgs args{rows, k_size, columns, a.data(), k_size, one, b.data(), column_terms.data(), one,
                                 3,    1.0f,   {},      nullptr,  y.data()};
  const fxquant::TileMatmulArgs tiles{args, padded, 1, is_signed, padded == k_size};
  return differences(tiles, tiles.strips() * tiles.n_blocks(), fxquant::amx::matmul_tiles_loop,
                     fxquant::avx512_vnni::matmul_tiles_loop, y);
}

// A convolution with a square window and padding that keeps the size, but for the stride.
fxquant::ConvShape image(int64_t channels, int64_t size, int64_t out_channels, int64_t side, int64_t stride, int64_t padding,
                         int64_t groups = 1) {
  const int64_t out = (size + 2 * padding - side) / stride + 1;
  return {2, size, size, channels, out, out, out_channels, side, side, stride, stride, padding, padding, 1, 1, groups};
}

int64_t check_all() {
  int64_t different = 0;
  for (const bool is_signed : {false, true}) {
    for (const int64_t rows : {1, 15, 16, 17, 40}) {
      for (const int64_t k_size : {4, 64, 76, 100, 128, 148}) {
        different += check_conv(fxquant::linear_shape(rows, k_size, 33), is_signed);
        different += check_matmul(rows, k_size, 50, is_signed);
      }
    }
    for (const fxquant::ConvShape& shape :
         {image(64, 6, 33, 1, 2, 0), image(64, 6, 48, 3, 1, 0), image(64, 7, 48, 3, 1, 1), image(76, 7, 20, 3, 2, 1),
          image(4, 9, 33, 3, 2, 1), image(48, 7, 64, 3, 1, 1, 2), image(20, 20, 20, 2, 7, 1)}) {
      different += check_conv(shape, is_signed);
    }
  }
  return different;
}

}  // namespace

int main() {
  const bool has_amx = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
  struct sigaction action {};
  action.sa_sigaction = emulate;
  action.sa_flags = SA_SIGINFO;
  if (!has_amx) sigaction(SIGILL, &action, nullptr);
  int64_t different = check_all();
  // Tiles that who calls has configured.
  Configuration of_caller{{1}};
  of_caller.bytes[16] = 32;
  of_caller.bytes[48] = 5;
  __asm__ volatile("ldtilecfg %0" : : "m"(of_caller));
  different += check_conv(fxquant::linear_shape(20, 64, 40), false);
  different += check_matmul(20, 64, 40, true);
  const Configuration after = configuration_now();
  different += std::memcmp(&after, &of_caller, sizeof(after)) != 0;
  __asm__ volatile("tilerelease");
  std::printf("%lld differences%s\n", static_cast<long long>(different),
              has_amx || products > 1000 ? "" : ", and hardly an instruction was emulated");
  return different != 0;
}
