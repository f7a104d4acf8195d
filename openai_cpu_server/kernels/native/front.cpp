// Functions that ggml exports and calls by name. This library is loaded before ggml's, so its functions are the
// ones that get called; what no kernel of ours does, or what is switched off, goes on to ggml's own.
#include <atomic>
#include <optional>

#include "attention.hpp"
#include "cpu.hpp"
#include "ggml_api.hpp"
#include "graph_plan.hpp"
#include "products.hpp"

namespace {

// Everything is off until its owner has proved it. Owners switch only while no graph is computed.
struct Switch {
    std::atomic<bool> is_on{false};
    std::atomic<long> num_done{0};  // nodes that the kernel has computed
};

enum { ATTENTION, PRODUCTS, RECURRENT, NUM_KERNELS };  // their order is that of `kernels/library.py`
Switch switches[NUM_KERNELS];

// By type of weights, a bit for each: products that ggml has been measured to compute faster here.
std::atomic<uint64_t> left_to_ggml{0};

bool is_on(int kernel) { return switches[kernel].is_on.load(std::memory_order_relaxed); }

bool is_our_product(const ggml_compute_params& params, const ggml_tensor& node) {
    const bool is_left = left_to_ggml.load(std::memory_order_relaxed) >> node.src[0]->type & 1;
    return is_on(PRODUCTS) && !is_left && products::can_do(params, node);
}

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

void ggml_compute_forward_mul_mat(const ggml_compute_params* params, ggml_tensor* node) {
    if (!is_our_product(*params, *node)) return ggml().mul_mat(params, node);
    products::compute(*params, *node);
    count(PRODUCTS, *params);
}

int ggml_graph_compute(ggml_cgraph* graph, ggml_cplan* how) {
    std::optional<GraphPlan> plan;
    if (is_on(RECURRENT)) plan.emplace(graph);
    attention::begin_graph();
    const int status = ggml().graph_compute(graph, how);
    attention::end_graph();
    return status;
}

// ggml asks for each node, before it looks for a function of its own, whether an accelerator does it. What a plan has
// a task for is computed here, and products of mixtures, whose function is not exported, unless their weights are an
// accelerator's.
bool ggml_cpu_extra_compute_forward(ggml_compute_params* params, ggml_tensor* node) {
    if (const auto* task = is_on(RECURRENT) ? GraphPlan::task_of(*node) : nullptr) {
        task->compute(*params);
        count(RECURRENT, *params);
        return true;
    }
    if (ggml().extra_compute_forward(params, node)) return true;
    if (node->op != GGML_OP_MUL_MAT_ID || !is_our_product(*params, *node)) return false;
    products::compute(*params, *node);
    count(PRODUCTS, *params);
    return true;
}

// For `kernels/library.py`.

bool ocs_suits_this_cpu() { return suits_this_cpu(); }

const char* ocs_instruction_set() { return INSTRUCTION_SET; }

void ocs_switch_on(int kernel) { switches[kernel].is_on = true; }

void ocs_switch_off(int kernel) { switches[kernel].is_on = false; }

void ocs_leave(uint64_t weight_types) { left_to_ggml = weight_types; }

long ocs_num_done(int kernel) { return switches[kernel].num_done; }
}
