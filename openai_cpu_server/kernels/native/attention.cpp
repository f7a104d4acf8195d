#include "attention.hpp"

namespace attention {

bool can_do(const ggml_compute_params&, const ggml_tensor&) { return false; }

void compute(const ggml_compute_params&, ggml_tensor&) {}

}  // namespace attention
