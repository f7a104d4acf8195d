// What is computed number by number between products of experts.
#pragma once

#include "ggml_api.hpp"

namespace elementwise {

// Whether this kernel does the node; all threads get the same answer.
bool can_do(const ggml_compute_params& params, const ggml_tensor& node);

// This thread's part of a node that the kernel can do.
void compute(const ggml_compute_params& params, ggml_tensor& node);

}  // namespace elementwise
