#include "attention.hpp"

#include <algorithm>

#include "attention_gathered.hpp"
#include "attention_lanes.hpp"
#include "attention_node.hpp"
#include "attention_plan.hpp"
#include "simd.hpp"

namespace attention {

namespace {

// What a thread needs beside the node; kept from node to node.
struct Scratch {
    std::vector<uint64_t> sight;
    Plan plan;
    std::vector<Gathered> gathered;  // by block
    std::vector<ManyLanes> many;  // by the heads of an item
    std::vector<FewLanes> few;
    Buffer tile, part;

    void begin(const Node& node, const Sight& sight, int threads, size_t room) {
        plan.make(node, sight, threads, room);
        gathered.resize(std::max(gathered.size(), plan.blocks.size()));
        for (Gathered& each : gathered) each.clear();
        tile.resize(size_t(TILE) * node.width);
    }
};

// One head of keys and values of an item: lanes are (row, head), the heads of a row side by side.
template <class Lanes>
class Attention {
public:
    Attention(const Node& node, const Sight& sight, const Item& item, int kv_head, Scratch& scratch, Lanes& lanes)
        : node_(node),
          sight_(sight),
          rows_(&scratch.plan.order[scratch.plan.blocks[item.block].first]),
          num_rows_(scratch.plan.blocks[item.block].count),
          kv_head_(kv_head),
          gathered_(scratch.gathered[item.block]),
          tile_(scratch.tile.data()),
          lanes_(lanes) {
        lanes_.begin(num_rows_ * node_.group, node_.width);
        for (int i = 0; i < num_rows_; ++i)
            for (int h = 0; h < node_.group; ++h)
                lanes_.set_query(i * node_.group + h, node_.query(rows_[i], head(h)), node_.scale);
    }

    void add_tile(int first, int count, CellsAhead& keys, CellsAhead& values) {
        score(first, count, keys);
        if (node_.soft_cap != 0) cap();
        for (int i = 0; i < num_rows_; ++i) hide(i, first, count);
        lanes_.soften();
        add(first, count, values);
    }

    void write_part(float* to) {
        for (int lane = 0; lane < num_rows_ * node_.group; ++lane, to += node_.width + 2) {
            to[0] = lanes_.largest(lane);
            to[1] = lanes_.sum(lane);
            lanes_.output(lane, to + 2);
        }
    }

private:
    int head(int h) const { return kv_head_ * node_.group + h; }

    void score(int first, int count, CellsAhead& ahead) {
        if constexpr (Lanes::READS_POOL)
            if (count == TILE && node_.k.type == GGML_TYPE_F16) return lanes_.score(in_pool(node_.k, first, ahead));
        unpack(node_.k, node_.unpack_k, first, count, ahead);
        lanes_.score(UnpackedRows{tile_, node_.width});
    }

    void add(int first, int count, CellsAhead& ahead) {
        if constexpr (Lanes::READS_POOL)
            if (count == TILE && node_.v.type == GGML_TYPE_F16) return lanes_.add(in_pool(node_.v, first, ahead));
        unpack(node_.v, node_.unpack_v, first, count, ahead);
        lanes_.add(UnpackedRows{tile_, node_.width});
    }

    const char* rows_of(const ggml_tensor& tensor) const {
        return static_cast<const char*>(tensor.data) + kv_head_ * tensor.nb[2];
    }

    HalfRows in_pool(const ggml_tensor& from, int first, CellsAhead& ahead) {
        for (int i = 0; i < TILE; ++i) offsets_[i] = gathered_.cells()[first + i] * from.nb[1];
        return {rows_of(from), offsets_, ahead};
    }

    void unpack(const ggml_tensor& from, UnpackCells unpack_cells, int first, int count, CellsAhead& ahead) {
        unpack_cells({rows_of(from), from.nb[1], node_.width}, &gathered_.cells()[first], count, ahead, tile_);
        std::fill_n(tile_ + count * node_.width, (TILE - count) * node_.width, 0.0f);
    }

    void cap() {
        float* scores = lanes_.all_scores();
        for (int i = 0; i < lanes_.num_scores(); i += LANES)
            simd::store(scores + i, node_.soft_cap * simd::tanh(simd::load(scores + i)));
    }

    // Adds the mask to a row's scores.
    void hide(int row, int first, int count) {
        if (!sight_.is_plain(rows_[row])) weigh(row, first, count);
        for (uint32_t hidden = ~gathered_.seen(row, first); hidden; hidden &= hidden - 1) {
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
    const int num_rows_, kv_head_;
    const Gathered& gathered_;
    float* tile_;  // keys, then values
    Lanes& lanes_;
    size_t offsets_[TILE];
};

// What has been found about a lane.
struct Found {
    float largest = MINUS_INFINITY, sum = 0;
    float* output;

    void scale_to(float new_largest, int width) {
        const float factor = largest > MINUS_INFINITY ? std::exp(largest - new_largest) : 0.0f;
        for (int d = 0; d < width; ++d) output[d] *= factor;
        sum *= factor;
        largest = new_largest;
    }

    void merge(const float* part, int width) {
        if (part[1] == 0) return;
        scale_to(std::max(largest, part[0]), width);
        const float factor = std::exp(part[0] - largest);
        for (int d = 0; d < width; ++d) output[d] += factor * part[2 + d];
        sum += factor * part[1];
    }

    void add_sink(float score, int width) {
        scale_to(std::max(largest, score), width);
        sum += std::exp(score - largest);
    }
};

// Merges the parts of a block for one head of keys and values, and writes the result.
void finish(const Node& node, const Block& block, const int* rows, int kv_head, int num_parts, const float* parts) {
    const size_t stride = part_floats(node, block);
    for (int lane = 0; lane < block.count * node.group; ++lane, parts += node.width + 2) {
        const int row = rows[lane / node.group], head = kv_head * node.group + lane % node.group;
        Found found;
        found.output = node.result_of(row, head);
        std::fill_n(found.output, node.width, 0.0f);
        for (int part = 0; part < num_parts; ++part) found.merge(parts + part * stride, node.width);
        if (node.sinks) found.add_sink(node.sinks[head], node.width);
        const float share = found.sum == 0 ? 0.0f : 1 / found.sum;
        for (int d = 0; d < node.width; ++d) found.output[d] *= share;
    }
}

// What an item reads of these cells.
CellsAhead cells_ahead(const ggml_tensor& tensor, const Item& item, const int* cells, int count) {
    const char* first = static_cast<const char*>(tensor.data) + item.first_head * tensor.nb[2];
    return {first, tensor.nb[1], item.num_heads * tensor.nb[2], cells, count};
}

template <class Lanes>
void compute_item(const Node& node, const Sight& sight, const Item& item, float* partials, Scratch& scratch,
                  std::vector<Lanes>& lanes) {
    const Block& block = scratch.plan.blocks[item.block];
    const size_t floats = part_floats(node, block);
    if (int(lanes.size()) < item.num_heads) lanes.resize(item.num_heads);
    std::vector<Attention<Lanes>> heads;
    heads.reserve(item.num_heads);
    for (int i = 0; i < item.num_heads; ++i)
        heads.emplace_back(node, sight, item, item.first_head + i, scratch, lanes[i]);
    const int tiles = (block.cells + TILE - 1) / TILE;
    const int begin = int(long(tiles) * item.part / item.num_parts) * TILE;
    const int end = std::min(block.cells, int(long(tiles) * (item.part + 1) / item.num_parts) * TILE);
    const std::vector<int>& cells = scratch.gathered[item.block].cells();
    for (int first = begin; first < end; first += TILE) {
        const int next = std::min(first + TILE, end);
        CellsAhead keys = cells_ahead(node.k, item, cells.data() + next, std::min(TILE, end - next));
        CellsAhead values = cells_ahead(node.v, item, cells.data() + next, std::min(TILE, end - next));
        for (auto& head : heads) head.add_tile(first, next - first, keys, values);
    }
    scratch.part.resize(floats);
    for (int i = 0; i < item.num_heads; ++i) {
        const int kv_head = item.first_head + i;
        if (item.partials == WHOLE) {
            heads[i].write_part(scratch.part.data());
            finish(node, block, &scratch.plan.order[block.first], kv_head, 1, scratch.part.data());
        } else {
            heads[i].write_part(partials + item.partials + (kv_head * item.num_parts + item.part) * floats);
        }
    }
}

void compute_item(const Node& node, const Sight& sight, const Item& item, float* partials, Scratch& scratch) {
    const Block& block = scratch.plan.blocks[item.block];
    if (scratch.gathered[item.block].is_empty()) scratch.gathered[item.block].gather(scratch.plan, sight, block);
    if (has_many_lanes(block.count * node.group))
        compute_item(node, sight, item, partials, scratch, scratch.many);
    else
        compute_item(node, sight, item, partials, scratch, scratch.few);
}

// After all threads have computed their parts.
void merge_parts(const Node& node, const ggml_compute_params& params, const Plan& plan, const float* partials) {
    ggml().barrier(params.threadpool);
    for (int i = params.ith; i < int(plan.items.size()); i += params.nth) {
        const Item& item = plan.items[i];
        if (item.partials == WHOLE || item.part != 0) continue;
        const Block& block = plan.blocks[item.block];
        const size_t stride = item.num_parts * part_floats(node, block);
        for (int head = item.first_head; head < item.first_head + item.num_heads; ++head)
            finish(node, block, &plan.order[block.first], head, item.num_parts,
                   partials + item.partials + head * stride);
    }
}

// ggml's memory for all threads: first who sees what, then the results of parts.
struct Shared {
    char* memory;
    size_t bytes;
};

// Every thread needs all of it: each looks at some rows if there is room to share it, else at all.
Sight look(const Node& node, const ggml_compute_params& params, Shared& shared, Scratch& scratch) {
    Sight sight(node);
    const size_t bytes = sight.bytes(node.rows);
    const bool is_shared = bytes <= shared.bytes / 2;
    if (is_shared) {
        sight.keep_in(shared.memory);
        shared = {shared.memory + bytes, shared.bytes - bytes};
    } else {
        scratch.sight.resize(bytes / sizeof(uint64_t));
        sight.keep_in(scratch.sight.data());
    }
    for (int row = is_shared ? params.ith : 0; row < node.rows; row += is_shared ? params.nth : 1)
        sight.look(node, row);
    return sight;
}

}  // namespace

bool can_do(const ggml_compute_params& params, const ggml_tensor& node) {
    return !params.use_ref && is_known(node);
}

void compute(const ggml_compute_params& params, ggml_tensor& tensor) {
    static thread_local Scratch of_thread;
    Scratch& scratch = of_thread;
    const Node node(tensor);
    Shared shared{static_cast<char*>(params.wdata), params.wsize};
    const Sight sight = look(node, params, shared, scratch);
    if (params.ith == 0) ggml().chunk_set(params.threadpool, params.nth);
    ggml().barrier(params.threadpool);
    scratch.begin(node, sight, params.nth, shared.bytes / sizeof(float));
    float* partials = reinterpret_cast<float*>(shared.memory);
    const std::vector<Item>& items = scratch.plan.items;
    for (int i = params.ith; i < int(items.size()); i = ggml().chunk_add(params.threadpool, 1))
        compute_item(node, sight, items[i], partials, scratch);
    if (scratch.plan.has_parts()) merge_parts(node, params, scratch.plan, partials);
}

}  // namespace attention
