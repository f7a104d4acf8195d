// Products of weights with activations, as bytes or by tiles: each panel of weights is unpacked once for many rows.
#pragma once

#include "ggml_api.hpp"

namespace products {

// Around the computation of a graph, in the thread that begins it.
void begin_graph();
void end_graph();

// Whether these kernels do the node, with activations as bytes or by tiles; all threads get the same answer.
bool can_do(const ggml_compute_params& params, const ggml_tensor& node);
bool can_use_tiles(const ggml_compute_params& params, const ggml_tensor& node);

// This thread's part of such a node.
void compute(const ggml_compute_params& params, ggml_tensor& node);
void compute_by_tiles(const ggml_compute_params& params, ggml_tensor& node);

}  // namespace products
