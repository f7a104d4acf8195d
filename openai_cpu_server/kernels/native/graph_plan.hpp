// Graphs are analysed before they are computed, because the work of several nodes may be faster in one task.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ggml_api.hpp"
#include "recurrent.hpp"

// Nodes of a graph that tasks compute, and nodes that are skipped because a task does their work.
// A node points to its task while the plan lives. Then the graph is restored.
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
