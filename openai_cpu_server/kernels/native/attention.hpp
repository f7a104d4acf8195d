// Flash attention over a pool of cells that many sequences share.
#pragma once

#include "ggml_api.hpp"

namespace attention {

// Returns true if this kernel supports the node. All threads get the same answer.
bool can_do(const ggml_compute_params& params, const ggml_tensor& node);

// Computes this thread's part of a supported node.
void compute(const ggml_compute_params& params, ggml_tensor& node);

// The same by tiles (amx.hpp), where rows and heads are many and cells are not f32: queries, keys, weights and values are
// rounded to bf16.
bool can_use_tiles(const ggml_compute_params& params, const ggml_tensor& node);
void compute_by_tiles(const ggml_compute_params& params, ggml_tensor& node);

// Called around the graph that this thread computes, with others or alone. A mask is then prepared once for
// all layers that have it; without these calls, for each node.
void begin_graph();
void end_graph();

}  // namespace attention
