#include "attention.hpp"

#include <algorithm>
#include <atomic>
#include <tuple>

#include "attention_gathered.hpp"
#include "attention_lanes.hpp"
#include "attention_node.hpp"
#include "attention_plan.hpp"
#include "attention_tiles.hpp"
#include "simd.hpp"

namespace attention {

namespace {

// Preparation of a node by its mask and shape. Layers of a graph with the same mask and shape share it.
struct Prepared {
    Sight sight;
    Plan plan;
    std::vector<Gathered> gathered;  // by block

    const int* rows(const Block& block) const { return &plan.order[block.first]; }
};

// Many lanes score with 16-bit integers, which is faster. Then a row's bits depend on the number of lanes.
std::atomic<bool> rounds{false};

// Other memory of a thread, kept from node to node.
struct Scratch {
    std::vector<ManyLanes> many;  // by the groups of an item
    TileRoom tiles;
    std::vector<FewLanes> few;
    Buffer<> tile, parts;
};

// Gap between rows of a tile, because rows a power of 2 apart would share few places of the first cache.
constexpr int TILE_PADDING = 64 / sizeof(float);

// One group of heads of an item: lanes are (row, head), the heads of a row side by side.
template <class Lanes>
class Attention {
public:
    Attention(const Node& node, const Prepared& prepared, const Item& item, int group, Buffer<>& tile, Lanes& lanes)
        : node_(node),
          sight_(prepared.sight),
          rows_(prepared.rows(prepared.plan.blocks[item.block])),
          num_rows_(prepared.plan.blocks[item.block].count),
          group_(group),
          gathered_(prepared.gathered[item.block]),
          tile_stride_(std::max(node.key_width, node.value_width) + TILE_PADDING),
          lanes_(lanes) {
        tile.resize(size_t(TILE) * tile_stride_);
        tile_ = tile.data();
        const bool is_exact = !rounds || node.k.type == GGML_TYPE_F32 || !node.fills_vectors;
        lanes_.begin(num_rows_ * node_.group, node_.key_width, node_.value_width, is_exact);
        for (int i = 0; i < num_rows_; ++i)
            for (int h = 0; h < node_.group; ++h)
                lanes_.set_query(i * node_.group + h, node_.query(rows_[i], head(h)), node_.scale);
    }

    void begin_part() { lanes_.restart(); }

    void add_tile(int first, int count, CellsAhead& keys, CellsAhead& values) {
        score(first, count, keys);
        if (node_.soft_cap != 0) cap();
        for (int i = 0; i < num_rows_; ++i) hide(i, first, count);
        lanes_.soften();
        add(first, count, values);
    }

    void write_part(float* to) {
        for (int lane = 0; lane < num_rows_ * node_.group; ++lane, to += node_.value_width + 2) {
            to[0] = lanes_.largest(lane);
            to[1] = lanes_.sum(lane);
            lanes_.output(lane, to + 2);
        }
    }

private:
    int head(int h) const { return group_ * node_.group + h; }

    void score(int first, int count, CellsAhead& ahead) {
        if constexpr (Lanes::READS_POOL)
            if (count == TILE && node_.k.type == GGML_TYPE_F16) return lanes_.score(in_pool(node_.k, first, ahead));
        unpack(node_.k, node_.unpack_k, first, count, ahead);
        lanes_.score(UnpackedRows{tile_, tile_stride_});
    }

    void add(int first, int count, CellsAhead& ahead) {
        if constexpr (Lanes::READS_POOL)
            if (count == TILE && node_.v.type == GGML_TYPE_F16) return lanes_.add(in_pool(node_.v, first, ahead));
        if (!node_.values_in_keys) unpack(node_.v, node_.unpack_v, first, count, ahead);
        lanes_.add(UnpackedRows{tile_, tile_stride_});
    }

    const char* rows_of(const ggml_tensor& tensor) const {
        return static_cast<const char*>(tensor.data) + node_.kv_head(group_) * tensor.nb[2];
    }

    HalfRows in_pool(const ggml_tensor& from, int first, CellsAhead& ahead) {
        for (int i = 0; i < TILE; ++i) offsets_[i] = gathered_.cells()[first + i] * from.nb[1];
        return {rows_of(from), offsets_, ahead};
    }

    void unpack(const ggml_tensor& from, UnpackCells unpack_cells, int first, int count, CellsAhead& ahead) {
        const CellRows rows{rows_of(from), from.nb[1], int(from.ne[0])};
        unpack_cells(rows, &gathered_.cells()[first], count, ahead, tile_, tile_stride_);
        std::fill_n(tile_ + count * tile_stride_, (TILE - count) * tile_stride_, 0.0f);
    }

    void cap() {
        float* scores = lanes_.all_scores();
        for (int i = 0; i < lanes_.num_scores(); i += LANES)
            simd::store(scores + i, node_.soft_cap * simd::tanh(simd::load(scores + i)));
    }

    // Adds the mask to a row's scores.
    void hide(int row, int first, int count) {
        if (!sight_.is_plain(rows_[row])) weigh(row, first, count);
        for (uint32_t hidden = ~gathered_.seen(row, first, count); hidden; hidden &= hidden - 1) {
            float* scores = lanes_.scores(row * node_.group, __builtin_ctz(hidden));
            for (int h = 0; h < node_.group; ++h) scores[h * lanes_.lane_step()] = MINUS_INFINITY;
        }
    }

    void weigh(int row, int first, int count) {
        for (int h = 0; h < node_.group; ++h) {
            const float slope = node_.slope(head(h));
            for (int i = 0; i < count; ++i)
                *lanes_.scores(row * node_.group + h, i) +=
                    slope * simd::from_f16(node_.mask_of(rows_[row])[gathered_.cells()[first + i]]);
        }
    }

    const Node& node_;
    const Sight& sight_;
    const int* rows_;
    const int num_rows_, group_;
    const Gathered& gathered_;
    const int tile_stride_;
    float* tile_;  // keys, then values
    Lanes& lanes_;
    size_t offsets_[TILE];
};

// Results of a lane so far. Scores are logarithms of base 2.
struct Found {
    float largest = MINUS_INFINITY, sum = 0;
    float* output;

    void scale_to(float new_largest, int width) {
        const float factor = largest > MINUS_INFINITY ? std::exp2(largest - new_largest) : 0.0f;
        for (int d = 0; d < width; ++d) output[d] *= factor;
        sum *= factor;
        largest = new_largest;
    }

    void merge(const float* part, int width) {
        if (part[1] == 0) return;
        scale_to(std::max(largest, part[0]), width);
        const float factor = std::exp2(part[0] - largest);
        for (int d = 0; d < width; ++d) output[d] += factor * part[2 + d];
        sum += factor * part[1];
    }

    void add_sink(float score, int width) {
        scale_to(std::max(largest, score), width);
        sum += std::exp2(score - largest);
    }
};

// Merges the parts of a block for one group, and writes the result.
void finish(const Node& node, const Block& block, const int* rows, int group, int num_parts, const float* parts) {
    const int width = int(node.v.ne[0]);
    const size_t stride = part_floats(node, block);
    for (int lane = 0; lane < block.count * node.group; ++lane, parts += node.value_width + 2) {
        const int row = rows[lane / node.group], head = group * node.group + lane % node.group;
        Found found;
        found.output = node.result_of(row, head);
        std::fill_n(found.output, width, 0.0f);
        for (int part = 0; part < num_parts; ++part) found.merge(parts + part * stride, width);
        if (node.sinks) found.add_sink(node.sinks[head] * LOG2_E, width);
        const float share = found.sum == 0 ? 0.0f : 1 / found.sum;
        for (int d = 0; d < width; ++d) found.output[d] *= share;
    }
}

// Cells that an item reads.
CellsAhead cells_ahead(const Node& node, const ggml_tensor& tensor, const Item& item, const int* cells, int count) {
    const int first_head = node.kv_head(item.first_group);
    const int end_head = node.kv_head(item.first_group + item.num_groups - 1) + 1;
    const char* first = static_cast<const char*>(tensor.data) + first_head * tensor.nb[2];
    return {first, tensor.nb[1], (end_head - first_head) * tensor.nb[2], cells, count};
}

// Range of the cells that a block has gathered.
struct Range {
    int begin, end;
};

// Few lanes: parts are of the same size. Many lanes: they are parts of the pool.
Range cells_of_part(const Prepared& prepared, const Item& item, int part, bool has_many) {
    const Block& block = prepared.plan.blocks[item.block];
    const auto tile = [&](int number) {
        const int tiles = (block.cells + TILE - 1) / TILE;
        return std::min(block.cells, int(long(tiles) * number / item.num_parts) * TILE);
    };
    if (!has_many) return {tile(part), tile(part + 1)};
    const std::vector<int>& cells = prepared.gathered[item.block].cells();
    const auto first_of = [&](int number) {
        const int cell = (block.first_pool_part() + number) * PART_CELLS;
        return int(std::lower_bound(cells.begin(), cells.end(), cell) - cells.begin());
    };
    return {first_of(part), first_of(part + 1)};
}

template <class Lanes>
void compute_part(const Node& node, const Prepared& prepared, const Item& item, Range range,
                  std::vector<Attention<Lanes>>& groups) {
    const std::vector<int>& cells = prepared.gathered[item.block].cells();
    for (auto& group : groups) group.begin_part();
    for (int first = range.begin, next; first < range.end; first = next) {
        next = std::min(first + TILE, range.end);
        const int ahead = std::min(TILE, range.end - next);
        CellsAhead keys = cells_ahead(node, node.k, item, cells.data() + next, ahead);
        CellsAhead values = cells_ahead(node, node.v, item, cells.data() + next, node.values_in_keys ? 0 : ahead);
        for (auto& group : groups) group.add_tile(first, next - first, keys, values);
    }
}

void compute_part(const Node&, const Prepared&, const Item&, Range range, std::vector<TileAttention>& groups) {
    for (auto& group : groups) {
        group.begin_part();
        group.add(range.begin, range.end);
    }
}

// Computes an item whose groups of heads are here.
template <class Group>
void compute_item(const Node& node, const Prepared& prepared, const Item& item, float* partials, Scratch& scratch,
                  std::vector<Group>& groups) {
    const Block& block = prepared.plan.blocks[item.block];
    const size_t floats = part_floats(node, block), stride = item.num_parts * floats;
    const bool has_many = has_many_lanes(node, block.count * node.group);
    float* results = partials + item.partials + item.first_group * stride;
    if (item.partials == WHOLE) {
        scratch.parts.resize(item.num_groups * stride);
        results = scratch.parts.data();
    }
    for (int part = item.first_part; part < item.part_behind; ++part) {
        compute_part(node, prepared, item, cells_of_part(prepared, item, part, has_many), groups);
        for (int i = 0; i < item.num_groups; ++i) groups[i].write_part(results + i * stride + part * floats);
    }
    if (item.partials != WHOLE) return;
    for (int i = 0; i < item.num_groups; ++i)
        finish(node, block, prepared.rows(block), item.first_group + i, item.num_parts, results + i * stride);
}

template <class Lanes>
void compute_by_lanes(const Node& node, const Prepared& prepared, const Item& item, float* partials, Scratch& scratch,
                      std::vector<Lanes>& lanes) {
    if (int(lanes.size()) < item.num_groups) lanes.resize(item.num_groups);
    std::vector<Attention<Lanes>> groups;
    groups.reserve(item.num_groups);
    for (int i = 0; i < item.num_groups; ++i)
        groups.emplace_back(node, prepared, item, item.first_group + i, scratch.tile, lanes[i]);
    compute_item(node, prepared, item, partials, scratch, groups);
}

void compute_item(const Node& node, const Prepared& prepared, const Item& item, float* partials, Scratch& scratch) {
    const Block& block = prepared.plan.blocks[item.block];
    if (!has_many_lanes(node, block.count * node.group))
        return compute_by_lanes(node, prepared, item, partials, scratch, scratch.few);
    if (!node.by_tiles) return compute_by_lanes(node, prepared, item, partials, scratch, scratch.many);
    std::vector<TileAttention> groups;  // one, because an item of many lanes has only one
    groups.emplace_back(node, prepared.sight, prepared.rows(block), block.count, item.first_group, prepared.gathered[item.block],
                        scratch.tiles);
    compute_item(node, prepared, item, partials, scratch, groups);
}

// Runs after all threads have computed their parts.
void merge_parts(const Node& node, const ggml_compute_params& params, const Prepared& prepared,
                 const float* partials) {
    const Plan& plan = prepared.plan;
    ggml().barrier(params.threadpool);
    for (int i = params.ith; i < int(plan.items.size()); i += params.nth) {
        const Item& item = plan.items[i];
        if (item.partials == WHOLE || item.first_part != 0) continue;
        const Block& block = plan.blocks[item.block];
        const size_t stride = item.num_parts * part_floats(node, block);
        for (int group = item.first_group; group < item.first_group + item.num_groups; ++group)
            finish(node, block, prepared.rows(block), group, item.num_parts,
                   partials + item.partials + group * stride);
    }
}

// Preparations of a graph. Layers have a few kinds of masks, in any order.
class Preparations {
public:
    struct Found {
        Prepared* prepared;
        bool is_new;  // not looked up yet
    };

    void forget() { num_kept_ = 0; }

    // `room`: floats for the results of parts. A preparation that is not kept is overwritten by the next one.
    Found find(const Node& node, int threads, size_t room, bool is_kept) {
        const Key key{node.mask, node.rows, node.cells, node.heads, node.heads_of_kv, node.key_width,
                      node.value_width, node.lanes_max, threads, room};
        for (int i = 0; i < num_kept_; ++i)
            if (keys_[i] == key) return {&all_[i], false};
        if (num_kept_ == MOST) forget();
        keys_[num_kept_] = key;
        Prepared& next = all_[num_kept_];
        next.sight.begin(node);
        if (is_kept) ++num_kept_;
        return {&next, true};
    }

private:
    using Key = std::tuple<const ggml_tensor*, int, int, int, int, int, int, int, int, size_t>;
    static constexpr int MOST = 4;
    Prepared all_[MOST];
    Key keys_[MOST];
    int num_kept_ = 0;
};

// Preparations of the thread that computes a graph, which is the first of its threads.
struct Graph {
    bool is_computed = false;  // set by begin_graph()
    Preparations preparations;
};

Graph& graph_of_thread() {
    static thread_local Graph graph;
    return graph;
}

// A mask that the graph computes may be replaced in the same place before the next node.
bool is_given(const ggml_tensor* mask) { return !mask || (mask->op == 0 && !mask->view_src); }

// Prepares with all threads: each takes some rows, then some blocks.
void prepare(const Node& node, const ggml_compute_params& params, size_t room, Prepared& prepared) {
    for (int row = params.ith; row < node.rows; row += params.nth) prepared.sight.look(node, row);
    ggml().barrier(params.threadpool);
    if (params.ith == 0) {
        prepared.plan.make(node, prepared.sight, params.nth, room);
        prepared.gathered.resize(std::max(prepared.gathered.size(), prepared.plan.blocks.size()));
    }
    ggml().barrier(params.threadpool);
    for (int block = params.ith; block < int(prepared.plan.blocks.size()); block += params.nth)
        prepared.gathered[block].gather(prepared.plan, prepared.sight, prepared.plan.blocks[block]);
    ggml().barrier(params.threadpool);
}

// ggml's memory for all threads: the address of the node's preparation, then the results of parts.
struct Shared {
    Preparations::Found found;
    float* partials() { return reinterpret_cast<float*>(this + 1); }
};

bool is_computable(const ggml_compute_params& params, const ggml_tensor& node, bool by_tiles) {
    return !params.use_ref && params.wsize >= sizeof(Shared) && is_known(node, by_tiles);
}

}  // namespace

bool can_do(const ggml_compute_params& params, const ggml_tensor& node) {
    return is_computable(params, node, false);
}

void begin_graph() {
    graph_of_thread().preparations.forget();
    graph_of_thread().is_computed = true;
}

void end_graph() { graph_of_thread().is_computed = false; }

namespace {

void compute(const ggml_compute_params& params, ggml_tensor& tensor, bool by_tiles) {
    static thread_local Scratch scratch;
    const Node node(tensor, by_tiles);
    Shared& shared = *static_cast<Shared*>(params.wdata);
    const size_t room = (params.wsize - sizeof(Shared)) / sizeof(float);
    if (params.ith == 0) {
        Graph& graph = graph_of_thread();
        shared.found = graph.preparations.find(node, params.nth, room, graph.is_computed && is_given(node.mask));
        ggml().chunk_set(params.threadpool, params.nth);
    }
    ggml().barrier(params.threadpool);
    Prepared& prepared = *shared.found.prepared;
    if (shared.found.is_new) prepare(node, params, room, prepared);
    const std::vector<Item>& items = prepared.plan.items;
    for (int i = params.ith; i < int(items.size()); i = ggml().chunk_add(params.threadpool, 1))
        compute_item(node, prepared, items[i], shared.partials(), scratch);
    if (prepared.plan.has_parts()) merge_parts(node, params, prepared, shared.partials());
}

}  // namespace

void compute(const ggml_compute_params& params, ggml_tensor& tensor) { compute(params, tensor, false); }

// Steps of few rows stay exact: products do not use tiles there either.
bool can_use_tiles(const ggml_compute_params& params, const ggml_tensor& node) {
    return is_computable(params, node, true) && node.src[1]->type != GGML_TYPE_F32 && node.src[0]->ne[1] >= amx::TILE_ROWS;
}

void compute_by_tiles(const ggml_compute_params& params, ggml_tensor& tensor) {
    amx::configure();
    compute(params, tensor, true);
    amx::release();
}

}  // namespace attention

extern "C" void ocs_round_attention(bool on) { attention::rounds = on; }
