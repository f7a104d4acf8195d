#include "graph_plan.hpp"

#include <algorithm>
#include <functional>
#include <optional>

using recurrent::Convolution;
using recurrent::Rows;
using recurrent::States;
using recurrent::Task;

namespace {

bool is_view(const ggml_tensor& node) {
    switch (node.op) {
        case GGML_OP_NONE:
        case GGML_OP_RESHAPE:
        case GGML_OP_VIEW:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE: return true;
        default: return false;
    }
}

// Returns true if threads do any work at the node.
bool is_computed(const ggml_tensor& node) {
    const bool is_empty = std::any_of(node.ne, node.ne + 4, [](int64_t size) { return size == 0; });
    return !is_view(node) && (node.flags & GGML_TENSOR_FLAG_COMPUTE) && !is_empty;
}

// The tensor that has the memory.
ggml_tensor* owner(ggml_tensor* tensor) { return tensor->view_src ? tensor->view_src : tensor; }

struct Range {
    const char *first, *last;

    bool meets(const Range& other) const { return first < other.last && other.first < last; }
};

// Memory that a tensor of floats may touch.
Range range_of(const ggml_tensor& tensor) {
    const auto* first = static_cast<const char*>(tensor.data);
    size_t size = sizeof(float);
    for (int i = 0; i < 4; ++i) size += (tensor.ne[i] - 1) * tensor.nb[i];
    return {first, first + size};
}

bool has_dense_floats(const ggml_tensor& tensor) {
    size_t size = sizeof(float);
    for (int i = 0; i < 4; size *= tensor.ne[i++])
        if (tensor.ne[i] != 1 && tensor.nb[i] != size) return false;
    return tensor.type == GGML_TYPE_F32;
}

// A tensor of interest, and the computed nodes that read or write its memory, in order.
struct Tracked {
    ggml_tensor* tensor;
    int index;  // of the node, or -1 for memory from before the graph
    std::vector<int> touched_by;
};

// Reads of whole rows of states: (row width, sequences) of a memory, by numbers of rows from before the graph.
struct Gather {
    ggml_tensor* memory;
    const char* first;
    size_t stride;
    const int32_t* ids;
    int64_t count;

    const char* row(int64_t i) const { return first + ids[i] * stride; }
};

std::optional<Gather> gather_of(ggml_tensor& states, int axis, ggml_tensor& ids, int64_t count) {
    const bool is_known = owner(&ids)->op == GGML_OP_NONE && ids.type == GGML_TYPE_I32 && ids.nb[0] == sizeof(int32_t);
    if (!is_known || states.type != GGML_TYPE_F32 || owner(&states)->op != GGML_OP_NONE) return {};
    return Gather{owner(&states), static_cast<const char*>(states.data), states.nb[axis],
                  static_cast<const int32_t*>(ids.data), count};
}

std::optional<Gather> gather_of(ggml_tensor& node) {
    if (node.op != GGML_OP_GET_ROWS || node.ne[2] != 1 || node.ne[3] != 1) return {};
    return gather_of(*node.src[0], 1, *node.src[1], node.ne[1]);
}

// Destinations of the new states of a step's sequences.
struct Written {
    std::vector<Rows> rows;  // one for each kept state of a sequence: the last, the one before it and so on
    std::vector<Range> ranges;

    void add(const ggml_tensor& node, Rows to) {
        rows.push_back(to);
        ranges.push_back(range_of(node));
    }
    // True if the old state of a sequence is lost when all sequences get their new ones.
    bool replaces(const char* row, size_t bytes, int64_t sequence) const {
        const auto is_own = [&](const Rows& to) { return row == reinterpret_cast<const char*>(to.row(sequence)); };
        const auto meets = [&](const Range& range) { return range.meets({row, row + bytes}); };
        return std::none_of(rows.begin(), rows.end(), is_own) && std::any_of(ranges.begin(), ranges.end(), meets);
    }
};

// Other uses of the memory that holds a layer's states.
struct Surroundings {
    ggml_tensor* zeroed = nullptr;    // the node that clears a state for sequences that begin
    ggml_tensor* moved = nullptr;     // the node that reads states of sequences outside the step,
    ggml_tensor* moved_to = nullptr;  // and the node that writes them
    std::vector<int> written_by;      // nodes that write the layer's new states
};

// Destinations of a copy that writes a row of this many bytes for each of `count` sequences; empty for other orders.
std::optional<Rows> written_rows(const ggml_tensor& copy, int64_t count, size_t bytes) {
    auto* data = static_cast<char*>(copy.data);
    const size_t width = sizeof(float) * copy.ne[0];
    if (copy.type != GGML_TYPE_F32 || copy.nb[0] != sizeof(float)) return {};
    if (width == bytes && copy.ne[1] == count) return Rows{data, copy.nb[1]};
    const bool is_one_row = copy.ne[1] == 1 && copy.ne[2] == 1 && copy.ne[3] == 1;
    if (width == bytes * count && is_one_row) return Rows{data, bytes};
    return {};
}

}  // namespace

class Planner {
public:
    Planner(GraphPlan& plan, ggml_cgraph* graph, bool by_tiles)
        : plan_{plan}, by_tiles_{by_tiles}, nodes_{ggml().graph_nodes(graph)}, count_{ggml().graph_n_nodes(graph)} {}

    void make() {
        if (!track()) return;
        for (Tracked& each : tracked_)
            if (each.tensor->op == GGML_OP_GATED_DELTA_NET) plan_delta_net(each);
            else if (each.tensor->op == GGML_OP_SSM_SCAN) plan_scan(each);
        for (Tracked& each : tracked_)  // last, because results may go where gathered states would have been
            if (each.tensor->op == GGML_OP_CONCAT) plan_convolution(each);
        for (Tracked& each : tracked_) each.tensor->extra = nullptr;
        for (auto& [node, task] : plan_.tasks_) node->extra = task.get();
    }

private:
    // Notes which nodes touch which memory. Returns false without a recurrent layer.
    bool track() {
        const auto num_layers = std::count_if(nodes_, nodes_ + count_, [](const ggml_tensor* node) {
            return node->op == GGML_OP_SSM_CONV || node->op == GGML_OP_SSM_SCAN || node->op == GGML_OP_GATED_DELTA_NET;
        });
        if (num_layers == 0) return false;
        tracked_.reserve(2 * std::count_if(nodes_, nodes_ + count_, is_of_interest));  // nodes know where they are
        for (int i = 0; i < count_; ++i) {
            ggml_tensor& node = *nodes_[i];
            if (!is_of_interest(&node) || !is_computed(node) || node.extra) continue;
            track(&node, i);
            const bool reads_memory = node.op == GGML_OP_GET_ROWS || node.op == GGML_OP_SSM_SCAN;
            ggml_tensor* memory = owner(node.src[0]);
            if (reads_memory && memory->op == GGML_OP_NONE && !memory->extra) track(memory, -1);
        }
        for (int i = 0; i < count_; ++i) {
            if (!is_computed(*nodes_[i])) continue;
            note_touch(nodes_[i], i);
            for (ggml_tensor* source : nodes_[i]->src)
                if (source) note_touch(source, i);
        }
        return true;
    }

    static bool is_of_interest(const ggml_tensor* node) {
        switch (node->op) {
            case GGML_OP_GET_ROWS:
            case GGML_OP_CONCAT:
            case GGML_OP_SSM_CONV:
            case GGML_OP_SSM_SCAN:
            case GGML_OP_GATED_DELTA_NET: return true;
            case GGML_OP_ADD: return node->src[0]->op == GGML_OP_SSM_CONV;
            default: return false;
        }
    }

    void track(ggml_tensor* tensor, int index) {
        tracked_.push_back({tensor, index, {}});
        tensor->extra = &tracked_.back();
    }

    // Returns null for tensors without interest. Others use `extra` themselves, such as repacked weights.
    Tracked* tracked(const ggml_tensor* tensor) const {
        auto* const extra = static_cast<Tracked*>(tensor->extra);
        const std::less<const Tracked*> before;
        const bool is_ours = !before(extra, tracked_.data()) && before(extra, tracked_.data() + tracked_.size());
        return is_ours ? extra : nullptr;
    }

    void note_touch(ggml_tensor* tensor, int index) {
        Tracked* found = tracked(owner(tensor));
        if (!found || found->index == index) return;
        if (found->touched_by.empty() || found->touched_by.back() != index) found->touched_by.push_back(index);
    }

    // Returns the only node that touches a node's result, or null if several do or none.
    ggml_tensor* only_reader(const ggml_tensor* node) const {
        const Tracked* found = tracked(node);
        return found && found->touched_by.size() == 1 ? nodes_[found->touched_by[0]] : nullptr;
    }

    void put(ggml_tensor& node, std::unique_ptr<Task> task) { plan_.tasks_.emplace_back(&node, std::move(task)); }

    void pass_over(ggml_tensor& node) {
        node.flags &= ~GGML_TENSOR_FLAG_COMPUTE;
        plan_.passed_over_.push_back(&node);
    }

    // Gathered states -> delta net -> a copy of the new states to where they belong.
    void plan_delta_net(const Tracked& net) {
        ggml_tensor& node = *net.tensor;
        if (!recurrent::is_known_delta_net(node)) return;
        States states = recurrent::states_of_delta_net(node);
        ggml_tensor *gathered = owner(node.src[5]), *back = copy_of_states(net, states);
        if (back && only_reader(gathered) == &node) {
            const std::optional<Gather> gather = gather_of(*gathered);
            const std::optional<Surroundings> around = surroundings(gather, tracked(gathered)->index, net);
            if (around && has_count(*gather, states) && is_over_before(*around, net))
                use_in_place(*gather, *gathered, *around, *back, states);
        }
        put(node, recurrent::delta_net(node, std::move(states), by_tiles_));
    }

    void use_in_place(const Gather& gather, ggml_tensor& gathered, const Surroundings& around, ggml_tensor& back,
                      States& states) {
        states.to = *written_rows(back, gather.count, states.to.stride);
        states.earlier = back.nb[2];
        Written written;
        for (int64_t i = 0; i < states.num_kept; ++i)
            written.add(back, {states.to.data + i * states.earlier, states.to.stride});
        read_where_they_are(gather, gathered, around, std::move(written), states.from);
        pass_over(back);
    }

    // States -> scan -> a copy of the new states to where they belong. States that move come between.
    void plan_scan(const Tracked& scan) {
        ggml_tensor& node = *scan.tensor;
        const std::optional<Gather> gather = gather_of(*node.src[0], 3, *node.src[6], node.src[1]->ne[3]);
        if (!gather || !recurrent::is_known_scan(node)) return;
        States states = recurrent::states_of_scan(node);
        const std::optional<Surroundings> around = surroundings(gather, scan.index, scan);
        if (ggml_tensor* back = copy_of_states(scan, states); back && around && stay(*around)) {
            const Rows to = *written_rows(*back, gather->count, states.to.stride);
            Written written;
            for (int64_t i = 0; i < states.num_kept; ++i)
                written.add(*back, {to.data + i * back->nb[2], to.stride});
            if (!loses_any(*gather, written, states.to.stride)) {
                states.to = to;
                states.earlier = back->nb[2];
                pass_over_needless(*gather, *around);
                pass_over(*back);
            }
        }
        put(node, recurrent::scan(node, std::move(states)));
    }

    static bool loses_any(const Gather& gather, const Written& written, size_t bytes) {
        for (int64_t i = 0; i < gather.count; ++i)
            if (written.replaces(gather.row(i), bytes, i)) return true;
        return false;
    }

    // Gathered states and inputs -> one matrix -> convolution -> bias -> SiLU, and copies of the matrix's ends.
    void plan_convolution(const Tracked& matrix) {
        ggml_tensor &node = *matrix.tensor, &inputs = *node.src[1], *gathered = owner(node.src[0]);
        ggml_tensor* convolved = nullptr;
        for (int index : matrix.touched_by) {
            if (nodes_[index]->op == GGML_OP_CPY) continue;
            if (convolved || nodes_[index]->op != GGML_OP_SSM_CONV || nodes_[index]->src[0] != &node) return;
            convolved = nodes_[index];
        }
        if (!convolved || node.op_params[0] != 0 || !has_dense_floats(node) || only_reader(gathered) != &node) return;
        const ggml_tensor& weights = *convolved->src[1];
        if (!has_dense_floats(weights) || inputs.type != GGML_TYPE_F32 || inputs.nb[1] != sizeof(float)) return;
        Convolution layer{};
        layer.taps = weights.ne[0], layer.channels = node.ne[1];
        layer.tokens = inputs.ne[0], layer.sequences = node.ne[2];
        layer.weights = static_cast<const float*>(weights.data);
        layer.inputs = static_cast<const char*>(inputs.data);
        layer.token_stride = inputs.nb[0], layer.sequence_stride = inputs.nb[2];
        const std::optional<Gather> gather = gather_of(*gathered);
        const std::optional<Surroundings> around = surroundings(gather, tracked(gathered)->index, matrix);
        const bool is_known = recurrent::is_known_convolution(layer.taps, layer.channels);
        if (!is_known || !around || gather->count != layer.sequences || !is_over_before(*around, matrix)) return;
        Written written;
        for (int index : around->written_by)
            if (!keeps(*nodes_[index], node, layer, written)) return;
        layer.states.resize(layer.sequences);
        read_where_they_are(*gather, *gathered, *around, std::move(written), layer.states);
        for (int index : around->written_by) pass_over(*nodes_[index]);
        put_convolution(matrix, *convolved, std::move(layer));
    }

    // Notes the columns of the matrix that a copy keeps. Returns false if the node is not such a copy.
    static bool keeps(const ggml_tensor& copy, const ggml_tensor& matrix, Convolution& layer, Written& written) {
        const ggml_tensor& ends = *copy.src[0];
        const int64_t column = (static_cast<char*>(ends.data) - static_cast<char*>(matrix.data)) / int64_t{sizeof(float)};
        const bool are_columns = ends.ne[0] == layer.taps - 1 && ends.ne[1] == layer.channels &&
                                 ends.ne[2] == layer.sequences && ends.nb[0] == sizeof(float) &&
                                 ends.nb[1] == matrix.nb[1] && ends.nb[2] == matrix.nb[2] && column <= layer.tokens;
        const size_t bytes = sizeof(float) * ends.ne[0] * ends.ne[1];
        const std::optional<Rows> to = written_rows(copy, layer.sequences, bytes);
        if (!are_columns || !to) return false;
        layer.kept.push_back({column, *to});
        written.add(copy, *to);
        return true;
    }

    // The convolution is computed at the matrix's node, because later its inputs may be overwritten. The result goes to its
    // place, unless another tensor uses that until then.
    void put_convolution(const Tracked& matrix, ggml_tensor& convolved, Convolution layer) {
        ggml_tensor* result = &convolved;
        if (ggml_tensor* next = next_in_chain(result); next && next->op == GGML_OP_ADD && has_bias(*next, layer)) {
            layer.bias = static_cast<const float*>(next->src[1]->data);
            result = next;
        }
        if (ggml_tensor* next = next_in_chain(result); next && is_silu(*next)) {
            layer.has_silu = true;
            result = next;
        }
        const int64_t size = layer.channels * layer.tokens * layer.sequences;
        const bool is_free = is_free_from(matrix, *result, layer);
        auto *to = static_cast<float*>(result->data), *aside = static_cast<float*>(matrix.tensor->data);
        layer.result = is_free ? to : aside;
        for (ggml_tensor* node = result; node != &convolved; node = node->src[0]) pass_over(*node);
        if (is_free) pass_over(convolved);
        else put(convolved, recurrent::copies({{aside, to}}, size));
        put(*matrix.tensor, recurrent::convolution(std::move(layer)));
    }

    // Returns the node that alone reads another's result, right behind it.
    ggml_tensor* next_in_chain(const ggml_tensor* node) const {
        ggml_tensor* reader = only_reader(node);
        if (!reader || reader->src[0] != node || !has_dense_floats(*reader)) return nullptr;
        int next = tracked(node)->index + 1;
        while (!is_computed(*nodes_[next])) ++next;
        return nodes_[next] == reader ? reader : nullptr;
    }

    static bool has_bias(const ggml_tensor& node, const Convolution& layer) {
        const ggml_tensor& bias = *node.src[1];
        const bool is_vector = bias.ne[0] == layer.channels && bias.ne[1] * bias.ne[2] * bias.ne[3] == 1;
        return is_vector && has_dense_floats(bias) && owner(node.src[1])->op == GGML_OP_NONE;
    }

    static bool is_silu(const ggml_tensor& node) {
        return node.op == GGML_OP_UNARY && node.op_params[0] == GGML_UNARY_OP_SILU;
    }

    bool is_free_from(const Tracked& matrix, const ggml_tensor& result, const Convolution& layer) const {
        const Range range = range_of(result);
        if (range.meets(range_of(*matrix.tensor->src[1]))) return false;
        for (const float* state : layer.states)
            if (range.meets({reinterpret_cast<const char*>(state), reinterpret_cast<const char*>(state + 1)})) return false;
        for (int i = matrix.index + 1; nodes_[i] != &result; ++i) {
            if (!is_computed(*nodes_[i])) continue;
            if (nodes_[i]->op == GGML_OP_SSM_CONV || nodes_[i]->src[0]->op == GGML_OP_SSM_CONV) continue;
            if (range.meets(range_of(*nodes_[i]))) return false;
            for (const ggml_tensor* source : nodes_[i]->src)
                if (source && range.meets(range_of(*source))) return false;
        }
        return true;
    }

    // Returns the only node that reads the new states in a layer's result, if it copies all of them row by row.
    ggml_tensor* copy_of_states(const Tracked& layer, const States& states) const {
        ggml_tensor* found = nullptr;
        for (int index : layer.touched_by)
            for (ggml_tensor* source : nodes_[index]->src) {
                if (!source || owner(source) != layer.tensor || range_of(*source).last <= states.to.data) continue;
                if (found || nodes_[index]->op != GGML_OP_CPY || source->data != states.to.data) return nullptr;
                found = nodes_[index];
            }
        const auto count = static_cast<int64_t>(states.from.size());
        if (!found || !has_dense_floats(*found->src[0])) return nullptr;
        if (!written_rows(*found, count, states.to.stride)) return nullptr;
        return found->ne[2] == std::min(states.num_kept, num_tokens(*layer.tensor)) ? found : nullptr;
    }

    static int64_t num_tokens(const ggml_tensor& layer) {
        return layer.src[layer.op == GGML_OP_SSM_SCAN ? 1 : 2]->ne[2];
    }

    static bool has_count(const Gather& gather, const States& states) {
        return gather.count == static_cast<int64_t>(states.from.size());
    }

    // Empty unless every node that touches the memory is recognised. `read_at`: the node that reads the states.
    std::optional<Surroundings> surroundings(const std::optional<Gather>& gather, int read_at,
                                             const Tracked& layer) const {
        if (!gather) return {};
        Surroundings found;
        const Tracked* memory = tracked(gather->memory);
        if (!memory) return {};
        for (int index : memory->touched_by) {
            ggml_tensor& node = *nodes_[index];
            if (index == read_at) continue;
            if (node.op == GGML_OP_SCALE && index < read_at && !found.zeroed) found.zeroed = &node;
            else if (node.op == GGML_OP_GET_ROWS && !found.moved) found.moved = &node;
            else if (node.op != GGML_OP_CPY || owner(&node) != gather->memory) return {};
            else if (found.moved && node.src[0] == found.moved && !found.moved_to) found.moved_to = &node;
            else if (owner(node.src[0]) == layer.tensor && index > layer.index) found.written_by.push_back(index);
            else return {};
        }
        if (found.moved && (!found.moved_to || only_reader(found.moved) != found.moved_to)) return {};
        return found.written_by.empty() ? std::optional<Surroundings>{} : found;
    }

    // True if states of other sequences have been moved before the layer is computed.
    bool is_over_before(const Surroundings& around, const Tracked& layer) const {
        const auto* const at = nodes_ + layer.index;
        return !around.moved || std::find(nodes_ + 0, nodes_ + layer.index, around.moved_to) != at;
    }

    // True if states of other sequences move to where they are.
    static bool stay(const Surroundings& around) {
        if (!around.moved) return true;
        const std::optional<Gather> gather = gather_of(*around.moved);
        if (!gather) return false;
        const std::optional<Rows> rows = written_rows(*around.moved_to, gather->count, around.moved->nb[1]);
        for (int64_t i = 0; rows && i < gather->count; ++i)
            if (gather->row(i) != reinterpret_cast<const char*>(rows->row(i))) return false;
        return rows.has_value();
    }

    // Moves to where states are, and a clear without a sequence.
    void pass_over_needless(const Gather& gather, const Surroundings& around) {
        if (around.zeroed && !reads(gather, *around.zeroed) &&
            !(around.moved && reads(*gather_of(*around.moved), *around.zeroed)))
            pass_over(*around.zeroed);
        if (around.moved && stay(around)) pass_over(*around.moved), pass_over(*around.moved_to);
    }

    static bool reads(const Gather& gather, const ggml_tensor& state) {
        for (int64_t i = 0; i < gather.count; ++i)
            if (gather.row(i) == state.data) return true;
        return false;
    }

    // Only states whose place gets another state are gathered.
    void read_where_they_are(const Gather& gather, ggml_tensor& gathered, const Surroundings& around, Written written,
                             std::vector<const float*>& from) {
        pass_over_needless(gather, around);
        if (around.moved && is_computed(*around.moved_to)) written.ranges.push_back(range_of(*around.moved_to));
        std::vector<recurrent::Copy> lost;
        for (int64_t i = 0; i < gather.count; ++i) {
            from[i] = reinterpret_cast<const float*>(gather.row(i));
            if (!written.replaces(gather.row(i), sizeof(float) * gathered.ne[0], i)) continue;
            auto* copy = reinterpret_cast<float*>(static_cast<char*>(gathered.data) + i * gathered.nb[1]);
            lost.push_back({from[i], copy});
            from[i] = copy;
        }
        if (lost.empty()) pass_over(gathered);
        else put(gathered, recurrent::copies(std::move(lost), gathered.ne[0]));
    }

    GraphPlan& plan_;
    bool by_tiles_;
    ggml_tensor** nodes_;
    int count_;
    std::vector<Tracked> tracked_;
};

GraphPlan::GraphPlan(ggml_cgraph* graph, bool by_tiles) { Planner{*this, graph, by_tiles}.make(); }

GraphPlan::~GraphPlan() {
    for (auto& [node, task] : tasks_) node->extra = nullptr;
    for (ggml_tensor* node : passed_over_) node->flags |= GGML_TENSOR_FLAG_COMPUTE;
}
