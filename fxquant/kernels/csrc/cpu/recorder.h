// Records what the operators of a thread launch, to be run again without them: see program.h.
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
#include "cpu/allocations.h"

namespace fxquant {

// A stretch of memory, and what it is to a program.
enum class Role : int64_t { kInput, kOutput, kTemporary, kConstant };

struct Region {
  const uint8_t* begin;
  int64_t bytes;
  Role role;
  int64_t index;  // of an input or an output
};

// All memory that a recording knows. What was added stays where it is until the recording ends.
class Regions {
 public:
  void add(const Region& added) {
    if (added.bytes == 0) return;
    count_allocation();
    const auto after = regions_.upper_bound(added.begin);
    if (after != regions_.begin()) {
      Region& before = std::prev(after)->second;
      if (before.begin == added.begin) {
        // what a binding allocated becomes known by its role once it is handed out
        if (before.bytes != added.bytes || before.role != Role::kTemporary) fail_shared();
        before = added;
        return;
      }
      if (before.begin + before.bytes > added.begin) fail_shared();
    }
    if (after != regions_.end() && after->first < added.begin + added.bytes) fail_shared();
    regions_.emplace(added.begin, added);
  }

  // The region in which a pointer lies.
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

// A pointer inside the image.
struct PointerSlot {
  int64_t at;            // its own place in the image
  const Region* region;  // into which it points; null: into the image
  int64_t offset;        // there
};

// Places in the image of the pointers of a step whose bytes may be looked up in a table at once (then `bytes` is where it
// writes them to), or which does nothing but look bytes up (then `x` is where it reads them). -1: it is no such step.
struct FusibleLookup {
  int64_t x = -1;
  int64_t table = -1;
  int64_t bytes = -1;
  int64_t count = 0;
};

struct Step {
  void (*call)(void (*loop)(), const void* args, int64_t begin, int64_t end, void* scratch);
  void (*loop)();
  int64_t args;  // its place in the image
  int64_t tasks;
  int64_t grain;
  int64_t scratch;
  FusibleLookup lookup;
};

// The arguments of all steps and the arrays that they point to, one behind the other.
struct ArgumentBlock {
  static constexpr int64_t kAlignment = 64;

  std::vector<uint8_t> bytes;
  std::vector<PointerSlot> slots;

  template <typename T>
  int64_t append(const T* from, int64_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    count_allocation();
    const int64_t place = static_cast<int64_t>(bytes.size());
    const int64_t length = count * static_cast<int64_t>(sizeof(T));
    bytes.resize(place + (length + kAlignment - 1) / kAlignment * kAlignment);
    std::memcpy(bytes.data() + place, from, length);
    return place;
  }
};

// What the `pointers` of an argument struct is called with; it names each pointer of the struct once, as one of these.
class Pointers {
 public:
  Pointers(ArgumentBlock& arguments, const Regions& regions, const void* base, int64_t place)
      : arguments_(arguments), regions_(regions), base_(static_cast<const uint8_t*>(base)), place_(place) {}

  // To memory of a tensor.
  template <typename T>
  void tensor(T* const& field) {
    if (field == nullptr) return;
    const Region* region = regions_.around(field);
    const auto* memory = static_cast<const uint8_t*>(static_cast<const void*>(field));
    arguments_.slots.push_back({place_of(&field), region, memory - region->begin});
  }
  // To an array of the binding, which is gone after the call; it holds no pointers.
  template <typename T>
  void array(const T* const& field, int64_t count) {
    if (field != nullptr) arguments_.slots.push_back({place_of(&field), nullptr, arguments_.append(field, count)});
  }
  // To an array of structs with pointers to tensors.
  template <typename T>
  void structs(const T* const& field, int64_t count) {
    const int64_t place = arguments_.append(field, count);
    arguments_.slots.push_back({place_of(&field), nullptr, place});
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

class Recorder {
 public:
  // Throws where a pointer leads to memory that is not known: whoever made that has let a program miss it.
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
    steps.push_back({call<Args>, reinterpret_cast<void (*)()>(loop), place, tasks, grain, scratch, lookup});
  }

  // Nothing else is to be allocated where x, a dense tensor, lies until the recording ends.
  void keep_alive(const torch::stable::Tensor& x) {
    count_allocation();
    keep_alive_.push_back(x);
    const int64_t bytes = x.numel() * x.element_size();
    regions.add({static_cast<const uint8_t*>(x.const_data_ptr()), bytes, Role::kTemporary, 0});
  }

  // Forgets the steps from `count` on.
  void forget(int64_t count) {
    if (count >= static_cast<int64_t>(steps.size())) return;
    const int64_t place = steps[count].args;
    while (!arguments.slots.empty() && arguments.slots.back().at >= place) arguments.slots.pop_back();
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

  std::vector<torch::stable::Tensor> keep_alive_;
};

// That of this thread; null where nothing is recorded.
Recorder* recorder();

}  // namespace fxquant
