// Functions that ggml exports and calls by name. This library is loaded before ggml's, so its functions are the
// ones that get called; what no kernel of ours does, or what is switched off, goes on to ggml's own.
#include <atomic>

#include "attention.hpp"
#include "cpu.hpp"
#include "ggml_api.hpp"
#include "products.hpp"

namespace {

// Everything is off until its owner has proved it. Owners switch only while no graph is computed.
struct Switch {
    std::atomic<bool> is_on{false};
    std::atomic<long> num_done{0};  // nodes that the kernel has computed
};

enum { ATTENTION, PRODUCTS, NUM_KERNELS };  // their order is that of `kernels/library.py`
Switch switches[NUM_KERNELS];

bool is_on(int kernel) { return switches[kernel].is_on.load(std::memory_order_relaxed); }

void count(int kernel, const ggml_compute_params& params) {
    if (params.ith == 0) switches[kernel].num_done.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

extern "C" {

void ggml_compute_forward_flash_attn_ext(const ggml_compute_params* params, ggml_tensor* node) {
    if (!is_on(ATTENTION) || !attention::can_do(*params, *node)) return ggml().flash_attn_ext(params, node);
    attention::compute(*params, *node);
    count(ATTENTION, *params);
}

int ggml_graph_compute(ggml_cgraph* graph, ggml_cplan* plan) {
    attention::begin_graph();
    const int status = ggml().graph_compute(graph, plan);
    attention::end_graph();
    return status;
}

void ggml_compute_forward_mul_mat(const ggml_compute_params* params, ggml_tensor* node) {
    if (!is_on(PRODUCTS) || !products::can_do(*params, *node)) return ggml().mul_mat(params, node);
    products::compute(*params, *node);
    count(PRODUCTS, *params);
}

// For `kernels/library.py`.

bool ocs_suits_this_cpu() { return suits_this_cpu(); }

const char* ocs_instruction_set() { return INSTRUCTION_SET; }

void ocs_switch_on(int kernel) { switches[kernel].is_on = true; }

void ocs_switch_off(int kernel) { switches[kernel].is_on = false; }

long ocs_num_done(int kernel) { return switches[kernel].num_done; }
}
