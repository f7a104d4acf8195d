// Many lanes by AMX: queries, keys, weights and values as bf16, sums and the softmax in floats.
//
// Keys and values are the first operand of products: keys lie as a tile wants them, and values are transposed once for all
// lanes. So scores come out as (cells, lanes), nothing is summed or compared across a vector, and weights become the second
// operand by rounding pairs of rows. While the vector units turn scores into weights, the tile unit works on the cells
// behind and before them.
#pragma once

#include <algorithm>

#include "amx.hpp"
#include "attention_gathered.hpp"
#include "attention_lanes.hpp"
#include "words.hpp"

namespace attention {

// Lanes are computed in units, each of two halves.
constexpr int SIDE = amx::TILE_ROWS, UNIT = 2 * SIDE, TILES_A_STEP = 4;

// A thread's memory, kept from node to node.
struct TileRoom {
    Buffer<uint8_t> queries;       // tiles: (unit, half, step of the width)
    Buffer<uint8_t> keys, values;  // tiles: (cells, half of 32, step of the width); (cells, 16 of the width)
    Buffer<> unpacked;             // 32 cells
    Buffer<> outputs;              // (unit, half, width, lanes)
    Buffer<> largest, sums;        // (unit, half, lanes); sums of even and of odd cells: (unit, half, 2, lanes)
    Buffer<> scores;               // of two steps: (half, cells, lanes)
    Buffer<uint8_t> weights;       // of two steps: tiles (half, 32 cells)
};

// One group of heads of an item: lanes are (row, head), the heads of a row side by side.
//
// Cells lie in a tile where they lie in their 32 cells of the pool, because a tile sums pairs of them. Scores are relative
// to a power of 2. So a lane's result is the same bit for bit whatever lanes and cells are computed with it.
class TileAttention {
public:
    TileAttention(const Node& node, const Sight& sight, const int* rows, int num_rows, int group, const Gathered& gathered,
                  TileRoom& room)
        : node_(node), sight_(sight), rows_(rows), num_lanes_(num_rows * node.group), group_(group), gathered_(gathered),
          room_(room), num_units_((num_lanes_ + UNIT - 1) / UNIT), depth_((node.key_width + 2 * SIDE - 1) / (2 * SIDE)),
          parts_(node.value_width / SIDE), most_tiles_(tiles_kept(2 * depth_ + parts_)),
          unpacked_stride_(std::max(2 * SIDE * depth_, node.value_width) + SIDE) {
        const size_t floats_of_step = size_t(2) * TILES_A_STEP * TILE * SIDE;
        room.queries.resize(size_t(num_units_) * 2 * depth_ * amx::TILE_BYTES);
        room.keys.resize(size_t(most_tiles_) * 2 * depth_ * amx::TILE_BYTES);
        room.values.resize(size_t(most_tiles_) * parts_ * amx::TILE_BYTES);
        room.unpacked.resize(size_t(TILE) * unpacked_stride_);
        room.outputs.resize(size_t(num_units_) * outputs_of_unit());
        room.largest.resize(size_t(num_units_) * UNIT);
        room.sums.resize(size_t(num_units_) * 2 * UNIT);
        room.scores.resize(2 * floats_of_step);
        room.weights.resize(size_t(2) * 2 * TILES_A_STEP * amx::TILE_BYTES);
        has_weights_ = node.mask && std::any_of(rows, rows + num_rows, [&](int row) { return !sight.is_plain(row); });
        for (int lane = 0; lane < num_units_ * UNIT; lane += SIDE) set_queries(lane);
    }

    // Forgets all cells that have been added.
    void begin_part() {
        std::fill_n(room_.outputs.data(), num_units_ * outputs_of_unit(), 0.0f);
        std::fill_n(room_.largest.data(), num_units_ * UNIT, LOWEST);
        std::fill_n(room_.sums.data(), num_units_ * 2 * UNIT, 0.0f);
    }

    // `begin` and `end` count gathered cells.
    void add(int begin, int end) {
        while (begin < end) {
            num_tiles_ = 0;
            for (; begin < end; ++num_tiles_) {
                const int* cells = &gathered_.cells()[0];
                const int place = cells[begin] / (TILES_A_STEP * TILE);
                if (num_tiles_ > most_tiles_ - TILES_A_STEP && place != tiles_[num_tiles_ - 1].place) break;
                int next = std::min(begin + TILE, end);
                while (cells[next - 1] / TILE != cells[begin] / TILE) --next;
                tiles_[num_tiles_] = {begin, next - begin, place};
                store_cells(tiles_[num_tiles_], num_tiles_, end);
                begin = next;
            }
            for (int unit = 0; unit < num_units_; ++unit) add_to(unit);
        }
    }

    void write_part(float* to) {
        alignas(64) float turned[SIDE][SIDE];
        const int stride = node_.value_width + 2;
        for (int first = 0; first < num_lanes_; first += SIDE) {
            const int count = std::min(SIDE, num_lanes_ - first);
            const float *sums = room_.sums.data() + 2 * first, *outputs = room_.outputs.data() + size_t(first) * node_.value_width;
            for (int i = 0; i < count; ++i) {
                to[(first + i) * stride] = room_.largest.data()[first + i];
                to[(first + i) * stride + 1] = sums[i] + sums[SIDE + i];
            }
            for (int part = 0; part < parts_; ++part) {
                tiles::transpose_16(reinterpret_cast<const uint32_t*>(outputs + part * SIDE * SIDE), SIDE,
                                    reinterpret_cast<uint32_t*>(turned));
                for (int i = 0; i < count; ++i)
                    std::memcpy(to + (first + i) * stride + 2 + part * SIDE, turned[i], sizeof turned[i]);
            }
        }
    }

private:
    static constexpr int MOST_TILES = PART_CELLS / TILE, KEPT_BYTES = 1 << 19;  // of cells: they stay in the second cache

    static int tiles_kept(int tiles_of_cells) {
        return std::clamp(KEPT_BYTES / (tiles_of_cells * amx::TILE_BYTES), TILES_A_STEP, MOST_TILES);
    }
    static constexpr float LOWEST = -0x1p29f;   // lower than the score of a cell that is seen
    static constexpr float HIDDEN = -0x1p100f;  // of one that is not

    struct TileOfCells {
        int first, count;  // gathered cells
        int place;         // of its step in the pool
    };
    struct Step {
        int first_tile, num_tiles;
        int buffer;
    };

    size_t outputs_of_unit() const { return size_t(UNIT) * node_.value_width; }
    uint8_t* query_tiles(int lane) const { return room_.queries.data() + lane / SIDE * depth_ * amx::TILE_BYTES; }
    uint8_t* key_tiles(int tile) const { return room_.keys.data() + size_t(tile) * 2 * depth_ * amx::TILE_BYTES; }
    uint8_t* value_tiles(int tile) const { return room_.values.data() + size_t(tile) * parts_ * amx::TILE_BYTES; }
    float* scores(int buffer, int half) const { return room_.scores.data() + (2 * buffer + half) * TILES_A_STEP * TILE * SIDE; }
    uint8_t* weights(int buffer, int half) const {
        return room_.weights.data() + (2 * buffer + half) * TILES_A_STEP * amx::TILE_BYTES;
    }
    int head_of(int lane) const { return group_ * node_.group + lane % node_.group; }

    // Scores are logarithms of base 2.
    void set_queries(int first) {
        alignas(64) uint16_t rows[SIDE][2 * SIDE];
        for (int d = 0; d < depth_; ++d) {
            const int left = std::min(2 * SIDE, node_.key_width - d * 2 * SIDE);
            std::memset(rows, 0, sizeof rows);
            for (int i = 0; i < SIDE && first + i < num_lanes_; ++i) {
                const float* query = node_.query(rows_[(first + i) / node_.group], head_of(first + i)) + d * 2 * SIDE;
                float padded[2 * SIDE] = {};
                std::copy_n(query, left, padded);
                amx::store_bf16(rows[i], padded, node_.scale * LOG2_E);
            }
            tiles::transpose_16(reinterpret_cast<const uint32_t*>(rows), SIDE,
                                reinterpret_cast<uint32_t*>(query_tiles(first) + d * amx::TILE_BYTES));
        }
    }

    // ---- cells

    const float* unpack(const ggml_tensor& from, UnpackCells unpack_cells, const TileOfCells& tile, int end) {
        const char* first = static_cast<const char*>(from.data) + node_.kv_head(group_) * from.nb[2];
        const CellRows rows{first, from.nb[1], int(from.ne[0])};
        const int* cells = &gathered_.cells()[tile.first];
        const int next = tile.first + tile.count, ahead = std::min(TILE, end - next);
        CellsAhead cells_ahead(first, from.nb[1], from.nb[2], cells + tile.count, ahead);
        float* to = room_.unpacked.data();
        if (tile.count == TILE && rows.width % (2 * SIDE) == 0)
            unpack_cells(rows, cells, TILE, cells_ahead, to, unpacked_stride_);
        else {
            std::fill_n(to, TILE * unpacked_stride_, 0.0f);
            for (int i = 0; i < tile.count; ++i)
                unpack_cells(rows, cells + i, 1, cells_ahead, to + cells[i] % TILE * unpacked_stride_, unpacked_stride_);
        }
        return to;
    }

    void store_cells(const TileOfCells& tile, int number, int end) {
        const float* rows = unpack(node_.k, node_.unpack_k, tile, end);
        uint8_t* keys = key_tiles(number);
        for (int cell = 0; cell < TILE; ++cell)
            for (int d = 0; d < depth_; ++d) {
                uint8_t* to = keys + (cell / SIDE * depth_ + d) * amx::TILE_BYTES + cell % SIDE * 64;
                amx::store_bf16(reinterpret_cast<uint16_t*>(to), rows + cell * unpacked_stride_ + d * 2 * SIDE);
            }
        if (!node_.values_in_keys) rows = unpack(node_.v, node_.unpack_v, tile, end);
        for (int part = 0; part < parts_; ++part) {
            alignas(64) int32_t pairs[SIDE][SIDE];
            for (int i = 0; i < SIDE; ++i)
                for (int d = 0; d < SIDE; d += LANES) {
                    const float* even = rows + 2 * i * unpacked_stride_ + part * SIDE + d;
                    simd::store(pairs[i] + d, amx::bf16_pairs(simd::load(even), simd::load(even + unpacked_stride_)));
                }
            tiles::transpose_16(reinterpret_cast<const uint32_t*>(pairs), SIDE,
                                reinterpret_cast<uint32_t*>(value_tiles(number) + part * amx::TILE_BYTES));
        }
    }

    // ---- a unit

    // Scores of a step are computed while those of the step before it become weights, and so are the outputs of the step
    // before that one.
    void add_to(int unit) {
        Step next = step_behind(unit, {0, 0, 1});
        if (next.num_tiles == 0) return;
        for (int i = 0; i < next.num_tiles; ++i) score(unit, next, i);
        Step before{0, 0, 1};
        while (next.num_tiles > 0) {
            const Step now = next;
            next = step_behind(unit, now);
            if (node_.soft_cap != 0) cap(now);
            hide(unit, now);
            if (raise_largest(unit, now, before)) before.num_tiles = 0;
            const int pairs = before.num_tiles > 0 ? (parts_ + 1) / 2 : 0, jobs = next.num_tiles + pairs;
            const int cells = now.num_tiles * TILE;
            for (int job = 0, cell = 0; cell < cells || job < jobs; ++job) {
                if (job < next.num_tiles) score(unit, next, job);
                else if (job < jobs) add_pair(unit, before, job - next.num_tiles);
                const int until = job + 1 < jobs ? cells * (job + 1) / jobs / 2 * 2 : cells;
                soften(unit, now, cell, until);
                cell = until;
            }
            before = now;
        }
        for (int pair = 0; pair < (parts_ + 1) / 2; ++pair) add_pair(unit, before, pair);
    }

    // The next tiles behind a step of which the unit sees something, as far as they lie in one place of the pool: where
    // scores may become relative to another number must not depend on other lanes. Empty at the end.
    Step step_behind(int unit, const Step& step) const {
        int first = step.first_tile + step.num_tiles;
        while (first < num_tiles_ && !sees(unit, first)) ++first;
        int end = first;
        for (int tile = first; tile < num_tiles_ && tiles_[tile].place == tiles_[first].place; ++tile)
            if (sees(unit, tile)) end = tile + 1;
        return {first, end - first, 1 - step.buffer};
    }

    struct Lanes {
        int begin, end;
    };
    Lanes lanes_of(int unit) const { return {unit * UNIT, std::min(unit * UNIT + UNIT, num_lanes_)}; }

    bool is_plain(int tile) const {
        return !has_weights_ && gathered_.seen_by_all(tiles_[tile].first, tiles_[tile].count) == ~uint32_t(0);
    }
    uint32_t seen(int row, int tile) const { return gathered_.seen(row, tiles_[tile].first, tiles_[tile].count); }
    bool sees(int unit, int tile) const {
        if (is_plain(tile)) return true;
        const Lanes lanes = lanes_of(unit);
        for (int row = lanes.begin / node_.group; row * node_.group < lanes.end; ++row)
            if (seen(row, tile)) return true;
        return false;
    }

    // Both halves of 32 cells with both halves of the lanes.
    void score(int unit, const Step& step, int number) {
        const uint8_t *upper = key_tiles(step.first_tile + number), *lower = upper + depth_ * amx::TILE_BYTES;
        const uint8_t *left = query_tiles(unit * UNIT), *right = left + depth_ * amx::TILE_BYTES;
        amx::zero<0>(), amx::zero<1>(), amx::zero<2>(), amx::zero<3>();
        for (int d = 0; d < depth_ * amx::TILE_BYTES; d += amx::TILE_BYTES) {
            amx::load<4>(upper + d);
            amx::load<6>(left + d);
            amx::multiply_bf16<0, 4, 6>();
            amx::load<7>(right + d);
            amx::multiply_bf16<1, 4, 7>();
            amx::load<5>(lower + d);
            amx::multiply_bf16<2, 5, 6>();
            amx::multiply_bf16<3, 5, 7>();
        }
        float *of_left = scores(step.buffer, 0) + number * TILE * SIDE, *of_right = scores(step.buffer, 1) + number * TILE * SIDE;
        amx::store<0>(of_left), amx::store<1>(of_right);
        amx::store<2>(of_left + SIDE * SIDE), amx::store<3>(of_right + SIDE * SIDE);
    }

    void cap(const Step& step) {
        for (int half = 0; half < 2; ++half)
            for (int i = 0; i < step.num_tiles * TILE * SIDE; i += LANES) {
                float* score = scores(step.buffer, half) + i;
                simd::store(score, node_.soft_cap * LOG2_E * simd::tanh(simd::load(score) * (1 / LOG2_E)));
            }
    }

    // Adds the mask to scores.
    void hide(int unit, const Step& step) {
        const Lanes lanes = lanes_of(unit);
        for (int i = 0; i < step.num_tiles; ++i) {
            const int tile = step.first_tile + i;
            if (is_plain(tile)) continue;
            const int* cells = &gathered_.cells()[tiles_[tile].first];
            for (int lane = lanes.begin; lane < lanes.end; ++lane) {
                const int row = lane / node_.group;
                float* score = scores(step.buffer, lane / SIDE % 2) + i * TILE * SIDE + lane % SIDE;
                uint32_t places = 0;
                const uint32_t bits = seen(row, tile);
                if (tiles_[tile].count == TILE) places = bits;
                else
                    for (int cell = 0; cell < tiles_[tile].count; ++cell) places |= (bits >> cell & 1) << cells[cell] % TILE;
                if (!sight_.is_plain(rows_[row]))
                    for (int cell = 0; cell < tiles_[tile].count; ++cell)
                        score[cells[cell] % TILE * SIDE] +=
                            node_.slope(head_of(lane)) * LOG2_E * simd::from_f16(node_.mask_of(rows_[row])[cells[cell]]);
                for (uint32_t hidden = ~places; hidden; hidden &= hidden - 1) score[__builtin_ctz(hidden) * SIDE] = HIDDEN;
            }
        }
    }

    // Makes weights relative to the largest scores so far. Where these grow, which is rare, the step before is added
    // first. Returns true in that case.
    bool raise_largest(int unit, const Step& step, const Step& before) {
        bool has_added = false;
        for (int half = 0; half < 2; ++half)
            for (int lane = 0; lane < SIDE; lane += LANES) {
                const float* score = scores(step.buffer, half) + lane;
                floats most[4];
                for (floats& each : most) each = simd::splat(2 * LOWEST);
                for (int cell = 0; cell < step.num_tiles * TILE; cell += 4)
                    for (int i = 0; i < 4; ++i) most[i] = simd::max(most[i], simd::load(score + (cell + i) * SIDE));
                const floats of_step = simd::max(simd::max(most[0], most[1]), simd::max(most[2], most[3]));
                const int first = unit * UNIT + half * SIDE;
                float *largest = room_.largest.data() + first + lane, *sums = room_.sums.data() + 2 * first + lane;
                const floats old = simd::load(largest), now = simd::max(old, simd::rounded(of_step));
                if (std::memcmp(&old, &now, sizeof now) == 0) continue;
                if (!has_added && before.num_tiles > 0)
                    for (int pair = 0; pair < (parts_ + 1) / 2; ++pair) add_pair(unit, before, pair);
                has_added = true;
                const floats factor = simd::power_of_2(old - now);
                simd::store(largest, now);
                simd::store(sums, simd::load(sums) * factor);
                simd::store(sums + SIDE, simd::load(sums + SIDE) * factor);
                float* outputs = room_.outputs.data() + size_t(first) * node_.value_width + lane;
                for (int d = 0; d < node_.value_width; ++d)
                    simd::store(outputs + d * SIDE, simd::load(outputs + d * SIDE) * factor);
            }
        return has_added;
    }

    // Turns scores of some cells, whose numbers are even, into weights.
    void soften(int unit, const Step& step, int begin, int end) {
        for (int half = 0; half < 2; ++half)
            for (int lane = 0; lane < SIDE; lane += LANES) {
                const int first = unit * UNIT + half * SIDE;
                const floats largest = simd::load(room_.largest.data() + first + lane);
                float* sums = room_.sums.data() + 2 * first + lane;
                floats of_even = simd::load(sums), of_odd = simd::load(sums + SIDE);
                const float* score = scores(step.buffer, half) + lane;
                auto* to = reinterpret_cast<int32_t*>(weights(step.buffer, half)) + lane;
                for (int cell = begin; cell < end; cell += 2) {
                    const floats even = simd::exp2_short(simd::load(score + cell * SIDE) - largest);
                    const floats odd = simd::exp2_short(simd::load(score + (cell + 1) * SIDE) - largest);
                    of_even += even;
                    of_odd += odd;
                    simd::store(to + cell / 2 * SIDE, amx::bf16_pairs(even, odd));
                }
                simd::store(sums, of_even);
                simd::store(sums + SIDE, of_odd);
            }
    }

    // Adds the values of a step's cells to 32 numbers of the outputs, or the last 16.
    void add_pair(int unit, const Step& step, int pair) {
        const bool has_two = 2 * pair + 1 < parts_;
        float* left = room_.outputs.data() + unit * outputs_of_unit() + 2 * pair * SIDE * SIDE;
        float* right = left + SIDE * node_.value_width;
        amx::load<0>(left), amx::load<1>(right);
        if (has_two) amx::load<2>(left + SIDE * SIDE), amx::load<3>(right + SIDE * SIDE);
        for (int i = 0; i < step.num_tiles; ++i) {
            const uint8_t* values = value_tiles(step.first_tile + i) + 2 * pair * amx::TILE_BYTES;
            amx::load<4>(values);
            amx::load<6>(weights(step.buffer, 0) + i * amx::TILE_BYTES);
            amx::multiply_bf16<0, 4, 6>();
            amx::load<7>(weights(step.buffer, 1) + i * amx::TILE_BYTES);
            amx::multiply_bf16<1, 4, 7>();
            if (!has_two) continue;
            amx::load<5>(values + amx::TILE_BYTES);
            amx::multiply_bf16<2, 5, 6>();
            amx::multiply_bf16<3, 5, 7>();
        }
        amx::store<0>(left), amx::store<1>(right);
        if (has_two) amx::store<2>(left + SIDE * SIDE), amx::store<3>(right + SIDE * SIDE);
    }

    const Node& node_;
    const Sight& sight_;
    const int* rows_;
    const int num_lanes_, group_;
    const Gathered& gathered_;
    TileRoom& room_;
    const int num_units_;
    const int depth_;  // steps of a key's width
    const int parts_;  // of a value's width
    const int most_tiles_;
    const int unpacked_stride_;
    bool has_weights_;
    TileOfCells tiles_[MOST_TILES];
    int num_tiles_ = 0;
};

}  // namespace attention
