// Functions that ggml exports and calls by name. This library is loaded before ggml's, so its functions are the
// ones that get called. Nodes without a kernel here, or with a kernel that is off, go to ggml's own functions.
#include <atomic>
#include <optional>

#include "attention.hpp"
#include "cpu.hpp"
#include "elementwise.hpp"
#include "ggml_api.hpp"
#include "graph_plan.hpp"
#include "products.hpp"

namespace {

// Kernels are off until their owner has proved them. Owners switch only while no graph is computed.
struct Switch {
    std::atomic<bool> is_on{false};
    std::atomic<long> num_done{0};  // nodes that the kernel has computed
};

enum { ATTENTION, PRODUCTS, RECURRENT, ELEMENTWISE, TILES, ATTENTION_TILES, RECURRENT_TILES, NUM_KERNELS };  // their order is that of `kernels/library.py`
Switch switches[NUM_KERNELS];

// Bits by type of weights: products with few rows that ggml computes faster here, by measurement.
std::atomic<uint64_t> left_to_ggml{0};

bool is_on(int kernel) { return switches[kernel].is_on.load(std::memory_order_relaxed); }

void count(int kernel, const ggml_compute_params& params) {
    if (params.ith == 0) switches[kernel].num_done.fetch_add(1, std::memory_order_relaxed);
}

using CanDo = bool (*)(const ggml_compute_params&, const ggml_tensor&);
using Compute = void (*)(const ggml_compute_params&, ggml_tensor&);

// Computes this thread's part of a node if the kernel is on and supports it. Returns whether it did.
bool computed_by(int kernel, CanDo can_do, Compute compute, const ggml_compute_params& params, ggml_tensor& node) {
    if (!is_on(kernel) || !can_do(params, node)) return false;
    compute(params, node);
    count(kernel, params);
    return true;
}

bool is_product_computed(const ggml_compute_params& params, ggml_tensor& node) {
    if (computed_by(TILES, products::can_use_tiles, products::compute_by_tiles, params, node)) return true;
    const bool is_left = left_to_ggml.load(std::memory_order_relaxed) >> node.src[0]->type & 1;
    return !is_left && computed_by(PRODUCTS, products::can_do, products::compute, params, node);
}

bool is_normalised(const ggml_compute_params& params, ggml_tensor& norm, ggml_tensor* product) {
    if (!is_on(ELEMENTWISE) || !elementwise::can_normalise(params, norm, product)) return false;
    elementwise::normalise(params, norm, product);
    count(ELEMENTWISE, params);
    return true;
}

}  // namespace

extern "C" {

void ggml_compute_forward_flash_attn_ext(const ggml_compute_params* params, ggml_tensor* node) {
    if (computed_by(ATTENTION_TILES, attention::can_use_tiles, attention::compute_by_tiles, *params, *node)) return;
    if (!computed_by(ATTENTION, attention::can_do, attention::compute, *params, *node))
        ggml().flash_attn_ext(params, node);
}

void ggml_compute_forward_mul_mat(const ggml_compute_params* params, ggml_tensor* node) {
    if (!is_product_computed(*params, *node)) ggml().mul_mat(params, node);
}

void ggml_compute_forward_rms_norm_mul_fused(const ggml_compute_params* params, ggml_tensor* norm, ggml_tensor* product) {
    if (!is_normalised(*params, *norm, product)) ggml().rms_norm_mul_fused(params, norm, product);
}

int ggml_graph_compute(ggml_cgraph* graph, ggml_cplan* how) {
    std::optional<GraphPlan> plan;
    if (is_on(RECURRENT) || is_on(RECURRENT_TILES)) plan.emplace(graph, is_on(RECURRENT_TILES));
    attention::begin_graph();
    products::begin_graph();
    const int status = ggml().graph_compute(graph, how);
    attention::end_graph();
    products::end_graph();
    return status;
}

// ggml offers each node to accelerators before it calls a function of its own. Nodes with a task in a plan are computed
// here, and products of mixtures, whose function is not exported, unless an accelerator has their weights.
bool ggml_cpu_extra_compute_forward(ggml_compute_params* params, ggml_tensor* node) {
    const bool is_planned = is_on(RECURRENT) || is_on(RECURRENT_TILES);
    if (const auto* task = is_planned ? GraphPlan::task_of(*node) : nullptr) {
        task->compute(*params);
        count(task->by_tiles ? RECURRENT_TILES : RECURRENT, *params);
        return true;
    }
    if (ggml().extra_compute_forward(params, node)) return true;
    switch (node->op) {
        case GGML_OP_MUL_MAT_ID: return is_product_computed(*params, *node);
        case GGML_OP_RMS_NORM: return is_normalised(*params, *node, nullptr);
        case GGML_OP_MUL:
        case GGML_OP_GLU: return computed_by(ELEMENTWISE, elementwise::can_do, elementwise::compute, *params, *node);
        default: return false;
    }
}

// For `kernels/library.py`.

bool ocs_suits_this_cpu() { return suits_this_cpu(); }

const char* ocs_instruction_set() { return INSTRUCTION_SET; }

void ocs_switch_on(int kernel) { switches[kernel].is_on = true; }

void ocs_switch_off(int kernel) { switches[kernel].is_on = false; }

void ocs_leave(uint64_t weight_types) { left_to_ggml = weight_types; }

long ocs_num_done(int kernel) { return switches[kernel].num_done; }
}
