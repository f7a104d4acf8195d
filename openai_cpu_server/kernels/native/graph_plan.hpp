// Graphs are looked through before they are computed: what several nodes do together may be done better at once.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ggml_api.hpp"
#include "recurrent.hpp"

// Which nodes of a graph are computed by tasks of ours, and which are passed over because a task does their work.
// A node knows its task while the plan lives; then the graph is as it was.
class GraphPlan {
public:
    // `by_tiles`: delta nets of prompts use AMX.
    GraphPlan(ggml_cgraph* graph, bool by_tiles);
    ~GraphPlan();
    GraphPlan(const GraphPlan&) = delete;
    GraphPlan& operator=(const GraphPlan&) = delete;

    // Null: ggml computes the node.
    static const recurrent::Task* task_of(const ggml_tensor& node) {
        return static_cast<const recurrent::Task*>(node.extra);
    }

private:
    friend class Planner;
    std::vector<std::pair<ggml_tensor*, std::unique_ptr<recurrent::Task>>> tasks_;
    std::vector<ggml_tensor*> passed_over_;
};
