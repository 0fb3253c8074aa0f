#include "cpu/brgemm.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <string>
#include <vector>

#if defined(FXQ_X86) && defined(__linux__)
#include <dlfcn.h>
#endif

#include "cpu/amx.h"
#include "cpu/isa.h"

namespace fxquant {
namespace {

// at::native::cpublas::brgemm and brgemm_release of ATen/native/CPUBlas.h. They are no part of the stable ABI: a torch
// that lacks them, or has them with other arguments and so under other names, runs our own loops instead.
using Multiply = void (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, const unsigned char*,
                          const signed char*, int32_t*, bool);
using Release = void (*)(bool);

struct Functions {
  Multiply multiply = nullptr;
  Release release = nullptr;
  const char* refusal = "";  // why there are none
};

Functions find() {
  Functions found;
#if defined(FXQ_X86) && defined(__linux__)
  // Python loads libraries so that others do not see them: ask the one that is there already, by its name.
  void* library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return found;
  found.multiply = reinterpret_cast<Multiply>(dlsym(library, "_ZN2at6native7cpublas6brgemmEllllllbPKhPKaPib"));
  found.release = reinterpret_cast<Release>(dlsym(library, "_ZN2at6native7cpublas14brgemm_releaseEb"));
#endif
  return found;
}

// Products of the largest bytes, which saturate in 16 bits; then as many again, of one sign less.
bool is_right(const Functions& functions) {
  constexpr int64_t kRows = 16, kColumns = 32, kDepth = 68;
  const std::vector<uint8_t> a(kRows * kDepth, 255);
  std::vector<int8_t> b(kDepth * kColumns, 127);
  std::vector<int32_t> c(kRows * kColumns, 1);
  const auto all_are = [&c](int32_t value) {
    return std::all_of(c.begin(), c.end(), [value](int32_t each) { return each == value; });
  };
  try {
    functions.multiply(kRows, kColumns, kDepth, kDepth, kColumns, kColumns, false, a.data(), b.data(), c.data(), true);
    if (!all_are(kDepth * 255 * 127)) return false;
    std::fill(b.begin(), b.end(), static_cast<int8_t>(-128));
    functions.multiply(kRows, kColumns, kDepth, kDepth, kColumns, kColumns, true, a.data(), b.data(), c.data(), true);
    functions.release(true);
    return all_are(-kDepth * 255);
  } catch (...) {
    return false;
  }
}

std::atomic<bool> refused{false};

const Functions& functions() {
  static const Functions found = [] {
    const Functions candidate = find();
    if (candidate.multiply == nullptr || candidate.release == nullptr) {
      return Functions{nullptr, nullptr, "this torch has no brgemm for bytes"};
    }
    return is_right(candidate) ? candidate : Functions{nullptr, nullptr, "brgemm of this torch fails here"};
  }();
  return found;
}

// What tells oneDNN to do without tiles; empty if nothing does.
std::string forbidding_variable() {
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    const char* value = std::getenv(name);
    std::string text(value == nullptr ? "" : value);
    for (char& each : text) each = static_cast<char>(std::toupper(static_cast<unsigned char>(each)));
    const bool permits = text.empty() || text == "ALL" || text == "DEFAULT" || text.find("AMX") != std::string::npos;
    if (!permits) return std::string(name) + "=" + value;
  }
  return "";
}

std::string find_tiles_refusal() {
  if (*amx_refusal() != 0) return amx_refusal();
  const std::string variable = forbidding_variable();
  return variable.empty() ? functions().refusal : variable + " leaves AMX out";
}

}  // namespace

bool has_brgemm() { return !refused.load(std::memory_order_relaxed) && functions().multiply != nullptr; }

const char* tiles_refusal() {
  static const std::string found = find_tiles_refusal();
  return found.empty() && !has_brgemm() ? "brgemm of torch refused a product: oneDNN was switched off" : found.c_str();
}

bool prefers_brgemm(int64_t rows, int64_t columns, int64_t k_size) {
  constexpr BrgemmLimits kLeast;
  const bool is_large = rows >= kLeast.rows && columns >= kLeast.columns && k_size >= kLeast.k_size;
  return is_large && active_isa() == kBrgemm && has_brgemm();
}

bool brgemm(int64_t rows, int64_t columns, int64_t k_size, const uint8_t* a, int64_t row_stride, const int8_t* b,
            bool adds, int32_t* c) {
  if (!has_brgemm()) return false;
  try {
    functions().multiply(rows, columns, k_size, row_stride, columns, columns, adds, a, b, c, true);
    return true;
  } catch (...) {
    refused.store(true, std::memory_order_relaxed);  // an exception costs milliseconds: never again
    return false;
  }
}

void brgemm_release() {
  if (has_brgemm()) functions().release(true);
}

}  // namespace fxquant
