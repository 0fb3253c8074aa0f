#include "cpu/copy.h"

#include "cpu/guarded.h"

namespace fxquant {

void copy_elements(const Tensor& to, const Tensor& from) {
  copy_strided(static_cast<uint8_t*>(to.mutable_data_ptr()), static_cast<const uint8_t*>(from.const_data_ptr()),
               from.element_size(), from.dim(), from.sizes().data(), to.strides().data(), from.strides().data());
}

}  // namespace fxquant

// For fxquant/runtime/program.py, through ctypes: a copy that becomes a step of what is recorded. Returns whether it did.
extern "C" __attribute__((visibility("default"))) bool fxquant_copy(uint8_t* to, const uint8_t* from, int64_t element,
                                                                    int64_t dims, const int64_t* sizes,
                                                                    const int64_t* to_strides,
                                                                    const int64_t* from_strides) {
  return fxquant::succeeds([&] { fxquant::copy_strided(to, from, element, dims, sizes, to_strides, from_strides); });
}
