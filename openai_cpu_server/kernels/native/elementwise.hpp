// What is computed number by number between products of weights.
#pragma once

#include "ggml_api.hpp"

namespace elementwise {

// Whether this kernel does the node; all threads get the same answer.
bool can_do(const ggml_compute_params& params, const ggml_tensor& node);

// This thread's part of a node that the kernel can do.
void compute(const ggml_compute_params& params, ggml_tensor& node);

// The same for rows over the root of their mean square, and for those times weights: `norm` and the product that ggml
// has fused with it, or null.
bool can_normalise(const ggml_compute_params& params, const ggml_tensor& norm, const ggml_tensor* product);
void normalise(const ggml_compute_params& params, const ggml_tensor& norm, const ggml_tensor* product);

}  // namespace elementwise
