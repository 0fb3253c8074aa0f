// Records which loops the operators of a thread launch, and on which memory. program.h runs them again.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/checks.h"
#include "common/layout.h"
#include "cpu/allocations.h"
#include "cpu/row_parts.h"

namespace fxquant {

inline int64_t aligned(int64_t bytes) { return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine; }

// The role of a region of memory in a program.
enum class Role : int64_t { kInput, kOutput, kTemporary, kConstant };

struct Region {
  const uint8_t* begin;
  int64_t bytes;
  Role role;
  int64_t index;  // of an input or an output
};

// The memory that a recording knows. A region that was added stays alive until the recording ends.
class Regions {
 public:
  void add(const Region& added) {
    if (added.bytes == 0) return;
    maybe_fail_allocation();
    const auto after = regions_.upper_bound(added.begin);
    if (after != regions_.begin()) {
      Region& before = std::prev(after)->second;
      if (before.begin == added.begin) {
        // A tensor that a binding allocated is temporary, until it becomes an output.
        if (before.bytes != added.bytes || before.role != Role::kTemporary) fail_shared();
        before = added;
        return;
      }
      if (before.begin + before.bytes > added.begin) fail_shared();
    }
    if (after != regions_.end() && after->first < added.begin + added.bytes) fail_shared();
    regions_.emplace(added.begin, added);
  }

  // Returns the region in which a pointer lies.
  const Region* around(const void* pointer) const {
    const auto* memory = static_cast<const uint8_t*>(pointer);
    const auto after = regions_.upper_bound(memory);
    if (after != regions_.begin()) {
      const Region& region = std::prev(after)->second;
      if (memory < region.begin + region.bytes) return &region;
    }
    throw std::runtime_error("an operator reads or writes memory that its program does not know");
  }

 private:
  [[noreturn]] static void fail_shared() { throw std::runtime_error("tensors share memory"); }

  std::map<const uint8_t*, Region> regions_;
};

// A pointer in the argument block.
struct ArgumentPointer {
  int64_t at;            // where it stands in the argument block
  const Region* region;  // into which it points; null: into the argument block
  int64_t offset;        // bytes from the begin of the region
};

// Where the pointers that fuse_tables.h exchanges stand in the argument block; -1: the step has no such pointer.
//   x >= 0:                the step is itself a lookup. It reads at the pointer x, and writes at `bytes`.
//   x == -1, bytes >= 0:   the step can take a lookup table, at `table`, for what it writes at `bytes`.
//   all -1:                neither.
struct FusibleLookup {
  int64_t x = -1;
  int64_t table = -1;
  int64_t bytes = -1;
  int64_t count = 0;
};

struct Step {
  // Casts `loop` to the type that it was launched with, and calls it.
  void (*call)(void (*loop)(), const void* args, int64_t begin, int64_t end, void* scratch);
  void (*loop)();
  int64_t args;  // where its argument struct stands in the argument block
  int64_t tasks;
  int64_t grain;
  int64_t scratch;
  FusibleLookup lookup;
  // Of a step that can compute rows of its result alone: where its pointers to x and to the result stand. -1: it cannot.
  int64_t rows_x = -1;
  int64_t rows_y = -1;
  RowWindow rows = {};
  void (*call_rows)(void (*loop)(), const void* args, const RowPart& part, void* scratch) = nullptr;
  int64_t number = 0;  // among the steps that were recorded
  int64_t chain = -1;  // of which this is the first link; see chains.h
};

// The argument structs of all steps and the arrays that they point to, one behind the other.
struct ArgumentBlock {
  std::vector<uint8_t> bytes;
  std::vector<ArgumentPointer> pointers;

  template <typename T>
  int64_t append(const T* from, int64_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    maybe_fail_allocation();
    const int64_t place = static_cast<int64_t>(bytes.size());
    const int64_t length = count * static_cast<int64_t>(sizeof(T));
    bytes.resize(place + aligned(length));
    std::memcpy(bytes.data() + place, from, length);
    return place;
  }
};

// The visitor of an argument struct, whose method `pointers` names each pointer of the struct once, as one of three kinds,
// but those that a program sets itself (`table`, see fuse_tables.h).
class Pointers {
 public:
  Pointers(ArgumentBlock& arguments, const Regions& regions, const void* base, int64_t place)
      : arguments_(arguments), regions_(regions), base_(static_cast<const uint8_t*>(base)), place_(place) {}

  // A pointer to memory of a tensor.
  template <typename T>
  void tensor(T* const& field) {
    if (field == nullptr) return;
    const Region* region = regions_.around(field);
    const auto* memory = static_cast<const uint8_t*>(static_cast<const void*>(field));
    arguments_.pointers.push_back({place_of(&field), region, memory - region->begin});
  }
  // A pointer to an array of the binding, which is gone after the call. It holds no pointers.
  template <typename T>
  void array(const T* const& field, int64_t count) {
    if (field != nullptr) arguments_.pointers.push_back({place_of(&field), nullptr, arguments_.append(field, count)});
  }
  // A pointer to an array of structs, which hold pointers to tensors.
  template <typename T>
  void structs(const T* const& field, int64_t count) {
    const int64_t place = arguments_.append(field, count);
    arguments_.pointers.push_back({place_of(&field), nullptr, place});
    for (int64_t i = 0; i < count; ++i) {
      Pointers inner(arguments_, regions_, field + i, place + i * static_cast<int64_t>(sizeof(T)));
      field[i].pointers(inner);
    }
  }

 private:
  int64_t place_of(const void* field) const { return place_ + (static_cast<const uint8_t*>(field) - base_); }

  ArgumentBlock& arguments_;
  const Regions& regions_;
  const uint8_t* base_;
  int64_t place_;
};

struct AnyVisitor {
  template <typename... T>
  void operator()(const T&...) const {}
};
template <typename Args, typename = void>
struct AcceptsLookup : std::false_type {};
template <typename Args>
struct AcceptsLookup<Args, std::void_t<decltype(std::declval<const Args&>().accepts_lookup(AnyVisitor()))>>
    : std::true_type {};
template <typename Args, typename = void>
struct IsLookupStep : std::false_type {};
template <typename Args>
struct IsLookupStep<Args, std::void_t<decltype(std::declval<const Args&>().lookup_step(AnyVisitor()))>>
    : std::true_type {};
template <typename Args, typename = void>
struct HasRows : std::false_type {};
template <typename Args>
struct HasRows<Args, std::void_t<decltype(std::declval<const Args&>().row_window(AnyVisitor()))>> : std::true_type {};

class Recorder {
 public:
  // Records one launch. Throws where a pointer leads to memory that the recording does not know.
  template <typename Args>
  void add(const Args& args, int64_t tasks, int64_t grain, void (*loop)(const Args&, int64_t, int64_t, void*),
           int64_t scratch) {
    const int64_t place = arguments.append(&args, 1);
    Pointers pointers(arguments, regions, &args, place);
    args.pointers(pointers);
    FusibleLookup lookup;
    const auto place_of = [&](const void* field) {
      return place + (static_cast<const uint8_t*>(field) - reinterpret_cast<const uint8_t*>(&args));
    };
    if constexpr (AcceptsLookup<Args>::value) {
      args.accepts_lookup([&](const auto& bytes, const auto& table, int64_t count) {
        lookup = {-1, place_of(&table), place_of(&bytes), count};
      });
    } else if constexpr (IsLookupStep<Args>::value) {
      args.lookup_step([&](const auto& x, const auto& table, const auto& bytes) {
        lookup = {place_of(&x), place_of(&table), place_of(&bytes), tasks};
      });
    }
    Step step{call<Args>, reinterpret_cast<void (*)()>(loop), place, tasks, grain, scratch, lookup};
    if constexpr (HasRows<Args>::value) {
      args.row_window([&](const auto& x, const auto& y, const RowWindow& rows) {
        step.rows_x = place_of(&x);
        step.rows_y = place_of(&y);
        step.rows = rows;
        step.call_rows = call_rows<Args>;
      });
    }
    step.number = static_cast<int64_t>(steps.size());
    steps.push_back(step);
  }

  // Keeps a dense tensor alive until the recording ends, so that no other tensor gets its address. allocated() (recorder.cpp)
  // calls it for what a binding allocates, by empty_as(). Python names results again (_track_result of runtime/recording.py),
  // since some come from no binding.
  void keep_alive(const torch::stable::Tensor& x) {
    maybe_fail_allocation();
    keep_alive_.push_back(x);
    const int64_t bytes = x.numel() * x.element_size();
    regions.add({static_cast<const uint8_t*>(x.const_data_ptr()), bytes, Role::kTemporary, 0});
  }

  // Drops the steps from number `count` on.
  void forget(int64_t count) {
    if (count >= static_cast<int64_t>(steps.size())) return;
    const int64_t place = steps[count].args;
    while (!arguments.pointers.empty() && arguments.pointers.back().at >= place) arguments.pointers.pop_back();
    arguments.bytes.resize(place);
    steps.resize(count);
  }

  Regions regions;
  ArgumentBlock arguments;
  std::vector<Step> steps;

 private:
  template <typename Args>
  static void call(void (*loop)(), const void* args, int64_t begin, int64_t end, void* scratch) {
    reinterpret_cast<void (*)(const Args&, int64_t, int64_t, void*)>(loop)(*static_cast<const Args*>(args), begin, end,
                                                                           scratch);
  }

  template <typename Args>
  static void call_rows(void (*loop)(), const void* args, const RowPart& part, void* scratch) {
    Args of_part(*static_cast<const Args*>(args));
    of_part.take_rows(part);
    reinterpret_cast<void (*)(const Args&, int64_t, int64_t, void*)>(loop)(of_part, 0, of_part.tasks(), scratch);
  }

  std::vector<torch::stable::Tensor> keep_alive_;
};

// Returns the recorder of this thread, or null where nothing is recorded.
Recorder* recorder();

}  // namespace fxquant
