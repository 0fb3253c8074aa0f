// What the bindings of resample2d share: checks, the images, the weights of both axes.
#pragma once
#include <vector>

#include "pool/pool.h"

namespace fxquant {

// Which elements of an axis an output reads, and with which weights. Dense tensors.
struct ResampleAxis {
  Tensor start;   // int64 [outputs]
  Tensor weight;  // float32 [outputs, taps]
  int64_t taps;
};

struct Resample {
  Images images;
  ResampleAxis rows;
  ResampleAxis columns;
  RequantizeQParams qparams;
};

inline ResampleAxis check_resample_axis(const char* op, const std::string& name, const Tensor& start,
                                        const Tensor& weight, const Tensor& x, int64_t size) {
  if (start.scalar_type() != ScalarType::Long) {
    fail_dtype(op, (name + "_start").c_str(), start.scalar_type(), "int64");
  }
  if (weight.scalar_type() != ScalarType::Float) {
    fail_dtype(op, (name + "_weight").c_str(), weight.scalar_type(), "float32");
  }
  if (start.dim() != 1 || weight.dim() != 2 || start.size(0) != weight.size(0) || weight.size(1) < 1 ||
      weight.size(1) > size) {
    fail(std::string(op) + ": " + name + "_start and " + name + "_weight do not fit",
         list_of(start.sizes()) + " and " + list_of(weight.sizes()),
         "[n] and [n, k], with k from 1 to " + std::to_string(size));
  }
  check_same_device(op, name + "_start", start, x);
  check_same_device(op, name + "_weight", weight, x);
  return {row_major(start), row_major(weight), weight.size(1)};
}

struct Resample2dCall {
  Tensor x;
  Tensor row_start;
  Tensor row_weight;
  Tensor column_start;
  Tensor column_weight;
  double x_scale;
  int64_t x_zero_point;
  double scale;
  int64_t zero_point;
  int64_t quant_min;
  int64_t quant_max;
};

inline Resample prepare_resample2d(const Resample2dCall& c) {
  constexpr const char* op = "fxquant::resample2d";
  const RequantizeQParams qparams = check_requantize(op, c);
  check_image(op, c.x);
  const int64_t height = c.x.size(c.x.dim() - 2);
  const int64_t width = c.x.size(c.x.dim() - 1);
  const ResampleAxis rows = check_resample_axis(op, "row", c.row_start, c.row_weight, c.x, height);
  const ResampleAxis columns = check_resample_axis(op, "column", c.column_start, c.column_weight, c.x, width);
  const Images images = images_of(op, c.x, {height, c.row_start.size(0), 0, 0, 0, 0},
                                  {width, c.column_start.size(0), 0, 0, 0, 0});
  return {images, rows, columns, qparams};
}

}  // namespace fxquant
