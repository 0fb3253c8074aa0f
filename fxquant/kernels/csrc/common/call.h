// The kernel of an operator whose arguments are one struct: FXQ_KERNEL(add_cpu) boxes Tensor add_cpu(const BinaryCall&).
// An operator of several results gives a std::tuple of tensors.
// The struct is an aggregate. Its fields are the arguments in the order of the schema, as in the record of the same name
// in fxquant/kernels; tests/kernels/test_call.py compares the two.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace fxquant {

// An argument on the dispatcher's stack. It converts to the type of the field that it initializes.
struct StackArgument {
  StableIValue value;

  template <typename T>
  operator T() const {
    return torch::stable::detail::to<T>(value);
  }
};

// The same of an optional field, which an argument of any type would make from the type inside.
struct OptionalStackArgument {
  StableIValue value;

  template <typename T>
  operator std::optional<T>() const {
    return torch::stable::detail::to<std::optional<T>>(value);
  }
};

template <typename Call, typename Fields, typename = void>
struct HasFields : std::false_type {};
template <typename Call, typename... Fields>
struct HasFields<Call, void(Fields...), std::void_t<decltype(Call{std::declval<Fields>()...})>> : std::true_type {};

template <typename Call, typename... Fields, size_t... i>
Call initialize(const StableIValue* stack, std::index_sequence<i...>) {
  return Call{Fields{stack[i]}...};
}

// Finds the kinds of the fields, one after the other, and takes as many arguments from the stack.
template <typename Call, typename... Fields>
Call call_from(const StableIValue* stack, uint64_t count) {
  if constexpr (HasFields<Call, void(Fields..., OptionalStackArgument)>::value) {
    return call_from<Call, Fields..., OptionalStackArgument>(stack, count);
  } else if constexpr (HasFields<Call, void(Fields..., StackArgument)>::value) {
    return call_from<Call, Fields..., StackArgument>(stack, count);
  } else {
    if (count != sizeof...(Fields)) {
      throw std::runtime_error("the schema has " + std::to_string(count) + " arguments, and the kernel " +
                               std::to_string(sizeof...(Fields)));
    }
    return initialize<Call, Fields...>(stack, std::index_sequence_for<Fields...>());
  }
}

template <auto kernel>
struct Boxed;
template <typename Call, torch::stable::Tensor (*kernel)(const Call&)>
struct Boxed<kernel> {
  static void run(StableIValue* stack, uint64_t count, uint64_t) {
    stack[0] = torch::stable::detail::from(kernel(call_from<Call>(stack, count)));
  }
};
template <typename Call, typename... Results, std::tuple<Results...> (*kernel)(const Call&)>
struct Boxed<kernel> {
  static void run(StableIValue* stack, uint64_t count, uint64_t) {
    const std::tuple<Results...> results = kernel(call_from<Call>(stack, count));
    const auto put = [&](const auto&... result) { ((*stack++ = torch::stable::detail::from(result)), ...); };
    std::apply(put, results);
  }
};

}  // namespace fxquant

#define FXQ_KERNEL(kernel) (&::fxquant::Boxed<&kernel>::run)
