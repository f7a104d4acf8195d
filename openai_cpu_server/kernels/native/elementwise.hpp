// Operations on single numbers between products of weights.
#pragma once

#include "ggml_api.hpp"

namespace elementwise {

// Returns true if this kernel supports the node. All threads get the same answer.
bool can_do(const ggml_compute_params& params, const ggml_tensor& node);

// Computes this thread's part of a supported node.
void compute(const ggml_compute_params& params, ggml_tensor& node);

// The same for rows over the root of their mean square, and for those times weights: `norm` and the product that ggml
// has fused with it, or null.
bool can_normalise(const ggml_compute_params& params, const ggml_tensor& norm, const ggml_tensor* product);
void normalise(const ggml_compute_params& params, const ggml_tensor& norm, const ggml_tensor* product);

}  // namespace elementwise
