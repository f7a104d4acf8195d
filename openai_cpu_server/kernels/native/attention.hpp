// Flash attention over a pool of cells that many sequences share.
#pragma once

#include "ggml_api.hpp"

namespace attention {

// Whether this kernel does the node; all threads get the same answer.
bool can_do(const ggml_compute_params& params, const ggml_tensor& node);

// This thread's part of a node that the kernel can do.
void compute(const ggml_compute_params& params, ggml_tensor& node);

// The same by tiles (amx.hpp), where rows and heads are many and cells are not f32: queries, keys, weights and values are
// rounded to bf16.
bool can_use_tiles(const ggml_compute_params& params, const ggml_tensor& node);
void compute_by_tiles(const ggml_compute_params& params, ggml_tensor& node);

// Around the graph that this thread computes, with others or alone. What follows from a mask is then found out once for
// all layers that have it; without these, for each node.
void begin_graph();
void end_graph();

}  // namespace attention
